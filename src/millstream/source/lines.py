"""Lines of text as Arrow: CSV and JSON lines, with the bad lines set aside.

All work is Arrow's, on whole chunks; a line that Arrow refuses is found by halving the chunk.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.json as json

from ..staging.columns import CAPTURED, stored_schema

Bad = tuple[int, str, str]  # number of the line in the chunk, reason, text
Format = Literal["csv", "jsonl"]


class LineParser(Protocol):
    """Makes batches of chunks of whole lines."""

    def header(self, line: bytes) -> None:
        """Take the first line of a file, if that is what the format has there."""

    def parse(self, chunk: bytes) -> tuple[pa.RecordBatch | None, list[Bad]]:
        """The good lines of a chunk, and the bad ones."""


class CsvLines:
    """Comma-separated values, one record in a line. Columns by the file's first line, or those of the schema."""

    has_header: bool

    def __init__(self, schema: pa.Schema | None, *, header: bool = True, delimiter: str = ",") -> None:
        self._schema = None if schema is None else _own(schema)
        self.has_header = header
        self._delimiter = delimiter
        self._names: list[str] = [] if self._schema is None else self._schema.names

    def header(self, line: bytes) -> None:
        options = csv.ParseOptions(delimiter=self._delimiter)
        self._names = csv.read_csv(io.BytesIO(line.rstrip(b"\r\n") + b"\n"), parse_options=options).column_names

    def parse(self, chunk: bytes) -> tuple[pa.RecordBatch | None, list[Bad]]:
        bad: list[Bad] = []
        lines = pa.array(chunk.split(b"\n")[: -1 if chunk.endswith(b"\n") else None], pa.binary())
        number = np.arange(len(lines))
        valid = _is_text(lines)
        keep = valid & ~pc.is_in(lines, pa.array([b"", b"\r"], pa.binary())).to_numpy(zero_copy_only=False)
        bad += [(int(place), "the line is not UTF-8", repr(lines[place].as_py())) for place in np.flatnonzero(~valid)]
        if b'"' in chunk:
            # an odd quote would swallow the lines behind it
            odd = (pc.count_substring(lines, '"').to_numpy() % 2 == 1) & keep
            bad += [
                (int(place), "a quote is not closed in the line", _text(lines, place)) for place in np.flatnonzero(odd)
            ]
            keep &= ~odd
        lines, number = lines.filter(pa.array(keep)), number[keep]
        if not len(lines):
            return None, bad
        wrong: dict[int, str] = {}

        def misfit(row: csv.InvalidRow) -> str:
            wrong[row.number - 1] = f"{row.actual_columns} values for {row.expected_columns} columns"
            return "skip"

        table = csv.read_csv(
            pa.BufferReader(pa.py_buffer(b"\n".join(lines.to_pylist()) + b"\n")),
            read_options=csv.ReadOptions(column_names=self._names, use_threads=False, block_size=1 << 30),
            parse_options=csv.ParseOptions(
                delimiter=self._delimiter, invalid_row_handler=misfit, ignore_empty_lines=False
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(self._names, pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        bad += [(int(number[place]), reason, _text(lines, place)) for place, reason in wrong.items()]
        fits = np.delete(np.arange(len(lines)), sorted(wrong))
        if self._schema is None or any(name not in self._schema.names for name in self._names):
            self._learn(table)
        batch, misfits = typed(table, self._schema)
        bad += [(int(number[fits[place]]), reason, _text(lines, fits[place])) for place, reason in misfits]
        return batch, sorted(bad)

    def _learn(self, table: pa.Table) -> None:
        """Infer the types of columns that are new."""
        known = {} if self._schema is None else {field.name: field for field in self._schema}
        fields = [known.get(name) or pa.field(name, inferred(table.column(name))) for name in table.column_names]
        fields += [field for name, field in known.items() if name not in table.column_names]
        self._schema = _own(stored_schema(pa.schema(fields)))


class JsonLines:
    """A JSON object in each line. New names become new columns, unless the schema was given."""

    has_header = False

    def __init__(self, schema: pa.Schema | None, *, fixed: bool = False) -> None:
        self._schema = None if schema is None else _own(schema)
        self._behaviour = "error" if fixed else "infer"

    def header(self, line: bytes) -> None: ...

    def parse(self, chunk: bytes) -> tuple[pa.RecordBatch | None, list[Bad]]:
        lines = chunk.split(b"\n")[: -1 if chunk.endswith(b"\n") else None]
        numbered = [(number, line) for number, line in enumerate(lines) if line.strip()]
        tables, bad = self._read(numbered)
        if not tables:
            return None, bad
        table = pa.concat_tables(tables, promote_options="default").combine_chunks()
        self._schema = _own(stored_schema(_named(table.schema, self._schema)))
        batch, misfits = typed(table, self._schema)
        wrong = {number for number, _, _ in bad}
        good = [item for item in numbered if item[0] not in wrong]
        bad += [(good[place][0], reason, good[place][1].decode()) for place, reason in misfits]
        return batch, sorted(bad)

    def _read(self, lines: list[tuple[int, bytes]]) -> tuple[list[pa.Table], list[Bad]]:
        if not lines:
            return [], []
        try:
            return [
                json.read_json(
                    pa.BufferReader(b"\n".join(line for _, line in lines) + b"\n"),
                    read_options=json.ReadOptions(use_threads=False, block_size=1 << 30),
                    parse_options=json.ParseOptions(
                        explicit_schema=self._schema, unexpected_field_behavior=self._behaviour
                    ),
                )
            ], []
        except (pa.ArrowException, UnicodeDecodeError) as problem:
            if len(lines) == 1:
                number, line = lines[0]
                return [], [(number, _first_line(problem), line.decode("utf-8", "backslashreplace"))]
        half = len(lines) // 2
        left, bad_left = self._read(lines[:half])
        if self._schema is None and left:
            self._schema = _own(stored_schema(_named(left[0].schema, None)))
        right, bad_right = self._read(lines[half:])
        return left + right, bad_left + bad_right


def parser(kind: Format, schema: pa.Schema | None, *, given: bool, header: bool, delimiter: str) -> LineParser:
    """The parser of a format. `given` says that the schema is the user's, not one that was inferred before."""
    if kind == "csv":
        return CsvLines(schema, header=header, delimiter=delimiter)
    return JsonLines(schema, fixed=given)


def typed(table: pa.Table, schema: pa.Schema | None) -> tuple[pa.RecordBatch, list[tuple[int, str]]]:
    """The table as one batch of the schema, and the rows that do not fit by place and reason."""
    assert schema is not None
    bad: dict[int, str] = {}
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name).combine_chunks()
        column = (
            column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
        )
        done, misfits = cast(column, field)
        bad.update(misfits)
        columns.append(done)
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))
    if bad:
        mask = np.ones(batch.num_rows, dtype=bool)
        mask[list(bad)] = False
        batch = batch.filter(pa.array(mask))
    return batch, sorted(bad.items())


def cast(
    column: pa.Array, field: pa.Field, convert: Callable[[pa.Array, pa.DataType], pa.Array] | None = None
) -> tuple[pa.Array, dict[int, str]]:
    """The column in the type of the field; values that do not fit are null, and listed by place."""
    bad: dict[int, str] = {}
    change = convert or _convert

    def halves(part: pa.Array, begin: int) -> list[pa.Array]:
        try:
            return [change(part, field.type)]
        except (pa.ArrowException, ValueError) as problem:
            if len(part) == 1:
                bad[begin] = f"column {field.name} is {field.type}: {_first_line(problem)}"
                return [pa.nulls(1, field.type)]
            half = len(part) // 2
            return halves(part[:half], begin) + halves(part[half:], begin + half)

    whole = pa.concat_arrays(halves(column, 0)) if len(column) else pa.array([], field.type)
    if not field.nullable and whole.null_count:
        nulls = np.flatnonzero(whole.is_null().to_numpy(zero_copy_only=False))
        bad.update({int(place): f"column {field.name} must not be null" for place in nulls if place not in bad})
    return whole, bad


def inferred(column: pa.ChunkedArray) -> pa.DataType:
    """The narrowest of whole number, number, truth value, date, timestamp and text that all values fit."""
    for kind in (pa.int64(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us")):
        if column.null_count == len(column):
            break
        try:
            column.cast(kind)
        except pa.ArrowException:
            continue
        return kind
    return pa.string()


def _convert(part: pa.Array, kind: pa.DataType) -> pa.Array:
    return part if part.type == kind else part.cast(kind)


def _own(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name != CAPTURED.name])


def _named(schema: pa.Schema, known: pa.Schema | None) -> pa.Schema:
    """A schema that Arrow inferred, with text where it saw only nulls and with known columns as they are."""
    there = {} if known is None else {field.name: field for field in known}
    kinds: list[Any] = [
        there.get(field.name) or (field.with_type(pa.string()) if pa.types.is_null(field.type) else field)
        for field in schema
    ]
    return pa.schema(kinds)


def _is_text(lines: pa.Array) -> np.ndarray[Any, Any]:
    try:
        lines.cast(pa.string())
        return np.ones(len(lines), dtype=bool)
    except pa.ArrowException:
        return np.array([_decodes(line) for line in lines.to_pylist()])


def _decodes(line: bytes) -> bool:
    try:
        line.decode()
        return True
    except UnicodeDecodeError:
        return False


def _text(lines: pa.Array, place: Any) -> str:
    return str(lines[int(place)].as_py().decode("utf-8", "backslashreplace"))


def _first_line(problem: BaseException) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]
