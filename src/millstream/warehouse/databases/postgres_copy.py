"""Arrow columns as PostgreSQL's: the types, and whole columns as CSV for COPY. No value passes through Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from ...errors import PartRefused, UnsupportedType
from .base import listed, quoted

_PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp with time zone",
    pa.timestamp("us"): "timestamp without time zone",
}
_PIECE = 65_536  # rows


def sql_type(entry: pa.Field, table: str) -> str:
    """The type of a column, as PostgreSQL writes it; nested ones become jsonb."""
    kind = entry.type
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_nested(kind):
        return "jsonb"
    raise UnsupportedType(f"column {entry.name!r} of table {table!r} has type {kind}, which PostgreSQL does not have")


def copy_rows(connection: Any, target: str, rows: pa.Table) -> None:
    """Append the rows to a table."""
    _check_text(rows)
    names = listed(rows.schema.names)
    with connection.cursor().copy(f"COPY {target} ({names}) FROM STDIN (FORMAT csv)") as copy:
        for piece in _csv(_plain(rows)):
            copy.write(piece)


def _csv(rows: pa.Table) -> Iterator[memoryview]:
    # a text is quoted and NULL is not, which is how COPY tells an empty text from none
    options = pacsv.WriteOptions(include_header=False, quoting_style="needed")
    for start in range(0, rows.num_rows, _PIECE):
        sink = pa.BufferOutputStream()
        pacsv.write_csv(rows.slice(start, _PIECE), sink, write_options=options)
        yield memoryview(sink.getvalue())


def _plain(rows: pa.Table) -> pa.Table:
    """The rows with nested columns as JSON and bytes as hexadecimal, which CSV has no form for."""
    odd = {
        entry.name: entry.type
        for entry in rows.schema
        if pa.types.is_nested(entry.type) or pa.types.is_binary(entry.type)
    }
    if not odd:
        return rows
    columns = []
    for name in rows.schema.names:
        value = quoted(name)
        if name in odd:
            value = (
                f"'\\x' || lower(hex({value}))"
                if pa.types.is_binary(odd[name])
                else f"CAST(to_json({value}) AS VARCHAR)"
            )
        columns.append(f"{value} AS {quoted(name)}")
    with duckdb.connect(config={"python_enable_replacements": "false"}) as memory:
        memory.execute("SET TimeZone = 'UTC'")
        memory.register("incoming", rows)
        return memory.sql(f"SELECT {', '.join(columns)} FROM incoming").to_arrow_table()


def _check_text(rows: pa.Table) -> None:
    for entry in rows.schema:
        if pa.types.is_string(entry.type) and pc.any(pc.match_substring(rows.column(entry.name), "\0")).as_py():
            raise PartRefused(
                f"column {entry.name!r} has a text with a NUL character, which PostgreSQL cannot store; "
                "remove it in the flow, or filter such rows"
            )
