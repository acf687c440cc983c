"""The spool: segments of blocks on local disk between an application and the sender of its records.

One process writes, one reads, and the files are all that they share (docs/spool-format.md). Invariants:

1. A segment is named by its number; its header has the schema of all its blocks and the number of its first record.
2. A block is there if it is complete and its checksum fits. Whoever opens the spool to write begins a new segment, so
   what a killed writer left incomplete stays the last thing in its segment, and is never taken for a block.
3. Blocks follow each other without a gap in record numbers, over segments too; a gap means that files were damaged.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import struct
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, SpoolInUse
from ..failpoints import reach

MAGIC = b"MSSPOOL1"
SUFFIX = ".spool"
# what a block holds: plain records, an Arrow record batch, records with tagged values, records of one length as bytes
ROWS, ARROW, TAGGED, PACKED = 1, 2, 3, 4

_PREAMBLE = struct.Struct("<8sII")  # magic, length and checksum of the header
_HEAD = struct.Struct("<II")  # length and checksum of all that follows
_BLOCK = struct.Struct("<QIHBx")  # number of the first record, records, bytes of the cursor, kind
_LEAST = _HEAD.size + _BLOCK.size
_AHEAD = 256 << 10


@dataclass(frozen=True)
class Header:
    """What holds for all blocks of a segment. `schema` is an Arrow schema message without `_captured`."""

    record: int
    incarnation: str
    schema: bytes
    boot: str
    cursor: bytes = b""
    layout: str = ""  # of packed records, in the words of `struct`

    def encoded(self) -> bytes:
        fields = {
            "record": self.record,
            "incarnation": self.incarnation,
            "schema": base64.b64encode(self.schema).decode(),
            "boot": self.boot,
            "cursor": base64.b64encode(self.cursor).decode(),
            "layout": self.layout,
        }
        text = json.dumps(fields).encode()
        return _PREAMBLE.pack(MAGIC, len(text), zlib.crc32(text)) + text


@dataclass(frozen=True)
class SpooledBlock:
    """A block as it was read, and where the next one begins."""

    record: int
    count: int
    kind: int
    payload: bytes
    cursor: bytes
    end: int


def segments(folder: Path) -> dict[int, Path]:
    """The segments of a spool by number, in order."""
    found = {int(path.stem): path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdigit()}
    return dict(sorted(found.items()))


def boot() -> str:
    """A name for this run of the operating system: what was written in it and not synced is still there."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Lock:
    """A file that one process at a time can hold; it goes with the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> bool:
        """Take it, unless somebody else has it."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SegmentReader:
    """Reads the blocks of one segment by position."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = int(path.stem)
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            preamble = os.pread(self._file, _PREAMBLE.size, 0)
            magic, length, checksum = _PREAMBLE.unpack(preamble) if len(preamble) == _PREAMBLE.size else (b"", 0, 0)
            text = os.pread(self._file, length, _PREAMBLE.size)
            if magic != MAGIC or zlib.crc32(text) != checksum:
                raise InputError(f"{path} is not a segment of a spool, or its header is damaged")
        except BaseException:
            os.close(self._file)
            raise
        fields = json.loads(text)
        self.header = Header(
            record=fields["record"],
            incarnation=fields["incarnation"],
            schema=base64.b64decode(fields["schema"]),
            boot=fields["boot"],
            cursor=base64.b64decode(fields["cursor"]),
            layout=fields["layout"],
        )
        self.begin = _PREAMBLE.size + length
        self._base, self._ahead = 0, memoryview(b"")

    def block(self, offset: int) -> SpooledBlock | None:
        """The block at this place, or None if there is no whole one (yet)."""
        # what was read ahead may be older than the file: a block is missed only by reading anew
        return self._parse(offset) or (self._parse(offset) if self._read_ahead(offset) else None)

    def _parse(self, offset: int) -> SpooledBlock | None:
        at = offset - self._base
        if not 0 <= at <= len(self._ahead) - _LEAST:
            return None
        length, checksum = _HEAD.unpack_from(self._ahead, at)
        begin, end = at + _HEAD.size, at + _HEAD.size + length
        if length < _BLOCK.size or end > len(self._ahead) or zlib.crc32(self._ahead[begin:end]) != checksum:
            return None
        record, count, cursor, kind = _BLOCK.unpack_from(self._ahead, begin)
        payload = begin + _BLOCK.size + cursor
        return SpooledBlock(
            record=record,
            count=count,
            kind=kind,
            payload=bytes(self._ahead[payload:end]),
            cursor=bytes(self._ahead[begin + _BLOCK.size : payload]),
            end=offset + _HEAD.size + length,
        )

    def _read_ahead(self, offset: int) -> bool:
        """Read from this place on, at least the block there; False if nothing was there to read."""
        head = os.pread(self._file, _HEAD.size, offset)
        if len(head) < _HEAD.size:
            return False
        whole = _HEAD.size + min(_HEAD.unpack(head)[0], os.fstat(self._file).st_size - offset)
        self._base, self._ahead = offset, memoryview(os.pread(self._file, max(whole, _AHEAD), offset))
        return True

    def close(self) -> None:
        os.close(self._file)


class SpoolWriter:
    """Appends blocks. One at a time for a spool; not thread-safe.

    With `durable` a block is on disk when `append` returns; without, it outlives the process but not the machine.
    Without a `schema` the last one of the spool holds; a new spool needs `begin_segment` before its first block.
    A spool without `durable` that saw the machine restart goes on under a new incarnation, since staging may have
    received records that the disk forgot; unless `replayed`: then the source repeats exactly those.
    """

    def __init__(
        self,
        folder: Path,
        schema: bytes | None,
        *,
        segment_bytes: int,
        durable: bool = False,
        replayed: bool = False,
        layout: str = "",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder, self._segment_bytes, self._durable, self._layout = folder, segment_bytes, durable, layout
        self._lock = Lock(folder / "writer.lock")
        if not self._lock.acquire():
            raise SpoolInUse(f"another process writes to the spool {folder}; each source needs a spool of its own")
        self._file = -1
        try:
            self._resume(schema, replayed=replayed)
        except BaseException:
            self._lock.release()
            raise

    def _resume(self, schema: bytes | None, *, replayed: bool) -> None:
        self.record, self.cursor, self.incarnation = 0, b"", uuid.uuid4().hex
        known = segments(self._folder)
        self._sizes = {number: path.stat().st_size for number, path in known.items()}
        self._number = max(known, default=0)
        if known:
            reader = SegmentReader(known[self._number])
            self.record, self.cursor = reader.header.record, reader.header.cursor
            place = reader.begin
            while block := reader.block(place):
                self.record, place = block.record + block.count, block.end
                self.cursor = block.cursor or self.cursor
            reader.close()
            if self._durable or replayed or reader.header.boot == boot():
                self.incarnation = reader.header.incarnation
            schema = schema or reader.header.schema
        self.schema = schema
        self._offset = 0
        if schema is not None:
            self.begin_segment(schema)

    def begin_segment(self, schema: bytes | None = None) -> None:
        """Go on in a new segment, under another schema if one is given."""
        self.schema = schema or self.schema
        if self.schema is None:
            raise InputError("the first segment of a spool needs a schema")
        number = self._number + 1
        header = Header(self.record, self.incarnation, self.schema, boot(), self.cursor, self._layout).encoded()
        path = self._folder / f"{number:012d}{SUFFIX}"
        temporary = path.with_suffix(".tmp")
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if os.write(file, header) < len(header):
                raise OSError(f"{temporary} could not be written whole: is the disk full?")
            if self._durable:
                os.fsync(file)
            os.rename(temporary, path)
            if self._durable:
                _sync_folder(self._folder)
        except BaseException:
            os.close(file)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self._number, self._offset = file, number, len(header)
        self._sizes[number] = self._offset

    def append(self, kind: int, count: int, payload: bytes, *, cursor: bytes = b"") -> int:
        """Write a block and return its bytes; an OSError leaves the spool as it was."""
        reach("source.before-spool")
        if self._offset >= self._segment_bytes:
            self.begin_segment()
        head = _BLOCK.pack(self.record, count, len(cursor), kind) + cursor
        length = len(head) + len(payload)
        whole = _HEAD.size + length
        parts = [_HEAD.pack(length, zlib.crc32(payload, zlib.crc32(head))), head, payload]
        try:
            written = os.writev(self._file, parts)
            while written < whole:  # a disk that fills up takes a part of it first, and refuses the rest
                written += os.write(self._file, b"".join(parts)[written:])
            if self._durable:
                os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._offset)
            raise
        self._offset += whole
        self._sizes[self._number] = self._offset
        self.record += count
        self.cursor = cursor or self.cursor
        reach("source.after-spool")
        return whole

    def depth(self, segment: int, offset: int) -> int:
        """Bytes from this place to the end."""
        self._sizes = {number: size for number, size in self._sizes.items() if number >= segment}
        return max(0, sum(self._sizes.values()) - (offset if segment in self._sizes else 0))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._lock.release()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
