"""Results of queries as JSON, CSV or Arrow."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv as pacsv
from starlette.responses import Response

from .databases import Rows
from .wire import CONTENT_TYPE

Format = Literal["json", "csv", "arrow"]
TRUNCATED = "Millstream-Truncated"
MOST_TEXT_ROWS = 100_000  # JSON and CSV are made value by value; Arrow is for more


def answer_rows(rows: Rows, form: Format) -> Response:
    """The rows in the form that was asked for; a header says whether there were more."""
    content, kind = {"json": _json, "csv": _csv, "arrow": _arrow}[form](rows)
    return Response(content, media_type=kind, headers={TRUNCATED: str(rows.truncated).lower()})


def _arrow(rows: Rows) -> tuple[Any, str]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.table.schema) as writer:
        writer.write_table(rows.table)
    return bytes(sink.getvalue()), CONTENT_TYPE


def _json(rows: Rows) -> tuple[Any, str]:
    columns = [{"name": entry.name, "type": str(entry.type)} for entry in rows.table.schema]
    values = [[_plain(value) for value in column.to_pylist()] for column in rows.table.columns]
    found = [list(row) for row in zip(*values, strict=True)] if values else []
    return json.dumps({"columns": columns, "rows": found, "truncated": rows.truncated}).encode(), "application/json"


def _csv(rows: Rows) -> tuple[Any, str]:
    columns = [
        pa.array(
            [None if (told := _plain(value)) is None else _text(told) for value in column.to_pylist()], pa.string()
        )
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
        else column
        for column in rows.table.columns
    ]
    sink = pa.BufferOutputStream()
    pacsv.write_csv(pa.Table.from_arrays(columns, names=rows.table.column_names), sink)
    return bytes(sink.getvalue()), "text/csv; charset=utf-8"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _plain(value: Any) -> Any:
    """A value as JSON has it: numbers that JSON lacks, decimals, times and bytes as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, datetime.date | datetime.datetime | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value)
