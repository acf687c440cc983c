"""Records as text - JSON lines or CSV - to a record batch of a stream's columns. Parsed by Arrow, never row by row."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from ..errors import BlockRefused, InputError
from .columns import CAPTURED

_JSON = ("application/x-ndjson", "application/jsonl", "application/json-lines", "application/jsonlines")
_CSV = ("text/csv",)


def parse_records(body: bytes, content_type: str, schema: pa.Schema) -> pa.RecordBatch:
    """The records in a body; its columns are among those of the stream, and have its types.

    Records without `_captured` are captured when they are stored.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (*_JSON, *_CSV):
        raise InputError(f"content type {kind[:60]!r} is not known; send {_JSON[0]} or {_CSV[0]}")
    if not body.strip():
        return pa.RecordBatch.from_pylist([], schema=schema)
    try:
        table = _read_json(body, schema) if kind in _JSON else _read_csv(body, schema)
    except (pa.ArrowException, ValueError, KeyError) as problem:
        if isinstance(problem, BlockRefused):
            raise
        if "unexpected field" in str(problem):
            raise BlockRefused(
                f"{_unexpected(body, schema)} is not in the stream, which has {_names(schema)}"
            ) from None
        raise BlockRefused(f"the body is not what the stream expects: {str(problem)[:300]}") from None
    if CAPTURED.name in table.column_names and table.column(CAPTURED.name).null_count == table.num_rows:
        table = table.drop_columns([CAPTURED.name])
    elif CAPTURED.name in table.column_names and table.column(CAPTURED.name).null_count:
        raise BlockRefused(f"{CAPTURED.name} is missing in some records; give it in all, or in none")
    try:
        table.validate(full=True)  # the parser of JSON lets bytes through that are no text
    except pa.ArrowException as problem:
        raise BlockRefused(f"the body is not what the stream expects: {problem}") from None
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _read_json(body: bytes, schema: pa.Schema) -> pa.Table:
    # Arrow reads dates from JSON as numbers alone; as text they are cast later
    as_read = pa.schema([field.with_type(pa.string()) if field.type == pa.date32() else field for field in schema])
    return pyarrow.json.read_json(
        io.BytesIO(body),
        # one piece: a record may be of any length
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(body) + 1),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=as_read, unexpected_field_behavior="error"),
    )


def _unexpected(body: bytes, schema: pa.Schema) -> str:
    """The field of a record that the stream does not have, in words; Arrow says only that there is one."""
    for line in body.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        unknown = [name for name in record if name not in schema.names] if isinstance(record, dict) else []
        if unknown:
            return f"field {unknown[0][:60]!r}"
    return "a field inside of a column"


def _names(schema: pa.Schema) -> str:
    return ", ".join(schema.names)


def _read_csv(body: bytes, schema: pa.Schema) -> pa.Table:
    table = pyarrow.csv.read_csv(
        io.BytesIO(body),
        read_options=pyarrow.csv.ReadOptions(use_threads=False, block_size=len(body) + 1),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    if len(set(table.column_names)) < table.num_columns:
        raise BlockRefused("the CSV has a column twice")
    unknown = [name for name in table.column_names if name not in schema.names]
    if unknown:
        raise BlockRefused(
            f"column {unknown[0][:60]!r} of the CSV is not in the stream, which has {_names(schema)}; the "
            "first line must name the columns"
        )
    return table
