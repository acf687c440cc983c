"""A block: records of one source, in a row, as they travel and as they are stored. Specified in docs/staging-format.md.

    header 80 bytes | stream, source, incarnation | zeros to 8 | payload | zeros to 8

The payload is one record batch as an Arrow IPC message, whole, perhaps compressed. Header and payload have a checksum
each (CRC-32), so a header can be trusted before its payload is touched. Staging changes two fields of a header when it
stores a block (`position`, `synced`) and never the payload: the checksum that the source computed is the one that the
reader compares.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import pyarrow as pa

from ..errors import BlockDamaged, BlockRefused, BlockTooLarge, InputError
from .columns import CAPTURED
from .message import check_message

MAGIC = b"MSBK"
VERSION = 1
# magic, version, codec, flags, header bytes, columns | payload, expanded, rows, first, position, synced | name lengths,
# two bytes unused, checksum of the payload, checksum of all that stands before it and of the names
_HEADER = struct.Struct("<4sBBHII QQQQQQ HHHH II")
_LENGTHS = struct.Struct("<4sBBHIIQ")
FIXED = _HEADER.size
LONGEST_HEADER = FIXED + 3 * 128 + 8

Compression = Literal["none", "lz4", "zstd"]
CODECS: tuple[Compression, ...] = ("none", "lz4", "zstd")
_ARROW_CODECS = {"lz4": "lz4_raw", "zstd": "zstd"}


@dataclass(frozen=True)
class Limits:
    """What a block may be, checked before it is expanded: bytes as sent, bytes expanded, ratio of both, records.

    A block that expands to less than `free` bytes may have any ratio: constant columns compress well.
    """

    payload: int = 32 << 20
    expanded: int = 128 << 20
    ratio: int = 200
    free: int = 1 << 20
    rows: int = 5_000_000

    def check(self, *, payload: int, expanded: int, rows: int = 0) -> None:
        if payload > self.payload:
            raise BlockTooLarge(
                f"a block of {payload:,} bytes is above the limit of {self.payload:,}; send smaller ones"
            )
        if expanded > self.expanded:
            raise BlockTooLarge(f"a block that expands to {expanded:,} bytes is above the limit of {self.expanded:,}")
        if expanded > self.free and expanded > payload * self.ratio:
            raise BlockTooLarge(f"a block that expands {expanded // max(1, payload):,}-fold is above {self.ratio}-fold")
        if rows > self.rows:
            raise BlockTooLarge(f"a block of {rows:,} records is above the limit of {self.rows:,}")


@dataclass(frozen=True)
class Block:
    """Records `first`, `first + 1`, ... that one source of one stream sends; `incarnation` names the run of numbers."""

    stream: str
    source: str
    incarnation: str
    first: int
    batch: pa.RecordBatch

    @property
    def rows(self) -> int:
        return self.batch.num_rows

    @property
    def end(self) -> int:
        """The number after that of the last record."""
        return self.first + self.batch.num_rows

    def after(self, number: int) -> Block:
        """The same block without the records below this number."""
        return replace(self, first=number, batch=self.batch.slice(number - self.first))

    def encode(self, compression: Compression = "none") -> tuple[Header, pa.Buffer]:
        """Header and payload; the batch has the first so many columns of its stream."""
        message = self.batch.serialize()
        payload = message if compression == "none" else _codec(compression).compress(message)
        return Header(
            stream=self.stream,
            source=self.source,
            incarnation=self.incarnation,
            first=self.first,
            rows=self.rows,
            columns=self.batch.num_columns,
            codec=compression,
            payload=payload.size,
            expanded=message.size,
            checksum=zlib.crc32(payload),
        ), payload


@dataclass(frozen=True)
class Header:
    """What stands before a payload. `position` and `synced` are the log's: see docs/staging-format.md."""

    stream: str
    source: str
    incarnation: str
    first: int
    rows: int
    columns: int
    codec: Compression
    payload: int
    expanded: int
    checksum: int
    position: int = 0
    synced: int = 0

    @property
    def end(self) -> int:
        return self.first + self.rows

    @property
    def length(self) -> int:
        """Bytes of the header with its names."""
        return _padded(FIXED + len(self.stream) + len(self.source) + len(self.incarnation))

    @property
    def block_length(self) -> int:
        """Bytes of the whole block as it is stored."""
        return self.length + _padded(self.payload)

    def pack(self) -> bytes:
        """The header as bytes."""
        names = (self.stream + self.source + self.incarnation).encode("ascii")
        names = names.ljust(self.length - FIXED, b"\0")
        fixed = _HEADER.pack(
            MAGIC,
            VERSION,
            CODECS.index(self.codec),
            0,
            self.length,
            self.columns,
            self.payload,
            self.expanded,
            self.rows,
            self.first,
            self.position,
            self.synced,
            len(self.stream),
            len(self.source),
            len(self.incarnation),
            0,
            self.checksum,
            0,
        )[:-4]
        return fixed + zlib.crc32(names, zlib.crc32(fixed)).to_bytes(4, "little") + names


def join(header: Header, payload: pa.Buffer) -> bytes:
    """A block in one piece, as it travels."""
    return b"".join((header.pack(), payload, bytes(-payload.size % 8)))


def header_bytes(start: bytes | memoryview) -> int:
    """How long the header is that starts with these (at least `FIXED`) bytes; refuses what is no header."""
    if len(start) < FIXED:
        raise BlockRefused(f"{len(start)} bytes are too short for a block")
    magic, version, _, _, length, _, _ = _LENGTHS.unpack_from(start)
    if magic != MAGIC:
        raise BlockRefused(f"this is no block: it begins with {bytes(magic)!r} instead of {MAGIC!r}")
    if version != VERSION:
        raise BlockRefused(f"a block of format {version}, where {VERSION} is known; update this side")
    if not FIXED <= length <= LONGEST_HEADER or length % 8:
        raise BlockDamaged(f"a block with a header of {length} bytes")
    return length


def unpack(buffer: bytes | memoryview) -> Header:
    """The header at the start of a buffer, checked; the payload is not looked at."""
    length = header_bytes(buffer)
    if len(buffer) < length:
        raise BlockDamaged(f"a block that ends after {len(buffer)} of the {length} bytes of its header")
    (
        _, _, codec, flags, _, columns, payload, expanded, rows, first, position, synced,
        stream, source, incarnation, _, checksum, header_checksum,
    ) = _HEADER.unpack_from(buffer)  # fmt: skip
    if zlib.crc32(buffer[FIXED:length], zlib.crc32(buffer[: FIXED - 4])) != header_checksum:
        raise BlockDamaged("the checksum of a block's header does not fit")
    if codec >= len(CODECS) or flags:
        raise BlockRefused(f"a block with codec {codec} and flags {flags:#x}, which are unknown here")
    if _padded(FIXED + stream + source + incarnation) != length:
        raise BlockRefused("the names of a block do not fill its header")
    try:
        names = bytes(buffer[FIXED : FIXED + stream + source + incarnation]).decode("ascii")
    except UnicodeDecodeError:
        raise BlockRefused("the names of a block are not ASCII") from None
    return Header(
        stream=names[:stream],
        source=names[stream : stream + source],
        incarnation=names[stream + source :],
        first=first,
        rows=rows,
        columns=columns,
        codec=CODECS[codec],
        payload=payload,
        expanded=expanded,
        checksum=checksum,
        position=position,
        synced=synced,
    )


def payload_of(header: Header, block: pa.Buffer) -> pa.Buffer:
    """The payload of a whole block; its length and checksum are those of the header."""
    if block.size != header.block_length:
        raise BlockDamaged(f"a block of {block.size} bytes, where its header says {header.block_length}")
    payload = block.slice(header.length, header.payload)
    if zlib.crc32(payload) != header.checksum:
        raise BlockDamaged("the checksum of a block's payload does not fit")
    return payload


def decode(header: Header, payload: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """The records of a payload whose checksum fits; everything about them is checked, as a hostile sender can make
    checksums too. The caller has held the header against its limits."""
    if CAPTURED.name not in schema.names:
        raise BlockRefused(f"a block whose {len(schema)} columns leave out {CAPTURED.name}")
    try:
        if header.codec != "none":
            payload = _codec(header.codec).decompress(payload, header.expanded)
        elif header.expanded != payload.size:
            raise BlockRefused("a block that is not compressed, but says that it expands")
        check_message(payload, rows=header.rows)
        batch = pa.ipc.read_record_batch(payload, schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as problem:
        if isinstance(problem, BlockRefused):
            raise
        raise BlockRefused(f"the payload of a block is no record batch of its schema: {_first_line(problem)}") from None
    if batch.num_rows != header.rows:
        raise BlockRefused(f"a block of {batch.num_rows} records, where its header says {header.rows}")
    if batch.column(CAPTURED.name).null_count:
        raise BlockRefused(f"{CAPTURED.name} is null in a record")
    return batch


def check_compression(compression: str) -> Compression:
    """The name of a codec, if it is one."""
    for name in CODECS:
        if name == compression:
            return name
    raise InputError(f"compression {compression!r} is none of {', '.join(CODECS)}")


@lru_cache
def _codec(name: str) -> pa.Codec:
    return pa.Codec(_ARROW_CODECS[name])


def _padded(length: int) -> int:
    return (length + 7) & -8


def _first_line(problem: BaseException) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]
