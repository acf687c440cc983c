"""Reading segments of a master: fetched with several reads in flight, checked and mapped."""

from __future__ import annotations

import itertools
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from ..kernels import segments as kernel
from ..kernels.pages import PageTable
from ..kernels.runs import fit_runs, plan_runs
from .files import Store
from .index import SegmentIndex
from .manifest import Part
from .part_files import PAGE, Memory, PartFiles, Runs

GAP = PAGE // 2  # reading over a gap this small is cheaper than a second read
DIRECT_GAP = 32 * 1024  # where each read goes to the disk
IN_FLIGHT = 4
IN_FLIGHT_CACHED = 2  # through the page cache a read is mostly work of the processor


class SegmentReader(PartFiles):
    """Fetches segments of one set of parts."""

    index: SegmentIndex

    def __init__(self, store: Store, parts: tuple[Part, ...], index: SegmentIndex, *, direct: bool = False) -> None:
        super().__init__(store, parts, index, direct=direct)
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        super().close()

    @property
    def pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="millstream-read")
        return self._pool

    @property
    def in_flight(self) -> int:
        """Reads at a time that pay."""
        return IN_FLIGHT_CACHED if self.store.local and not self.direct else IN_FLIGHT

    @property
    def gap(self) -> int:
        """Bytes between two segments that are read along rather than skipped."""
        return DIRECT_GAP if self.direct else GAP

    def open_between(self, first: int, last: int) -> None:
        """Open the files that have segments from `first` to `last`."""
        low, high = np.searchsorted(self.index.part_start, (first, last), side="right") - 1
        self._open_all(np.arange(low, high + 1))

    def runs(self, wanted: np.ndarray) -> Runs:
        """Group segment numbers in rising order into runs of bytes that are read at once."""
        index = self.index
        runs = np.empty((5, len(wanted) + 1), dtype=np.int64)
        places = np.empty(len(wanted), dtype=np.int64)
        count = plan_runs(wanted, index.part_start, index.offset, index.length, self.gap, self.page, runs, places)
        file, offset, length, target, first = runs[:, :count]
        return Runs(file.astype(np.int32), offset, length, target, places, np.append(first, len(wanted)))

    def single_runs(self, wanted: np.ndarray, targets: np.ndarray) -> Runs:
        """One read for each segment, in any order, each to its own place."""
        file, start, length = self.index.places(wanted)
        stop = start + length
        offset = start & -PAGE if self.direct else start
        length = (stop + PAGE - 1 & -PAGE if self.direct else stop) - offset
        each = np.arange(len(wanted) + 1)
        return Runs(file.astype(np.int32), offset, length, targets.astype(np.int64), targets + (start - offset), each)

    def fetch(self, fetched: Fetched, *, in_flight: int) -> list[Future[Fault]]:
        """Start to read, check and map segments, with so many threads.

        The memory lives as long as something is written to it, even if nobody wants the segments any more.
        """
        runs = fetched.runs
        self._open_all(runs.file)
        if not self.store.local:
            return [self.pool.submit(self._fetch_remote, fetched, i) for i in range(len(runs.file))]
        bounds = np.linspace(0, len(runs.file), max(1, min(in_flight, len(runs.file))) + 1).astype(int)
        return [self.pool.submit(self._fetch_local, fetched, low, high) for low, high in itertools.pairwise(bounds)]

    def fetch_now(self, fetched: Fetched) -> Fault:
        """Read, check and map segments in this thread."""
        runs = fetched.runs
        self._open_all(runs.file)
        if self.store.local:
            return self._fetch_local(fetched, 0, len(runs.file))
        faults = (self._fetch_remote(fetched, i) for i in range(len(runs.file)))
        return next((fault for fault in faults if fault[0] >= 0), NO_FAULT)

    def _fetch_local(self, fetched: Fetched, low: int, high: int) -> Fault:
        """The runs from `low` to `high`."""
        runs = fetched.runs
        bad, why = kernel.read_segments(
            self.descriptors[runs.file[low:high]],
            runs.offset[low:high],
            runs.length[low:high],
            self._slack,
            runs.target[low:high] + fetched.memory.address,
            runs.first[low : high + 1],
            *fetched.segments,
        )
        return int(bad), int(why)

    def _fetch_remote(self, fetched: Fetched, i: int) -> Fault:
        """The run with this number."""
        runs = fetched.runs
        low, high = runs.first[i], runs.first[i + 1]
        if self._read_remote(runs, i, fetched.memory.address) >= 0:
            return int(low), kernel.SHORT_READ
        starts, sizes, sums, counts, rows = (array[low:high] for array in fetched.segments)
        bad, why = kernel.map_segments(starts, sizes, sums, counts, rows, np.arange(high - low), rows.shape[1])
        return (int(low + bad) if bad >= 0 else -1), int(why)


Fault = tuple[int, int]  # the first bad one of the wanted segments, and why; -1 if there is none
NO_FAULT: Fault = (-1, kernel.OK)


@dataclass(frozen=True)
class Fetched:
    """Segments to be read: the runs that bring them to memory, what is known of their contents (`contents` of the
    index), and `rows`, where the addresses of each are written.
    """

    runs: Runs
    contents: tuple[np.ndarray, np.ndarray, np.ndarray]
    memory: Memory
    rows: np.ndarray

    @property
    def segments(self) -> tuple[np.ndarray, ...]:
        """Address, length, checksum and number of rows of each, and where its addresses are written."""
        return (self.runs.position + self.memory.address, *self.contents, self.rows)


class DiskBuffer:
    """The disk buffer D_B: a fixed piece of memory that holds some segments, mapped as pages.

    Invariant: the pages of the last `load` are valid until the next `start`.
    """

    def __init__(self, reader: SegmentReader, pages: PageTable, size: int) -> None:
        self.reader = reader
        self.pages = pages
        self.size = -(-size // PAGE) * PAGE
        self._memory = Memory.mostly_huge(self.size) if reader.direct else Memory.of(self.size)
        self._numbers = np.empty(0, dtype=np.int64)
        self._rows = np.empty((0, 0), dtype=np.int64)
        self._wanted = np.empty(0, dtype=np.int64)
        self._fetched: Fetched | None = None
        self._pending: list[Future[Fault]] = []
        self._average: float | None = None
        self.numbers = self.rows = np.empty(0, dtype=np.int64)  # page and rows of each segment that is there
        self.reads = self.bytes_read = self.segments = 0

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    @property
    def most(self) -> int:
        """More segments than the buffer is likely to hold."""
        index = self.reader.index
        average = int(index.length.sum()) / max(1, len(index)) if self._average is None else self._average
        self._average = average
        return 16 + int(1.5 * self.size / max(1.0, average))

    def fit(self, wanted: np.ndarray) -> int:
        """How many of the first wanted segments (rising) the buffer can hold at once; at least one is asked for."""
        index, reader = self.reader.index, self.reader
        slack = 2 * PAGE if reader.direct else 64
        held = fit_runs(wanted, index.part_start, index.offset, index.length, reader.gap, slack, self.size)
        return max(1, int(held))

    def start(self, wanted: np.ndarray, *, in_flight: int = 0) -> None:
        """Begin to read segments; with `in_flight` in the background, otherwise when `finish` is called."""
        if self._pending:
            wait(self._pending)  # of a join that was given up
        self._wanted = wanted
        runs = self.reader.runs(wanted)
        assert runs.nbytes <= self.size
        if len(wanted) > len(self._numbers):
            new = [self.pages.reserve(self._memory) for _ in range(len(wanted) - len(self._numbers))]
            self._numbers = np.concatenate([self._numbers, np.array(new, dtype=np.int64)])
            self._rows = np.zeros((len(self._numbers), self.pages.addresses.shape[1]), dtype=np.int64)
        self._fetched = Fetched(runs, self.reader.index.contents(wanted), self._memory, self._rows)
        self._pending = self.reader.fetch(self._fetched, in_flight=in_flight) if in_flight else []

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """Wait for the segments, checked and mapped: page number and rows of each."""
        fetched, wanted = self._fetched, self._wanted
        assert fetched is not None
        if self._pending:
            faults = [future.result() for future in self._pending]
            self._pending = []  # not before all have ended: the next `start` waits for what is left of a failure
        else:
            faults = [self.reader.fetch_now(fetched)]
        for bad, why in faults:
            if bad >= 0:
                raise self.reader.fault(int(wanted[bad]), why)
        numbers = self._numbers[: len(wanted)]
        self.pages.addresses[numbers] = self._rows[: len(wanted)]
        self.reads += len(fetched.runs.file)
        self.bytes_read += int(fetched.runs.length.sum())
        self.segments += len(wanted)
        self.numbers, self.rows = numbers, fetched.contents[2]
        return self.numbers, self.rows

    def release(self) -> None:
        """Give the memory back; pages that were loaded are gone."""
        for number in self._numbers.tolist():
            self.pages.release(number)
        self._numbers = self._numbers[:0]

    def load(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read segments now."""
        self.start(wanted)
        return self.finish()
