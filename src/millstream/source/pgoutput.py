"""Messages of PostgreSQL's logical replication: what `pgoutput` (protocol version 1) sends, read and nothing more.

See "Logical Replication Message Formats" in PostgreSQL's manual. Values come as text.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

_DATA = struct.Struct(">xQQQ")  # XLogData: start, end of log, time
_KEEPALIVE = struct.Struct(">xQQB")
_STATUS = struct.Struct(">cQQQQB")
_BEGIN = struct.Struct(">cQQI")
_COMMIT = struct.Struct(">cBQQQ")
_U16, _U32 = struct.Struct(">H"), struct.Struct(">I")
_POSTGRES_EPOCH = 946_684_800_000_000  # microseconds from 1970 to 2000


class Column(NamedTuple):
    """A column of a table: its name, the number of its type and the modifier that holds precision and scale."""

    name: str
    oid: int
    modifier: int
    key: bool = False


@dataclass(frozen=True)
class Relation:
    """A table as it is from now on."""

    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]


class Change(NamedTuple):
    """A row that was inserted, updated or deleted. A value is text or None; `unchanged` lists columns not sent."""

    operation: str
    relation: int
    values: list[str | None]
    unchanged: list[int]


class Begin(NamedTuple):
    """A transaction begins; `final` is where it was committed, `time` when, in microseconds since 1970."""

    final: int
    time: int


class Commit(NamedTuple):
    """The transaction is complete; `end` is the place in the log behind it."""

    end: int


class Truncate(NamedTuple):
    """Tables were emptied."""

    relations: list[int]


class Keepalive(NamedTuple):
    """The server lives, and its log has come to `end`."""

    end: int
    answer: bool


Message = Relation | Change | Begin | Commit | Truncate


def unwrap(data: bytes) -> Keepalive | bytes:
    """What the replication stream carries: a sign of life, or a message of the plugin."""
    if data[:1] == b"k":
        end, _, answer = _KEEPALIVE.unpack_from(data)
        return Keepalive(end, bool(answer))
    return data[1 + 24 :]


def status(flushed: int, *, now: int, ask: bool = False) -> bytes:
    """What tells the server that it may forget its log up to here, and perhaps asks for an answer.

    `now` is in microseconds since 1970.
    """
    return _STATUS.pack(b"r", flushed, flushed, flushed, now - _POSTGRES_EPOCH, ask)


def decode(data: bytes) -> Message | None:
    """A message; None for those that say nothing about rows (types, origins, messages of applications)."""
    kind = data[:1]
    if kind == b"I":
        values, unchanged, _ = _tuple(data, 6)
        return Change("insert", _U32.unpack_from(data, 1)[0], values, unchanged)
    if kind == b"U":
        return _update(data)
    if kind == b"D":
        values, unchanged, _ = _tuple(data, 6)
        return Change("delete", _U32.unpack_from(data, 1)[0], values, unchanged)
    if kind == b"B":
        _, final, time, _ = _BEGIN.unpack_from(data)
        return Begin(final, time + _POSTGRES_EPOCH)
    if kind == b"C":
        return Commit(_COMMIT.unpack_from(data)[3])
    if kind == b"R":
        return _relation(data)
    if kind == b"T":
        count = _U32.unpack_from(data, 1)[0]
        return Truncate([_U32.unpack_from(data, 6 + 4 * number)[0] for number in range(count)])
    return None


def _update(data: bytes) -> Change:
    place, old = 5, None
    if data[5:6] in (b"K", b"O"):  # the key or the whole row as it was
        old, _, place = _tuple(data, 6)
    values, unchanged, _ = _tuple(data, place + 1)
    if old is not None and data[5:6] == b"O":
        values = [before if number in unchanged else now for number, (before, now) in enumerate(zip(old, values))]  # noqa: B905
        unchanged = []
    return Change("update", _U32.unpack_from(data, 1)[0], values, unchanged)


def _tuple(data: bytes, place: int) -> tuple[list[str | None], list[int], int]:
    """The values of a row, the columns that were not sent, and the place behind the row."""
    count = _U16.unpack_from(data, place)[0]
    place += 2
    values: list[str | None] = []
    unchanged: list[int] = []
    for number in range(count):
        kind = data[place]
        place += 1
        if kind == 0x74:  # t: text
            length = _U32.unpack_from(data, place)[0]
            values.append(data[place + 4 : place + 4 + length].decode())
            place += 4 + length
        else:
            values.append(None)
            if kind == 0x75:  # u: a large value that the update did not touch
                unchanged.append(number)
    return values, unchanged, place


def _relation(data: bytes) -> Relation:
    oid = _U32.unpack_from(data, 1)[0]
    schema, place = _text(data, 5)
    name, place = _text(data, place)
    count = _U16.unpack_from(data, place + 1)[0]
    place += 3
    columns = []
    for _ in range(count):
        key = data[place] & 1
        column, place = _text(data, place + 1)
        kind, modifier = struct.unpack_from(">Ii", data, place)
        columns.append(Column(column, kind, modifier, bool(key)))
        place += 8
    return Relation(oid, schema, name, tuple(columns))


def _text(data: bytes, place: int) -> tuple[str, int]:
    end = data.index(b"\0", place)
    return data[place:end].decode(), end + 1
