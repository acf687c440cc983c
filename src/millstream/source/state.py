"""The page that the application and its sender share: how far the sender is, and what both have counted.

The file `state` of a spool is one page, mapped by both processes (docs/spool-format.md). It outlives either of them,
because the page cache does; after a power failure it may be older than the truth, which costs repeats and no records.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError

MAGIC = b"MSSTATE1"
SIZE = 4096
CURSOR_BYTES = 512

# counters of eight bytes each, at fixed places; only one of the two processes writes each of them
COUNTERS = (
    "dropped",  # by the application: records that found the spool full
    "refused",  # by the application: records without a schema to fit
    "ack_segment",  # by the sender, as all that follows: where the last acknowledged record ends
    "ack_offset",
    "ack_record",
    "rejected",
    "repeats",
    "batches",
    "bytes_sent",
    "reconnects",
    "lost",
    "cpu_ns",
    "cpu_records",
    "connected",
    "sleeping",
)
_PLACES = {name: 64 + 8 * number for number, name in enumerate(COUNTERS)}
_SLOTS = (512, 1536)
_SLOT = struct.Struct("<QQQQQ16s16sH")  # generation, segment, offset, record, sequence, incarnations, length of cursor
_ERROR, _ERROR_BYTES = 2560, 512
_NUMBER = struct.Struct("<Q")


@dataclass(frozen=True)
class Checkpoint:
    """Everything before this place in the spool is staged or rejected.

    `record` counts what the application sent, `sequence` what staging numbers: records without the rejected ones,
    since the incarnation began. `incarnation` is the one in use; `written` the one that the segment's header names.
    """

    segment: int = 0
    offset: int = 0
    record: int = 0
    sequence: int = 0
    incarnation: str = "0" * 32
    written: str = "0" * 32
    cursor: bytes = b""


class State:
    """The mapped page. Reading a counter costs a fraction of a microsecond; nothing here blocks."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < SIZE:
                os.ftruncate(descriptor, SIZE)
            self._page = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        if self._page[:8] == bytes(8):
            self._page[:8] = MAGIC
        elif self._page[:8] != MAGIC:
            raise InputError(f"{path} is not the state of a spool; give the spool a directory of its own")
        self._generation = 0

    def get(self, name: str) -> int:
        return int(_NUMBER.unpack_from(self._page, _PLACES[name])[0])

    def put(self, name: str, value: int) -> None:
        _NUMBER.pack_into(self._page, _PLACES[name], value)

    def add(self, name: str, value: int = 1) -> None:
        self.put(name, self.get(name) + value)

    @property
    def sleeping(self) -> bool:
        """Whether the sender waits to be woken."""
        return self._page[_PLACES["sleeping"]] != 0

    @property
    def error(self) -> str:
        """What keeps the sender from sending, empty if nothing does."""
        return self._page[_ERROR : _ERROR + _ERROR_BYTES].rstrip(b"\0").decode("utf-8", "replace")

    @error.setter
    def error(self, text: str) -> None:
        self._page[_ERROR : _ERROR + _ERROR_BYTES] = text.encode()[:_ERROR_BYTES].ljust(_ERROR_BYTES, b"\0")

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint; whoever is killed in the middle leaves the one before it intact."""
        self._generation += 1
        content = _SLOT.pack(
            self._generation,
            checkpoint.segment,
            checkpoint.offset,
            checkpoint.record,
            checkpoint.sequence,
            bytes.fromhex(checkpoint.incarnation),
            bytes.fromhex(checkpoint.written),
            len(checkpoint.cursor),
        )
        content += checkpoint.cursor
        place = _SLOTS[self._generation % 2]
        self._page[place : place + 4 + len(content)] = _crc(content) + content
        for name, value in (
            ("ack_segment", checkpoint.segment),
            ("ack_offset", checkpoint.offset),
            ("ack_record", checkpoint.record),
        ):
            self.put(name, value)

    def load(self) -> Checkpoint | None:
        """The last checkpoint that was kept whole, or None in a new spool."""
        best: tuple[int, Checkpoint] | None = None
        for place in _SLOTS:
            values = _SLOT.unpack_from(self._page, place + 4)
            generation, segment, offset, record, sequence, incarnation, written, length = values
            whole = self._page[place + 4 : place + 4 + _SLOT.size + min(length, CURSOR_BYTES)]
            if not generation or self._page[place : place + 4] != _crc(whole):
                continue
            if best is None or generation > best[0]:
                cursor = whole[_SLOT.size :]
                kept = Checkpoint(segment, offset, record, sequence, incarnation.hex(), written.hex(), cursor)
                best = generation, kept
        if best is None:
            return None
        self._generation = best[0]
        return best[1]

    def sync(self) -> None:
        """Make the page durable."""
        self._page.flush()

    def close(self) -> None:
        self._page.close()


def _crc(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(4, "little")
