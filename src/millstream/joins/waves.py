"""How `auto` reads the rows of many keys: wave by wave, the next waves on their way while one is joined.

    keys, sorted   k1 k2 k3 | k4 k5 | k6 ...
                   wave 1     wave 2   wave 3        each in a buffer of its own

`RowWaves` keep of each segment only the rows that are wanted. Rows with nested columns, files that are not on a local
disk, very large segments and very small budgets have `SegmentWaves`, whose buffers hold the segments themselves.
"""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..kernels import segments as kernel
from ..kernels.flat import flat
from ..kernels.layout import Layout, Node
from ..kernels.pages import PageTable
from ..master import Master
from ..master.part_files import HUGE, PAGE, Memory
from ..master.reader import IN_FLIGHT, IN_FLIGHT_CACHED, DiskBuffer, SegmentReader
from ..master.row_buffer import RowBuffer
from ..stats import JoinStats
from .base import Operator
from .locate import Locator

LARGEST = 8 << 20  # bytes of a buffer of segments
ROWS = 2 << 20  # bytes of a buffer of rows
READ = 64 << 10  # bytes that one read brings through the page cache: they stay in the processor's cache
DIRECT_READ = 400 << 10  # ... from the disk; five such buffers lie in a huge page
LEAST_SHARE = 512  # keys that are worth a wave of their own

Groups = tuple[np.ndarray, np.ndarray, np.ndarray]  # keys, the first row and the number of rows of each


@dataclass(frozen=True)
class Wave:
    """The keys from `low` to `high` have been read: first row (as reference) and number of rows of each, 0 if absent.

    If their segments were wanted `whole`, `groups` are all keys of these.
    """

    low: int
    high: int
    first: np.ndarray
    found: np.ndarray
    whole: bool
    groups: Callable[[], Groups]


class Waves(ABC):
    """Invariant: what a wave refers to is valid until the next one is asked for. `seconds` were spent waiting."""

    def __init__(self, stats: JoinStats) -> None:
        self.stats = stats
        self.seconds = 0.0

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory of all buffers."""

    @abstractmethod
    def of(self, keys: np.ndarray, segments: np.ndarray, *, whole: bool) -> Iterator[Wave]:
        """Read the segments (rising) of sorted distinct keys."""

    def finish(self, buffer: RowBuffer | DiskBuffer) -> int:
        """Wait for a buffer and count what was read; how many segments."""
        reads, size, segments = buffer.reads, buffer.bytes_read, buffer.segments
        began = time.perf_counter()
        buffer.finish()
        self.seconds += time.perf_counter() - began
        self.stats.disk_reads += buffer.reads - reads
        self.stats.bytes_read += buffer.bytes_read - size
        self.stats.segments_read += buffer.segments - segments
        return buffer.segments - segments


@dataclass(frozen=True)
class RowRoom:
    """How `RowWaves` divide memory: so many buffers, each with bytes for rows and bytes that a read brings."""

    buffers: int
    rows: int
    read: int
    huge: bool

    @classmethod
    def of(cls, master: Master, columns: Sequence[int], spare: int) -> RowRoom | None:
        """With so many bytes to spare; None if the rows of these columns have to stay in their segments."""
        if not master.store.local or not flat([Layout.of(master.stored_schema).columns[i] for i in columns]):
            return None
        number = (IN_FLIGHT if master.direct else IN_FLIGHT_CACHED) + 1
        share = spare // (12 * number)
        rows = min(ROWS, share)
        least = -(-(master.statistics.max_segment_bytes + 2 * PAGE) // PAGE) * PAGE
        if rows < max(2 * RowBuffer.least(master, columns), 4 * least):
            return None
        wanted = min(DIRECT_READ, share) if master.direct else min(READ, share // 4)
        read = max(least, wanted // PAGE * PAGE)
        huge = master.direct and read == DIRECT_READ
        return cls(number, rows, read, huge)

    def memory(self) -> Memory:
        """What reads go to."""
        return Memory.huge(self.buffers * self.read) if self.huge else Memory.of(self.buffers * self.read)

    @property
    def nbytes(self) -> int:
        """Memory of all buffers."""
        reads = self.buffers * self.read
        return self.buffers * self.rows + (-(-reads // HUGE) * HUGE if self.huge else reads + PAGE)


class RowWaves(Waves):
    """Each wave is a buffer of rows."""

    def __init__(
        self,
        reader: SegmentReader,
        pages: PageTable,
        columns: Sequence[int],
        stats: JoinStats,
        *,
        key: Node,
        room: RowRoom,
    ) -> None:
        super().__init__(stats)
        self._memory = room.memory()
        self.buffers = [
            RowBuffer(
                reader, pages, columns, key=key, size=room.rows, memory=self._memory.part(i * room.read, room.read)
            )
            for i in range(room.buffers)
        ]

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes + sum(buffer.nbytes for buffer in self.buffers)

    def of(self, keys: np.ndarray, segments: np.ndarray, *, whole: bool) -> Iterator[Wave]:
        idle, running = list(self.buffers), deque[tuple[RowBuffer, int, int]]()
        at, n = 0, len(keys)
        even = max(LEAST_SHARE, -(-n // len(self.buffers)))

        def begin(buffer: RowBuffer, low: int, high: int) -> None:
            buffer.start(keys[low:high], segments[low:high], whole=whole, background=len(self.buffers) > 1)
            running.append((buffer, low, high))

        while at < n or running:
            while idle and at < n:
                buffer = idle.pop()
                last = min(n, at + min(even, buffer.capacity)) - 1
                high = int(np.searchsorted(segments, segments[last], side="right"))  # no segment is read twice
                begin(buffer, at, high)
                at = high
            buffer, low, high = running.popleft()
            self.finish(buffer)
            done = low + len(buffer.found)
            yield Wave(low, done, buffer.first, buffer.found, whole, buffer.groups)
            if done < high:
                begin(buffer, done, high)
            else:
                idle.append(buffer)


class SegmentWaves(Waves):
    """Each wave is a disk buffer full of segments."""

    def __init__(
        self,
        reader: SegmentReader,
        pages: PageTable,
        locator: Locator,
        stats: JoinStats,
        *,
        key: Node,
        size: int,
        number: int,
    ) -> None:
        super().__init__(stats)
        self.reader = reader
        self.pages = pages
        self.locator = locator
        self.key = key
        self.buffers = [DiskBuffer(reader, pages, size) for _ in range(number)]

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)

    def of(self, keys: np.ndarray, segments: np.ndarray, *, whole: bool) -> Iterator[Wave]:
        wanted = segments[np.concatenate(([True], segments[1:] != segments[:-1]))] if len(segments) else segments
        ahead: deque[tuple[DiskBuffer, np.ndarray]] = deque()
        at = 0
        turn = 0
        while at < len(wanted) or ahead:
            while at < len(wanted) and len(ahead) < len(self.buffers):
                buffer = self.buffers[turn % len(self.buffers)]
                turn += 1
                part = wanted[at : at + buffer.fit(wanted[at : at + buffer.most])]
                buffer.start(part, in_flight=self.reader.in_flight if len(self.buffers) > 1 else 0)
                ahead.append((buffer, part))
                at += len(part)
            buffer, part = ahead.popleft()
            self.finish(buffer)
            low, high = (int(place) for place in np.searchsorted(segments, (part[0], part[-1] + 1)))
            which = np.searchsorted(part, segments[low:high])
            first, found = self.locator.rows(self.pages, keys[low:high], which, buffer.numbers, buffer.rows)
            yield Wave(low, high, first, found, True, functools.partial(self._groups, buffer))

    def _groups(self, buffer: DiskBuffer) -> Groups:
        total = int(buffer.rows.sum())
        keys, first, counts = (np.empty(total, dtype=np.int64) for _ in range(3))
        groups = kernel.group_pages(
            self.pages.addresses, self.key.first + 1, self.key.width, buffer.numbers, buffer.rows, keys, first, counts
        )
        return keys[:groups], first[:groups], counts[:groups]


def segment_room(master: Master, spare: int, free: int) -> tuple[int, int]:
    """Bytes of a buffer of segments, and how many there are, with so many bytes to spare and free."""
    size = Operator.least_disk_buffer(master) + min(LARGEST, spare // 12)
    return size, 2 if 2 * (size + PAGE) < free // 3 else 1
