"""The wire format of a part: an Arrow IPC stream with its checksum and number of rows, checked before it is believed.

A part comes from the network: first its checksum, then its messages (sizes, no dictionaries, how large it is when
expanded), then every value in it is validated, then its columns are compared with the table's.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from ..errors import MillstreamError, PartDamaged, PartRefused, TableMismatch, UnsupportedType
from ..staging.columns import type_text
from ..units import format_bytes
from .spec import TableSpec

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
CHECKSUM, ROWS = "Millstream-Checksum", "Millstream-Rows"

Data: TypeAlias = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]


@dataclass(frozen=True)
class Limits:
    """What one part may be at most."""

    part_bytes: int = 64 << 20
    rows: int = 16 << 20


@dataclass(frozen=True)
class Encoded:
    """A part ready to be sent."""

    body: pa.Buffer
    rows: int
    checksum: str


def encode(data: Data) -> Encoded:
    """Rows as the body of a part."""
    if isinstance(data, pa.Table):
        schema, batches = data.schema, data.to_batches()
    elif isinstance(data, pa.RecordBatch):
        schema, batches = data.schema, [data]
    else:
        batches = list(data)
        if not batches:
            raise PartRefused("a part without a single batch has no schema; send an empty batch instead")
        schema = batches[0].schema
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    body = sink.getvalue()
    return Encoded(body, sum(batch.num_rows for batch in batches), checksum(body))


def checksum(body: pa.Buffer | bytes | bytearray | memoryview) -> str:
    """CRC-32 of the body, as it stands in the header."""
    return f"crc32:{zlib.crc32(body):08x}"


def decode(body: pa.Buffer, *, declared: str, rows: int, spec: TableSpec, limits: Limits) -> pa.Table:
    """The rows of a part that can be loaded into the table; `PartDamaged`, `PartRefused` or `TableMismatch` if not."""
    if checksum(body) != declared:
        raise PartDamaged(f"the part arrived with checksum {checksum(body)} and was sent with {declared[:40]!r}")
    if rows > limits.rows:
        raise PartRefused(f"the part has {rows:,} rows; at most {limits.rows:,} fit into one, send several", status=413)
    table = _read(body, spec, limits)
    if table.num_rows != rows:
        raise PartRefused(f"the part has {table.num_rows:,} rows, its header says {rows:,}")
    return table


def _read(body: pa.Buffer, spec: TableSpec, limits: Limits) -> pa.Table:
    try:
        with pa.ipc.open_stream(body) as reader:
            check_columns(reader.schema, spec)  # refuses what expands: dictionaries, views, run ends, nulls
            _check_messages(body, limits)
            batches = list(reader)
        for batch in batches:
            batch.validate(full=True)
        return pa.Table.from_batches(batches, schema=reader.schema)
    except MillstreamError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError) as problem:
        raise PartRefused(f"this is not an Arrow IPC stream: {problem}") from problem


def _check_messages(body: pa.Buffer, limits: Limits) -> None:
    """Refuse what would grow when it is read: compressed bodies and dictionaries."""
    messages = pa.ipc.MessageReader.open_stream(body)
    rows = 0
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return
        if message.type == "dictionary":
            raise PartRefused("a part has no dictionaries; decode the column first")
        if message.type == "record batch":
            length, compressed = _record_batch(memoryview(message.metadata))
            if compressed:
                raise PartRefused("a part is not compressed inside; write it without a codec", status=415)
            rows += length
            if rows > limits.rows:
                raise PartRefused(f"a part has at most {limits.rows:,} rows; send several parts", status=413)


def _record_batch(metadata: memoryview) -> tuple[int, bool]:
    """Rows of a record batch message and whether its body is compressed, from the flatbuffer of the message.

    Message: table {0: version, 1: header type, 2: header, 3: body length}, where header is the table
    RecordBatch {0: length, 1: nodes, 2: buffers, 3: compression}.
    """
    message = _integer(metadata, 0, 4)
    header_at = _slot(metadata, message, 2)
    if not header_at:
        raise PartRefused("a record batch has no header")
    header = header_at + _integer(metadata, header_at, 4)
    length_at = _slot(metadata, header, 0)
    length = _integer(metadata, length_at, 8, signed=True) if length_at else 0
    if length < 0:
        raise PartRefused("a record batch has a negative length")
    return length, _slot(metadata, header, 3) != 0


def _slot(data: memoryview, table: int, number: int) -> int:
    """Where a field of a flatbuffer table is; 0 if the table does not have it."""
    directory = table - _integer(data, table, 4, signed=True)
    at = directory + 4 + 2 * number
    if at + 2 > directory + _integer(data, directory, 2):
        return 0
    offset = _integer(data, at, 2)
    return table + offset if offset else 0


def _integer(data: memoryview, at: int, size: int, *, signed: bool = False) -> int:
    if not 0 <= at <= len(data) - size:
        raise PartRefused("the metadata of a message points outside of it")
    return int.from_bytes(data[at : at + size], "little", signed=signed)


def check_columns(schema: pa.Schema, spec: TableSpec) -> None:
    """`TableMismatch` unless each column of a part is one of the table's, with the same type."""
    differences = []
    for entry in schema:
        text = _type_text(entry)
        if entry.name not in spec.schema.names:
            differences.append(f"column {entry.name[:63]}: the part has {text}, the table does not have it")
        elif text != (wanted := type_text(spec.schema.field(entry.name).type)):
            differences.append(f"column {entry.name}: the table has {wanted}, the part {text}")
    if len(set(schema.names)) != len(schema.names):
        differences.append("a column is there twice")
    differences += [f"key column {name} is missing" for name in spec.key if name not in schema.names]
    if differences:
        raise TableMismatch(
            f"the part does not fit into table {spec.name!r}: {'; '.join(differences)}", differences=differences
        )


def _type_text(entry: pa.Field) -> str:
    if b"ARROW:extension:name" in (entry.metadata or {}):
        return "an extension type"
    try:
        return type_text(entry.type)
    except UnsupportedType:
        return str(entry.type)[:200]


def too_large(size: int, limits: Limits) -> PartRefused:
    """The refusal of a body above the limit."""
    return PartRefused(
        f"a part of {format_bytes(size)} is above the limit of {format_bytes(limits.part_bytes)}; send several parts",
        status=413,
    )
