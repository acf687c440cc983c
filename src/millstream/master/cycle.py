"""The cyclic scan of R: page after page, round and round, the next pages read while the present ones are joined.

    position                     one thread reads, checks and decodes ahead
       v                               v
    [ p0  p1  p2  p3 | p4  p5  p6  p7 | ... | pN-1 ] --> p0 ...
       present buffer    next buffer

A page is a segment of a master, or a row group of unprepared Parquet. Whoever scans takes pieces: some whole pages, or
a part of a row group that is too large for the buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ..errors import CorruptMaster
from ..kernels import segments as kernel
from ..kernels.layout import Layout
from ..kernels.pages import PageTable
from ..kernels.window_table import page_codes
from .reader import SegmentReader

PAGE = 4096
BUFFERS = 2  # of segments: one is joined while the other is read and checked


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

    def __init__(self, total: int) -> None:
        self.total = total
        self.low, self.high = 0, total
        self.position = 0
        self.reads = 0
        self.bytes_read = 0
        self.pages_read = 0
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

    @abstractmethod
    def next(self, limit: int, needed: int) -> Piece:
        """The next piece, at most `limit` pages; of all pages to come `needed` will be asked for, at least."""

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


class _Buffer:
    """A piece of memory with some segments in it, mapped and their keys laid out."""

    def __init__(self, size: int, columns: int) -> None:
        self.allocate(size)
        self.table = np.zeros((0, columns), dtype=np.int64)
        self.numbers = np.empty(0, dtype=np.int64)

    def allocate(self, size: int) -> None:
        self.memory = np.empty(size + PAGE, dtype=np.uint8)
        self.address = (self.memory.ctypes.data + PAGE - 1) & -PAGE


@dataclass
class _Chunk:
    """Pages `first` to `stop` in a buffer; `starts[i]` is the row at which page i begins."""

    buffer: _Buffer
    first: int
    stop: int
    codes: np.ndarray
    starts: np.ndarray
    reads: int
    size: int


class SegmentCycle(Cycle):
    """Over the segments of a master, as many at a time as fit into `size` bytes."""

    def __init__(self, reader: SegmentReader, pages: PageTable, *, key: str | None, size: int) -> None:
        super().__init__(len(reader.index))
        self.reader = reader
        self.table = pages
        self.key = pages.layout.column(key) if key is not None else None
        self.size = -(-size // PAGE) * PAGE
        columns = max(1, pages.layout.buffers)
        self._buffers = [_Buffer(self.size, columns) for _ in range(BUFFERS)]
        self._chunk: _Chunk | None = None
        self._ahead: deque[tuple[Future[_Chunk], int]] = deque()
        self._read_at = 0
        self._turn = 0

    @staticmethod
    def bytes_for(size: int, layout: Layout) -> int:
        """Memory of the buffers of that size, with the keys of their rows beside."""
        width = sum(max(0.125, node.width if not node.children else 0.125) for node in layout.columns)
        return BUFFERS * (size + 2 * PAGE + int(size * 8 / max(8.0, width)) + 1024)

    def next(self, limit: int, needed: int) -> Piece:
        if self._chunk is None or self._chunk.stop == self.position or self._chunk.first > self.position:
            self._chunk = self._load(needed)
        chunk = self._chunk
        begin = self.position - chunk.first
        taken = min(limit, chunk.stop - self.position)
        low, high = int(chunk.starts[begin]), int(chunk.starts[begin + taken])
        self._advance(taken)
        if self.position == self.low and chunk.first != self.low:
            self._chunk = None  # a relation that fits into the buffer stays there

        def refs(rows: np.ndarray) -> np.ndarray:
            at = rows + low
            page = np.searchsorted(chunk.starts, at, side="right") - 1
            return (chunk.buffer.numbers[page] << 32) | (at - chunk.starts[page])

        codes = chunk.codes[low:high] if len(chunk.codes) else chunk.codes
        return Piece(taken, high - low, codes, refs, lambda: None)

    def _load(self, needed: int) -> _Chunk:
        """Wait for the next chunk, and begin to read those behind it that will be needed."""
        if not self._ahead:
            self._read_at = self.position
            self._ahead.append(self._begin())
        future, coming = self._ahead.popleft()
        chunk = future.result()
        self.reads += chunk.reads
        self.bytes_read += chunk.size
        buffer = chunk.buffer
        self.table.addresses[buffer.numbers] = buffer.table[: len(buffer.numbers)]
        coming += sum(pages for _, pages in self._ahead)
        while len(self._ahead) < BUFFERS - 1 and coming < needed and chunk.stop - chunk.first < self.pages:
            self._ahead.append(self._begin())
            coming += self._ahead[-1][1]
        return chunk

    def resize(self, size: int) -> None:
        """Read more or less at a time from the next chunk on."""
        self.size = -(-size // PAGE) * PAGE

    def _begin(self) -> tuple[Future[_Chunk], int]:
        """Have the next chunk read; how many pages it has."""
        first = self._read_at
        buffer = self._buffers[self._turn]
        self._turn = (self._turn + 1) % BUFFERS
        if len(buffer.memory) != self.size + PAGE:
            buffer.allocate(self.size)
            for number in buffer.numbers.tolist():
                self.table.owners[number] = buffer.memory
        stop = first + self._fit(first)
        while len(buffer.numbers) < stop - first:
            more = [self.table.reserve(buffer.memory) for _ in range(stop - first - len(buffer.numbers))]
            buffer.numbers = np.append(buffer.numbers, np.array(more, dtype=np.int64))
        if len(buffer.table) < len(buffer.numbers):
            buffer.table = np.zeros((len(buffer.numbers), buffer.table.shape[1]), dtype=np.int64)
        self._read_at = stop if stop < self.high else self.low
        wanted = np.arange(first, stop, dtype=np.int64)
        return self.thread.submit(self._read, buffer, wanted), len(wanted)

    def _fit(self, first: int) -> int:
        """How many pages from one on the buffer holds; at least one is asked for."""
        index = self.reader.index
        wanted = slice(first, min(self.high, first + 64 + self.size // 512))
        start, end, file = index.offset[wanted], index.offset[wanted] + index.length[wanted], index.file[wanted]
        step = end - start + 2 * PAGE
        step[1:] = np.where(file[1:] == file[:-1], end[1:] - end[:-1], step[1:])
        return max(1, int(np.searchsorted(np.cumsum(step), self.size, side="right")))

    def _read(self, buffer: _Buffer, wanted: np.ndarray) -> _Chunk:
        """Read, check and map segments; runs in the thread that reads ahead, which alone uses the reader."""
        index, reader = self.reader.index, self.reader
        runs = reader.runs(wanted)
        assert runs.nbytes <= len(buffer.memory) - PAGE
        short = reader.read(runs, buffer.address)
        if short >= 0:
            behind = (index.file[wanted] == runs.file[short]) & (index.offset[wanted] >= runs.offset[short])
            raise CorruptMaster(
                f"{reader.describe(int(wanted[int(np.argmax(behind))]))} is cut off; build the master again"
            )
        counts = index.rows[wanted]
        bad, why = kernel.map_segments(
            runs.position + buffer.address,
            index.length[wanted],
            index.checksum[wanted],
            counts,
            buffer.table,
            np.arange(len(wanted), dtype=np.int64),
            self.table.layout.buffers,
        )
        if bad >= 0:
            reason = (
                "its checksum does not fit its content" if why == kernel.BAD_CHECKSUM else "it is not a record batch"
            )
            raise CorruptMaster(f"{reader.describe(int(wanted[bad]))} is damaged: {reason}; build the master again")
        starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        codes = np.empty(int(starts[-1]) if self.key is not None else 0, dtype=np.int64)
        if self.key is not None:
            page_codes(buffer.table, self.key.first + 1, self.key.width, counts, codes)
        return _Chunk(
            buffer, int(wanted[0]), int(wanted[-1]) + 1, codes, starts, len(runs.file), int(runs.length.sum())
        )

    def _forget(self) -> None:
        self._chunk = None
        for future, _ in self._ahead:
            future.exception()  # wait: its buffer is being written
        self._ahead.clear()

    def close(self) -> None:
        super().close()
        self.reader.close()
