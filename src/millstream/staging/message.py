"""A look into an Arrow IPC message before Arrow reads it: is it one plain record batch, and of how many rows?

Arrow expands compressed buffers while it reads, whatever size they claim, so a message from outside must be known not
to be compressed inside. The message is a FlatBuffer: a table is found by an offset, its fields by a table of offsets
(vtable) that lies before it. See format/Message.fbs of Apache Arrow for the numbers of the fields.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from ..errors import BlockRefused

_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3  # MessageHeader
# fields of a Message
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
# fields of a RecordBatch
_LENGTH, _COMPRESSION = 0, 3

_U16, _I32, _U32, _I64 = (struct.Struct(code) for code in ("<H", "<i", "<I", "<q"))


def check_message(message: pa.Buffer, *, rows: int) -> None:
    """Refuse a buffer that is not exactly one record batch of so many rows whose buffers are not compressed."""
    view = memoryview(message)
    try:
        marker, length = _U32.unpack_from(view, 0)[0], _I32.unpack_from(view, 4)[0]
        if marker != _CONTINUATION or not 0 < length <= len(view) - 8:
            raise BlockRefused("the payload of a block is no Arrow message")
        table = view[8 : 8 + length]
        root = _U32.unpack_from(table, 0)[0]
        kind = _field(table, root, _HEADER_TYPE)
        header = _field(table, root, _HEADER)
        if kind is None or header is None or table[kind] != _RECORD_BATCH:
            raise BlockRefused("the payload of a block is an Arrow message, but no record batch")
        body = _field(table, root, _BODY_LENGTH)
        if body is None or _I64.unpack_from(table, body)[0] != len(view) - 8 - length:
            raise BlockRefused("the payload of a block is longer or shorter than its record batch")
        batch = header + _U32.unpack_from(table, header)[0]
        if _field(table, batch, _COMPRESSION) is not None:
            raise BlockRefused("the record batch of a block is compressed inside; compress the block instead")
        counted = _field(table, batch, _LENGTH)
        if (0 if counted is None else _I64.unpack_from(table, counted)[0]) != rows:
            raise BlockRefused(f"the record batch of a block does not have the {rows} records of its header")
    except (struct.error, IndexError):
        raise BlockRefused("the payload of a block is a damaged Arrow message") from None


def _field(buffer: memoryview, table: int, number: int) -> int | None:
    """Where a field of a table lies; None if it has its default."""
    vtable = table - _I32.unpack_from(buffer, table)[0]
    if vtable < 0:
        raise IndexError
    if 4 + 2 * number >= _U16.unpack_from(buffer, vtable)[0]:
        return None
    offset = _U16.unpack_from(buffer, vtable + 4 + 2 * number)[0]
    return table + offset if offset else None
