"""The cyclic scan of R: page after page, round and round, the next pages read while the present ones are joined.

    position                     threads read, check and decode ahead
       v                               v
    [ p0  p1  p2  p3 | p4  p5  p6  p7 | ... | pN-1 ] --> p0 ...
       present chunk     next chunks

A page is a segment of a master, or a row group of unprepared Parquet. Whoever scans takes pieces: some whole pages, or
a part of a row group that is too large for the buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..kernels.pages import PageTable
from ..kernels.runs import largest_chunk
from ..kernels.segments import refs_of
from .chunks import Buffer, ChunkReader, ScanReader, chunk_reader, scan_readers
from .part_files import HUGE, PAGE, Memory

NO_CODES = np.empty(0, dtype=np.int64)
NO_BYTES = np.empty(0, dtype=np.uint8)
WASTE = 1.25  # huge pages may have so many times the bytes of the buffers in them


def buffers(*, direct: bool) -> int:
    """Buffers of segments: one is joined while the others are read and checked."""
    return 1 + scan_readers(direct=direct)


def in_huge_pages(total: int, *, direct: bool, loan: int = 0) -> bool:
    """Whether buffers of so many bytes lie in huge pages: a disk is faster then. Little of them may be left when
    someone else has borrowed as much as `loan` bytes of it.
    """
    return direct and -(-total // HUGE) * HUGE - loan <= WASTE * total


def _resident(total: int, *, direct: bool, loan: int) -> int:
    """Memory that buffers of so many bytes take, without what is borrowed."""
    return max(total, -(-total // HUGE) * HUGE - loan) if in_huge_pages(total, direct=direct, loan=loan) else total


@dataclass(frozen=True)
class Piece:
    """Rows of R in memory, valid until the next piece is taken.

    `codes` are the clustering keys of those rows whose key is not NULL, `refs(rows)` says where such rows lie, and
    `complete` brings the columns that are not there from the start. `pages` is how many pages end with this piece.
    """

    pages: int
    rows: int
    codes: np.ndarray
    refs: Callable[[np.ndarray], np.ndarray]
    complete: Callable[[], None]


class Cycle(ABC):
    """A scan that never ends. Not thread-safe; a thread of its own reads ahead.

    Invariant: `position` is the page that comes next, `low <= position < high`; pages come in order, each once a turn.
    """

    def __init__(self, total: int, buffers: int = 2) -> None:
        self.total = total
        self.buffers = buffers
        self.low, self.high = 0, total
        self.position = 0
        self.reads = 0
        self.bytes_read = 0
        self.pages_read = 0
        self.loan = 0  # bytes that will be lent: whoever borrows them books them
        self._thread: ThreadPoolExecutor | None = None

    @property
    def pages(self) -> int:
        """Pages of a turn."""
        return self.high - self.low

    def restrict(self, share: int, shares: int) -> None:
        """Scan only one of so many equal shares of the pages."""
        self._forget()
        self.low, self.high = self.total * share // shares, self.total * (share + 1) // shares
        self.position = self.low

    @property
    def step(self) -> int:
        """Pages that come at a time, at least."""
        return 1

    @property
    def chunks(self) -> int:
        """How many times they come in a turn, at most."""
        return self.pages

    @abstractmethod
    def next(self, limit: int, needed: int) -> Piece:
        """The next piece, at most `limit` pages; of all pages to come `needed` will be asked for, at least."""

    def lend(self, size: int) -> np.ndarray:
        """So many bytes for someone else, of memory that the buffers take but do not need and of what follows it; or
        none. `loan` must have been about as much, and nothing may have been read.
        """
        return NO_BYTES

    @abstractmethod
    def _forget(self) -> None:
        """Drop what was read ahead."""

    def close(self) -> None:
        self._forget()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    @property
    def thread(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="millstream-scan")
        return self._thread

    def _advance(self, pages: int) -> None:
        self.position += pages
        self.pages_read += pages
        if self.position == self.high:
            self.position = self.low


def _nothing() -> None:
    """All columns of a segment are there from the start."""


@dataclass
class _Chunk:
    """Pages `first` to `stop` in a buffer."""

    buffer: Buffer
    first: int
    stop: int


class SegmentCycle(Cycle):
    """Over the segments of a master, as many at a time as fit into `size` bytes.

    A turn is cut into chunks of nearly the same number of pages, at the same places in each turn, so that whoever
    begins with a chunk also ends with one.
    """

    def __init__(self, reader: ScanReader, pages: PageTable, *, key: str | None, size: int) -> None:
        super().__init__(len(reader.index), buffers(direct=reader.direct))
        self.reader = reader
        self.table = pages
        self.key = pages.layout.column(key) if key is not None else None
        self._buffers = [Buffer(max(1, pages.layout.buffers)) for _ in range(self.buffers)]
        self._chunk: _Chunk | None = None
        self._ahead: deque[_Chunk] = deque()
        self._chunks: ChunkReader | None = None
        self.read_seconds = 0.0  # between chunks, if nothing else holds up the threads
        self._read_at = 0
        self._turn = 0
        self._bounds: list[int] | None = None
        self.size = self._fitting(size)
        self._region: Memory | None = None

    @staticmethod
    def bytes_for(size: int, row_bytes: float, *, direct: bool, loan: int = 0) -> int:
        """Memory of the buffers of that size, with the keys of their rows beside, if rows have so many bytes."""
        number = buffers(direct=direct)
        total = number * (-(-size // PAGE) * PAGE)
        keys = number * (2 * PAGE + 1024 + int(8 * size / max(1.0, row_bytes)))
        return _resident(total, direct=direct, loan=loan) + keys

    @property
    def nbytes(self) -> int:
        """Memory of the buffers as they are, wherever the turn is cut."""
        keys = 8 * self.most_rows if self.key is not None else 0
        buffers = _resident(self.buffers * self.size, direct=self.reader.direct, loan=self.loan)
        return buffers + self.buffers * (2 * PAGE + 1024 + keys)

    @property
    def most_rows(self) -> int:
        """No chunk has more rows, wherever the turn is cut: it is one segment, or all of them fit into the buffer."""
        index = self.reader.index
        fitting = 1 + int(max(0, self.size - 2 * PAGE) * index.density)
        return min(index.rows, max(index.most_rows, fitting))

    @property
    def step(self) -> int:
        """Pages that are read at a time, at least."""
        return max(1, self.pages // max(1, self.chunks))

    @property
    def chunks(self) -> int:
        return len(self.bounds) - 1

    @property
    def bounds(self) -> list[int]:
        """Where the chunks begin, and the end of the last one."""
        if self._bounds is None:
            self._bounds = self._cut()
        return self._bounds

    def _cut(self) -> list[int]:
        """Cut the pages of a turn into as few chunks as fit."""
        index = self.reader.index
        chunks = max(1, min(self.pages, -(-int(index.length[self.low : self.high].sum(dtype=np.int64)) // self.size)))
        while True:
            size = largest_chunk(self.low, self.high, chunks, index.part_start, index.length, 2 * PAGE)
            if chunks >= self.pages or size <= self.size:
                return (np.arange(chunks + 1, dtype=np.int64) * self.pages // chunks + self.low).tolist()
            chunks = min(self.pages, chunks + 1 + chunks // 64)

    def restrict(self, share: int, shares: int) -> None:
        super().restrict(share, shares)
        self._bounds = None

    def next(self, limit: int, needed: int) -> Piece:
        if self._chunk is None or self._chunk.stop == self.position or self._chunk.first > self.position:
            self._chunk = self._load(needed)
        chunk, buffer = self._chunk, self._chunk.buffer
        begin = self.position - chunk.first
        taken = min(limit, chunk.stop - self.position)
        low, high = int(buffer.starts[begin]), int(buffer.starts[begin + taken])
        self._advance(taken)
        if self.position == self.low and chunk.first != self.low:
            self._chunk = None  # a relation that fits into the buffer stays there

        def refs(rows: np.ndarray) -> np.ndarray:
            return refs_of(rows, low, buffer.starts[: chunk.stop - chunk.first + 1], buffer.numbers)

        return Piece(taken, high - low, buffer.codes[low:high] if self.key is not None else NO_CODES, refs, _nothing)

    def _load(self, needed: int) -> _Chunk:
        """Wait for the next chunk, and begin to read those behind it that will be needed."""
        if self._chunks is None:
            self._chunks = chunk_reader(self.reader, self._buffers, self.key)
        if not self._ahead:
            self._read_at = self.position
            self._ahead.append(self._begin(self._chunks))
        chunk = self._ahead[0]
        coming = sum(other.stop - other.first for other in self._ahead)
        while len(self._ahead) < self.buffers and coming < needed and chunk.stop - chunk.first < self.pages:
            self._ahead.append(self._begin(self._chunks))
            coming += self._ahead[-1].stop - self._ahead[-1].first
        answer = self._chunks.answer()
        self._ahead.popleft()
        if answer.bad >= 0:
            raise self.reader.fault(answer.bad, answer.why)
        self.reads += answer.reads
        self.bytes_read += answer.bytes
        self.read_seconds += answer.nanoseconds / 1e9 / self.reader.readers
        self.table.addresses[chunk.buffer.numbers] = chunk.buffer.table
        return chunk

    def lend(self, size: int) -> np.ndarray:
        total = self.buffers * self.size
        if not in_huge_pages(total, direct=self.reader.direct, loan=self.loan):
            return NO_BYTES
        self._region = Memory.huge(total, more=size)
        return self._region.part(total, size).array()

    def resize(self, size: int) -> None:
        """Read more or less at a time from here on. The buffers go first, with what was read ahead: memory is booked
        for the new ones alone. Nothing may be lent.
        """
        assert not self.loan
        self._forget()
        self._region = None
        for buffer in self._buffers:
            self._place(buffer, Memory.of(0))
            buffer.codes = NO_CODES
        self.size = self._fitting(size)
        self._bounds = None

    def _fitting(self, size: int) -> int:
        """The size of a buffer of about so many bytes, in which every segment fits wherever it begins."""
        largest = int(self.reader.index.length.max(initial=0)) + 2 * PAGE
        return -(-max(size, largest) // PAGE) * PAGE

    def _place(self, buffer: Buffer, memory: Memory) -> None:
        """Give a buffer its memory, which lives as long as a page may lie there."""
        buffer.memory = memory
        for number in buffer.numbers.tolist():
            self.table.owners[number] = memory

    def _begin(self, chunks: ChunkReader) -> _Chunk:
        """Have the next chunk read."""
        first, bounds = self._read_at, self.bounds
        stop = bounds[bisect_right(bounds, first)]
        buffer = self._buffers[self._turn]
        self._turn = (self._turn + 1) % self.buffers
        if buffer.memory.size != self.size:
            self._place(buffer, self._new_memory(self._buffers.index(buffer)))
        if len(buffer.numbers) < stop - first:
            more = [self.table.reserve(buffer.memory) for _ in range(stop - first - len(buffer.numbers))]
            buffer.numbers = np.append(buffer.numbers, np.array(more, dtype=np.int64))
            buffer.table = np.zeros((len(buffer.numbers), buffer.table.shape[1]), dtype=np.int64)
            buffer.starts = np.zeros(len(buffer.numbers) + 1, dtype=np.int64)
        if self.key is not None and len(buffer.codes) != self.most_rows:
            buffer.codes = np.empty(self.most_rows, dtype=np.int64)
        self._read_at = stop if stop < self.high else self.low
        chunks.ask(first, stop, buffer)
        return _Chunk(buffer, first, stop)

    def _new_memory(self, number: int) -> Memory:
        """Memory for a buffer, with that of all others in one piece if that is in huge pages."""
        total = self.buffers * self.size
        if not in_huge_pages(total, direct=self.reader.direct, loan=self.loan):
            self._region = None
            return Memory.of(self.size)
        if self._region is None or self._region.size != total:
            self._region = Memory.huge(total)
        return self._region.part(number * self.size, self.size)

    def _forget(self) -> None:
        self._chunk = None
        self._ahead.clear()
        if self._chunks is not None:
            self._chunks.settle()

    def close(self) -> None:
        super().close()
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None
        self.reader.close()
