"""The log of a stream: blocks in the order in which they came, in segments, durable before anybody hears of it.

Invariants
1. A position is the number of records before it, since the log began. Block k + 1 begins where block k ends.
2. Bytes below `synced` of the active segment have been fsynced, and so has every older segment.
3. Readers see durable records only; a mark is passed by `sync` only when all that was appended before it is durable.
4. A write that fails leaves the log as it was. An fsync that fails ends the log: what the kernel has dropped by then
   nobody knows, so nothing after it is acknowledged, and fsync is never tried again.

Whoever needs durability first makes it for all who have appended until then (group commit without a thread of its own).
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from .. import failpoints
from ..errors import CorruptLog, MillstreamError, PositionGone, StagingFailed, StagingFull
from .block import Header
from .durable import TEMPORARY, sync_directory
from .segment import SUFFIX, Damage, Start, create, damaged, hop, known_synced, read_start, scan

_SYNCED = struct.Struct("<QQI")
_INDEXED = 256 << 10  # bytes between two entries of the index
_ON_THE_WAY = 64 << 20  # bytes that may wait for an fsync

Sources = dict[tuple[str, str], int]


class Segment:
    """A segment of an open log: where it starts, how long it is, and an index of some of its blocks."""

    def __init__(self, path: Path, start: Start) -> None:
        self.path, self.position, self.begin = path, start.position, start.length
        self.size = start.length
        # positions of some blocks and where they begin; None until somebody reads from a segment that was there before
        self.index: tuple[list[int], list[int]] | None = None

    def note(self, position: int, offset: int) -> None:
        """Put a block into the index if the last entry is far enough away."""
        if self.index is None:
            self.index = ([], [])
        positions, offsets = self.index
        if not offsets or offset - offsets[-1] >= _INDEXED:
            positions.append(position)
            offsets.append(offset)

    def find(self, position: int) -> int:
        """The offset of some block at or before a position."""
        if self.index is None:
            self.index = ([], [])
            for offset, header in hop(self.path, self.begin, end=self.size):
                self.note(header.position, offset)
        positions, offsets = self.index
        at = bisect_right(positions, position) - 1
        return offsets[at] if at >= 0 else self.begin


class Log:
    """The log in a directory. Safe for use by several threads; one process at a time, which the caller sees to.

    `sources` is what each source sends next, kept up to date by `append`.
    """

    def __init__(self, directory: Path, *, log: str, stream: str, segment_bytes: int) -> None:
        self.directory, self.log, self.stream = directory, log, stream
        self._segment_bytes = segment_bytes
        self._changed = threading.Condition()
        self._failure: StagingFailed | None = None
        self._syncing = False
        self._marker = os.open(directory / "synced", os.O_RDWR | os.O_CREAT, 0o600)
        self.cut = 0
        """Bytes of an unacknowledged tail that recovery has cut off."""
        self.on_failure: Callable[[StagingFailed], None] = lambda _: None
        try:
            self._segments = self._open_segments()
            self.sources, self.position = self._recover()
        except BaseException:
            os.close(self._marker)
            raise
        self._number = os.open(self._active.path, os.O_WRONLY)
        os.fdatasync(self._number)
        self.durable = self.position
        self._written = self._synced = 0  # bytes appended, and made durable, since this object was made
        self._synced_size = self._active.size
        self._write_marker(self._active, self._synced_size)

    # writing

    def append(self, header: Header, payload: pa.Buffer) -> int:
        """Put a block at the end; a mark for `sync`. The caller has seen to it that it is the source's next."""
        with self._changed:
            self._check()
            while self._written - self._synced > _ON_THE_WAY:
                self._changed.wait(1.0)
                self._check()
            if self._active.size >= self._segment_bytes:
                self._roll()
            active = self._active
            header = replace(header, position=self.position, synced=self._synced_size)
            try:
                failpoints.reach("staging.before-write")
                self._write([header.pack(), payload, bytes(-payload.size % 8)], active.size)
            except OSError as problem:
                raise self._give_back(problem, active.size) from problem
            active.note(self.position, active.size)
            active.size += header.block_length
            self._written += header.block_length
            self.position += header.rows
            self.sources[header.source, header.incarnation] = header.end
            return self._written

    @property
    def mark(self) -> int:
        """The mark of all that has been appended until now."""
        return self._written

    def sync(self, mark: int) -> None:
        """Return when everything up to this mark is durable."""
        while True:
            with self._changed:
                while self._synced < mark and self._syncing:
                    self._changed.wait()
                if self._synced >= mark:
                    return
                self._check()
                self._syncing = True
                active, size, written, position = self._active, self._active.size, self._written, self.position
            problem: OSError | None = None
            try:
                failpoints.reach("staging.before-fsync")
                os.fdatasync(self._number)
                failpoints.reach("staging.after-fsync")
            except OSError as caught:
                problem = caught
            with self._changed:
                self._syncing = False
                if problem is None:
                    self._passed(active, size=size, written=written, position=position)
                else:
                    self._fail(problem)
                self._changed.notify_all()

    def close(self) -> None:
        """Make everything durable and close the files."""
        try:
            if self._failure is None:
                self.sync(self.mark)
        finally:
            with self._changed:
                if self._failure is None:
                    self._failure = StagingFailed(f"the log of stream {self.stream} is closed")
                    os.close(self._number)
                    os.close(self._marker)

    # reading

    @property
    def start(self) -> int:
        """The oldest position that is still there."""
        return self._segments[0].position

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    def read(self, start: int, end: int) -> Iterator[tuple[Header, pa.Buffer]]:
        """The blocks that hold positions `start` up to (not with) `end`, in order; checksums are compared."""
        if end > self.durable or start > end:
            raise PositionGone(
                f"stream {self.stream} has positions {self.start} to {self.durable}, not {start} to {end}; was the "
                "staging directory replaced since? Then the flow needs a new checkpoint"
            )
        while start < end:
            segment, size = self._segment_of(start)
            try:
                offset = segment.find(start)
                for found in scan(segment.path, offset, end=size):
                    if isinstance(found, Damage):
                        raise damaged(segment.path, found)
                    offset, header, block = found
                    if header.position >= end:
                        return
                    if header.position > start:
                        raise damaged(segment.path, Damage(offset, f"position {start} is missing"))
                    if header.position + header.rows > start:
                        yield header, block
                        start = header.position + header.rows
            except FileNotFoundError:
                continue  # retention was quicker; says so in the next turn
            if start < end and self._segment_of(start)[0] is segment:
                raise damaged(segment.path, Damage(offset, f"position {start} is missing"))

    # retention

    def segments(self) -> list[tuple[int, int, int]]:
        """First position, end and bytes of each segment, oldest first; the last is the active one."""
        with self._changed:
            ends = [*(segment.position for segment in self._segments[1:]), self.position]
            return [(one.position, end, one.size) for one, end in zip(self._segments, ends, strict=True)]

    def drop_before(self, position: int) -> int:
        """Remove the segments that end at or below a position, never the active one; how many."""
        with self._changed:
            ends = [segment.position for segment in self._segments[1:]]
            count = bisect_right(ends, position)
            gone, self._segments = self._segments[:count], self._segments[count:]
        for segment in gone:
            segment.path.unlink(missing_ok=True)
        if gone:
            sync_directory(self.directory)
        return len(gone)

    # inside; the lock is held

    @property
    def _active(self) -> Segment:
        return self._segments[-1]

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, problem: OSError) -> None:
        if self._failure is None:
            self._failure = StagingFailed(
                f"stream {self.stream}: fsync of {self._active.path} failed ({problem.strerror}); nothing since was "
                "acknowledged. Look after the disk, then start staging again: sources repeat what is missing"
            )
            self._changed.notify_all()
            self.on_failure(self._failure)

    def _write(self, parts: list[bytes | pa.Buffer], offset: int) -> None:
        views = [memoryview(part) for part in parts if len(part)]
        while views:
            written = os.pwritev(self._number, views, offset)
            offset += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if views:
                views[0] = views[0][written:]

    def _give_back(self, problem: OSError, size: int) -> MillstreamError:
        """Undo a write that failed; the error to raise."""
        try:
            os.ftruncate(self._number, size)
        except OSError as worse:
            self._fail(worse)
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            return StagingFull(f"no room to store a block of stream {self.stream}: {problem.strerror}; free some")
        self._fail(problem)
        return self._failure or StagingFailed(str(problem))

    def _roll(self) -> None:
        """Make the active segment durable and begin a new one."""
        while self._syncing:
            self._changed.wait()
            self._check()
        if self._active.position == self.position:
            return
        try:
            os.fdatasync(self._number)
        except OSError as problem:
            self._fail(problem)
            self._check()
        self._passed(self._active, size=self._active.size, written=self._written, position=self.position)
        self._changed.notify_all()
        try:
            path = create(
                self.directory, log=self.log, stream=self.stream, position=self.position, sources=self.sources
            )
            number = os.open(path, os.O_WRONLY)
        except OSError as problem:
            raise StagingFull(f"no new segment for stream {self.stream}: {problem.strerror}") from problem
        failpoints.reach("staging.new-segment")
        os.close(self._number)
        self._number = number
        self._segments.append(Segment(path, read_start(path)))
        self._synced_size = self._active.size
        self._write_marker(self._active, self._synced_size)

    def _passed(self, segment: Segment, *, size: int, written: int, position: int) -> None:
        """Everything up to here is durable."""
        if written > self._synced:
            self._synced, self.durable = written, position
        if segment is self._active and size > self._synced_size:
            self._synced_size = size
            self._write_marker(segment, size)

    def _write_marker(self, segment: Segment, size: int) -> None:
        """Note how far the active segment is durable. Not synced itself: it survives the process, not the machine."""
        numbers = struct.pack("<QQ", segment.position, size)
        os.pwrite(self._marker, _SYNCED.pack(segment.position, size, zlib.crc32(numbers)), 0)

    # opening

    def _open_segments(self) -> list[Segment]:
        for left in self.directory.glob(f"*{SUFFIX}{TEMPORARY}"):
            left.unlink()
        paths = sorted(self.directory.glob(f"*{SUFFIX}"))
        if not paths:
            paths = [create(self.directory, log=self.log, stream=self.stream, position=0, sources={})]
        segments = []
        for path in paths:
            start = read_start(path)
            if start.log != self.log or f"{start.position:020d}{SUFFIX}" != path.name:
                raise damaged(path, Damage(0, "the segment is of another log or was renamed"))
            segments.append(Segment(path, start))
            segments[-1].size = path.stat().st_size
        return segments

    def _recover(self) -> tuple[Sources, int]:
        """Read the active segment: cut off what was never acknowledged, refuse anything else that is wrong."""
        segment = self._active
        synced = self._read_marker(segment)
        sources, position = read_start(segment.path).sources, segment.position
        size, segment.size, damage = segment.size, segment.begin, None
        for found in scan(segment.path, segment.begin):
            if isinstance(found, Damage):
                damage = found
                break
            offset, header, _ = found
            if header.position != position or header.stream != self.stream:
                raise damaged(segment.path, Damage(offset, f"position {position} is missing"))
            segment.note(position, offset)
            segment.size = offset + header.block_length
            position += header.rows
            sources[header.source, header.incarnation] = header.end
            synced = max(synced, header.synced)
        if damage is not None:
            synced = max(synced, known_synced(segment.path, damage.offset))
        if segment.size < synced:
            raise damaged(segment.path, damage or Damage(segment.size, f"bytes up to {synced} are missing"))
        if segment.size < size:
            os.truncate(segment.path, segment.size)
            self.cut = size - segment.size
        return sources, position

    def _read_marker(self, segment: Segment) -> int:
        """How far the active segment was durable, if the marker knows."""
        content = os.pread(self._marker, _SYNCED.size, 0)
        if len(content) == _SYNCED.size:
            position, size, checksum = _SYNCED.unpack(content)
            if zlib.crc32(content[:16]) == checksum:
                if position > segment.position:
                    raise CorruptLog(
                        f"{self.directory}: the segment that begins at position {position} is missing; restore it "
                        "from a copy",
                        file=str(segment.path),
                        offset=segment.size,
                    )
                return size if position == segment.position else 0
        return 0

    def _segment_of(self, position: int) -> tuple[Segment, int]:
        """The segment that holds a position, and how much of it may be read."""
        with self._changed:
            at = bisect_right([segment.position for segment in self._segments], position) - 1
            if at < 0:
                raise PositionGone(
                    f"position {position} of stream {self.stream} is gone: retention has dropped all below {self.start}"
                )
            segment = self._segments[at]
            return segment, self._synced_size if segment is self._active else segment.size
