"""A segment: one file of a log, named by the position of its first record. Specified in docs/staging-format.md.

    start: magic, version, length, checksum | JSON: log, stream, position, sources | block | block | ...

The JSON has the next record number of each source at the start of the segment, so that the newest segment alone is
enough to know them all, and older ones can go.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import CorruptLog, MillstreamError
from .block import FIXED, LONGEST_HEADER, MAGIC, Header, header_bytes, payload_of, unpack
from .durable import put_file

SUFFIX = ".log"
_MAGIC = b"MSSG"
_VERSION = 1
_START = struct.Struct("<4sB3xII")
_CHUNK = 4 << 20
_LONGEST_START = 64 << 20


@dataclass(frozen=True)
class Start:
    """What a segment says at its start; `length` is how many bytes it takes."""

    log: str
    stream: str
    position: int
    sources: dict[tuple[str, str], int]
    length: int


@dataclass(frozen=True)
class Damage:
    """Where a segment stops to make sense, and why."""

    offset: int
    why: str


def segment_path(directory: Path, position: int) -> Path:
    """The file whose first record has this position."""
    return directory / f"{position:020d}{SUFFIX}"


def create(directory: Path, *, log: str, stream: str, position: int, sources: dict[tuple[str, str], int]) -> Path:
    """A new segment without blocks; durable, with its name, when this returns."""
    content = {
        "log": log,
        "stream": stream,
        "position": position,
        "sources": [[source, incarnation, due] for (source, incarnation), due in sources.items()],
    }
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * (-(_START.size + len(text)) % 8)
    path = segment_path(directory, position)
    begin = _START.pack(_MAGIC, _VERSION, len(text), 0)[:-4]
    put_file(path, begin + zlib.crc32(text, zlib.crc32(begin)).to_bytes(4, "little") + text)
    return path


def read_start(path: Path) -> Start:
    """What a segment says at its start."""
    with path.open("rb") as file:
        try:
            begin = file.read(_START.size)
            magic, version, length, checksum = _START.unpack(begin)
            text = file.read(min(length, _LONGEST_START))
            sound = zlib.crc32(text, zlib.crc32(begin[:-4])) == checksum
            if sound and magic == _MAGIC and version == _VERSION and len(text) == length:
                content: dict[str, Any] = json.loads(text)
                return Start(
                    log=content["log"],
                    stream=content["stream"],
                    position=content["position"],
                    sources={(source, incarnation): due for source, incarnation, due in content["sources"]},
                    length=_START.size + length,
                )
        except (struct.error, ValueError, KeyError):
            pass
    raise damaged(path, Damage(0, "the start of the segment is not what was written"))


def damaged(path: Path, damage: Damage) -> CorruptLog:
    """The error that names the place."""
    return CorruptLog(
        f"{path} is damaged at byte {damage.offset}: {damage.why}. Stored records are lost there and nothing was "
        "changed; restore the file from a copy, or move the directory of the stream away to begin it anew",
        file=str(path),
        offset=damage.offset,
    )


def scan(path: Path, offset: int, *, end: int | None = None) -> Iterator[tuple[int, Header, pa.Buffer] | Damage]:
    """The blocks of a segment from this offset on, with their offsets and checksums compared; or the first damage."""
    number = os.open(path, os.O_RDONLY)
    try:
        end = os.fstat(number).st_size if end is None else end
        chunk, base = b"", offset
        while offset < end:
            wanted = LONGEST_HEADER
            for _ in range(2):  # first for the header, then for the whole block
                if offset + wanted > base + len(chunk) and base + len(chunk) < end:
                    chunk, base = _pread(number, min(max(_CHUNK, wanted), end - offset), offset), offset
                view = memoryview(chunk)[offset - base :]
                try:
                    header = unpack(view) if len(view) >= FIXED else None
                except MillstreamError as problem:
                    yield Damage(offset, problem.message)
                    return
                if header is None or header.block_length > end - offset:
                    yield Damage(offset, f"a block is cut off after {end - offset} bytes")
                    return
                wanted = header.block_length
            assert header is not None
            block = pa.py_buffer(chunk).slice(offset - base, min(header.block_length, len(view)))
            try:
                payload_of(header, block)
            except MillstreamError as problem:
                yield Damage(offset, problem.message)
                return
            yield offset, header, block
            offset += header.block_length
    finally:
        os.close(number)


def hop(path: Path, offset: int, *, end: int) -> Iterator[tuple[int, Header]]:
    """The headers of a segment from this offset on; payloads are not read."""
    number = os.open(path, os.O_RDONLY)
    try:
        while offset < end:
            try:
                header = unpack(_pread(number, LONGEST_HEADER, offset))
            except MillstreamError as problem:
                raise damaged(path, Damage(offset, problem.message)) from None
            yield offset, header
            offset += header.block_length
    finally:
        os.close(number)


def known_synced(path: Path, offset: int) -> int:
    """The largest `synced` of any sound header that stands after this offset, wherever it begins; 0 if none does."""
    with path.open("rb") as file:
        file.seek(offset)
        rest = file.read()
    found, at = 0, rest.find(MAGIC, 1)
    while at >= 0:
        try:
            view = memoryview(rest)[at : at + LONGEST_HEADER]
            if len(view) >= header_bytes(view):
                found = max(found, unpack(view).synced)
        except MillstreamError:
            pass
        at = rest.find(MAGIC, at + 1)
    return found


def _pread(number: int, length: int, offset: int) -> bytes:
    content = os.pread(number, length, offset)
    while len(content) < length:
        more = os.pread(number, length - len(content), offset + len(content))
        if not more:
            break
        content += more
    return content
