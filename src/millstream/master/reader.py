"""Reading segments of a master: where they are, fetched with several reads in flight, checked and mapped."""

from __future__ import annotations

import contextlib
import itertools
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import CorruptMaster, MasterNotFound
from ..kernels import segments as kernel
from ..kernels.hashing import checksum
from ..kernels.pages import PageTable
from .files import Store
from .manifest import Part

PAGE = 4096
GAP = PAGE // 2  # reading over a gap this small is cheaper than a second read
DIRECT_GAP = 32 * 1024  # where each read goes to the disk
IN_FLIGHT = 4


@dataclass(frozen=True)
class SegmentIndex:
    """The sparse index: for each segment its first key and where it lies. Global segment number = position.

    An index without keys serves who reads all of R. Numbers are as narrow as those of all segments allow, so do not
    calculate with them: `places` gives them in full width.
    """

    first_key: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    rows: np.ndarray
    checksum: np.ndarray  # its lower half
    part_start: np.ndarray

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def nbytes(self) -> int:
        arrays = (self.first_key, self.offset, self.length, self.rows, self.checksum, self.part_start)
        return sum(array.nbytes for array in arrays)

    def segment_of(self, keys: np.ndarray) -> np.ndarray:
        """The only segment that can hold each key, -1 for keys before the first one."""
        return np.searchsorted(self.first_key, keys, side="right") - 1

    def places(self, wanted: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """File, offset and length of some segments, given by a number or an array of them."""
        file = np.searchsorted(self.part_start, wanted, side="right") - 1
        return file, self.offset[wanted].astype(np.int64), self.length[wanted].astype(np.int64)

    def contents(self, wanted: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Length, checksum and rows of some segments."""
        return self.length[wanted].astype(np.int64), self.checksum[wanted], self.rows[wanted].astype(np.int64)


KEY_BYTES = 8
NARROW = (np.uint32, np.uint16, np.uint16)  # offset, length, rows
WIDE = (np.int64, np.int64, np.int64)


def index_bytes(parts: tuple[Part, ...], largest: int, *, keys: bool = True) -> int:
    """Memory that the index of some parts takes, whose largest segment has so many bytes."""
    narrow = largest < 1 << 16 and all(part.bytes < 1 << 32 for part in parts)
    entry = sum(np.dtype(kind).itemsize for kind in (NARROW if narrow else WIDE)) + 4 + (KEY_BYTES if keys else 0)
    return sum(part.segments * entry + 8 for part in parts) + 16


def load_index(store: Store, parts: tuple[Part, ...], *, keys: bool = True) -> SegmentIndex:
    """Read the index files of some parts, checked."""
    tables = [_read_checked(store, part.index, part.index_checksum) for part in parts]
    counts = [table.num_rows for table in tables]

    def column(name: str) -> np.ndarray:
        arrays = [table.column(name).to_numpy() for table in tables]
        return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)

    offset, length, rows = (column(name) for name in ("offset", "length", "rows"))
    largest = max(int(length.max(initial=0)), int(rows.max(initial=0)))
    narrow = largest < 1 << 16 and int(offset.max(initial=0)) + largest < 1 << 32
    of_offset, of_length, of_rows = NARROW if narrow else WIDE
    return SegmentIndex(
        first_key=np.ascontiguousarray(column("first_key"), dtype=np.int64) if keys else np.empty(0, dtype=np.int64),
        offset=offset.astype(of_offset),
        length=length.astype(of_length),
        rows=rows.astype(of_rows),
        checksum=column("checksum").astype(np.uint64).astype(np.uint32),
        part_start=np.concatenate(([0], np.cumsum(counts, dtype=np.int64))) if parts else np.zeros(1, dtype=np.int64),
    )


@dataclass(frozen=True)
class KeyFilter:
    """The membership filter over all keys, in memory."""

    first_key: np.ndarray
    begin: np.ndarray
    blocks: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.first_key.nbytes + self.begin.nbytes + self.blocks.nbytes


def load_filter(store: Store, parts: tuple[Part, ...]) -> KeyFilter:
    """Read the filters of some parts, checked."""
    firsts: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    total = sum(part.filter_bytes for part in parts)
    blocks = np.empty(total // 32 + 1, dtype="V32")
    used = 0
    for part in parts:
        assert part.filter is not None
        table = _read_checked(store, part.filter, part.filter_checksum)
        firsts.append(table.column("first_key").to_numpy())
        for chunk in table.column("blocks"):
            raw = np.frombuffer(chunk.as_buffer(), dtype="V32")
            blocks[used : used + len(raw)] = raw
            used += len(raw)
            sizes.append(np.array([len(raw)]))
    begin = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]) if sizes else np.zeros(1)
    return KeyFilter(
        first_key=np.ascontiguousarray(np.concatenate(firsts) if firsts else [], dtype=np.int64),
        begin=begin.astype(np.int64),
        blocks=blocks[:used].view(np.uint32).reshape(-1, 8),
    )


def _read_checked(store: Store, name: str, expected: int) -> pa.Table:
    try:
        content = store.read(name)
    except FileNotFoundError as error:
        raise MasterNotFound(
            f"{store.full(name)} is gone: this version of the master was dropped; open the master again"
        ) from error
    if checksum(content) != expected:
        raise CorruptMaster(f"{store.full(name)} is damaged: its checksum does not fit; build the master again")
    return pa.ipc.open_stream(content).read_all()


class SegmentReader:
    """Fetches segments of one set of parts. Opens files when first needed; not thread-safe."""

    def __init__(self, store: Store, parts: tuple[Part, ...], index: SegmentIndex, *, direct: bool = False) -> None:
        self.store = store
        self.parts = parts
        self.index = index
        self.direct = direct and store.local
        self._slack = PAGE - 1 if self.direct else 0
        self._handles: dict[int, int] = {}
        self._files: dict[int, pa.NativeFile] = {}
        self._pool: ThreadPoolExecutor | None = None
        self.descriptors = np.full(len(parts), -1, dtype=np.int32)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        for handle in self._handles.values():
            os.close(handle)
        for file in self._files.values():
            file.close()
        self._handles, self._files = {}, {}
        self.descriptors[:] = -1

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    @property
    def pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="millstream-read")
        return self._pool

    @property
    def gap(self) -> int:
        """Bytes between two segments that are read along rather than skipped."""
        return DIRECT_GAP if self.direct else GAP

    def runs(self, wanted: np.ndarray) -> Runs:
        """Group segment numbers in rising order into runs of bytes that are read at once."""
        index = self.index
        runs = np.empty((5, len(wanted) + 1), dtype=np.int64)
        places = np.empty(len(wanted), dtype=np.int64)
        page = PAGE if self.direct else 0
        count = kernel.plan_runs(wanted, index.part_start, index.offset, index.length, self.gap, page, runs, places)
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

    def fetch(
        self, wanted: np.ndarray, runs: Runs, address: int, rows: np.ndarray, *, in_flight: int
    ) -> list[Future[Fault]]:
        """Start to read the runs of wanted segments to memory at an address, to check them and to map each to a row."""
        index = self.index
        segments = (runs.position + address, *index.contents(wanted), rows)
        for number in np.unique(runs.file).tolist():
            self._open(number)
        if not self.store.local:
            return [self.pool.submit(self._fetch_remote, runs, i, address, segments) for i in range(len(runs.file))]
        descriptors, targets = self.descriptors[runs.file], runs.target + address
        pieces = max(1, min(in_flight, len(runs.file)))
        bounds = np.linspace(0, len(runs.file), pieces + 1).astype(int)
        return [
            self.pool.submit(
                _fetch,
                descriptors[a:b],
                runs.offset[a:b],
                runs.length[a:b],
                self._slack,
                targets[a:b],
                runs.first[a : b + 1],
                *segments,
            )
            for a, b in itertools.pairwise(bounds)
        ]

    def _fetch_remote(self, runs: Runs, i: int, address: int, segments: tuple[np.ndarray, ...]) -> Fault:
        low, high = runs.first[i], runs.first[i + 1]
        if self._read_remote(runs, i, address) >= 0:
            return int(low), kernel.SHORT_READ
        starts, sizes, sums, counts, rows = (array[low:high] for array in segments)
        bad, why = kernel.map_segments(starts, sizes, sums, counts, rows, np.arange(high - low), rows.shape[1])
        return (int(low + bad) if bad >= 0 else -1), int(why)

    def open_parts(self, first: int, stop: int) -> None:
        """Open the files of neighbouring segments."""
        if len(self._handles) + len(self._files) < len(self.parts):
            low, high = self.index.places(np.array([first, stop - 1]))[0].tolist()
            for number in range(low, high + 1):
                self._open(number)

    def read(self, runs: Runs, address: int) -> int:
        """Read runs in this thread, one after the other."""
        for number in np.unique(runs.file).tolist():
            self._open(number)
        if not self.store.local:
            for i in range(len(runs.file)):
                short = self._read_remote(runs, i, address)
                if short >= 0:
                    return short
            return -1
        targets = runs.target + address
        return int(kernel.read_runs(self.descriptors[runs.file], runs.offset, runs.length, self._slack, targets))

    def _read_remote(self, runs: Runs, i: int, address: int) -> int:
        data = self._files[int(runs.file[i])].read_at(int(runs.length[i]), int(runs.offset[i]))
        if len(data) < runs.length[i]:
            return i
        raw = np.frombuffer(data, dtype=np.uint8)
        kernel.copy_to(raw.ctypes.data, address + int(runs.target[i]), raw.nbytes)
        return -1

    def _open(self, number: int) -> None:
        if number in self._handles or number in self._files:
            return
        name = self.store.full(self.parts[number].file)
        try:
            if self.store.local:
                handle = os.open(name, os.O_RDONLY | (os.O_DIRECT if self.direct else 0))
                self._handles[number] = handle
                self.descriptors[number] = handle
            else:
                self._files[number] = self.store.fs.open_input_file(name)
        except FileNotFoundError as error:
            raise MasterNotFound(
                f"{name} is gone: this version of the master was dropped; open the master again"
            ) from error

    def describe(self, segment: int) -> str:
        """A segment for an error message: its file, its number and where it lies."""
        number, offset, length = (int(value) for value in self.index.places(segment))
        inside = segment - int(self.index.part_start[number])
        where = f"bytes {offset} to {offset + length}"
        return f"segment {inside} of {self.store.full(self.parts[number].file)} ({where})"


@dataclass(frozen=True)
class Runs:
    """Reads to be made: file, offset and length of each, where it goes, and where each wanted segment then starts.

    Read i brings the wanted segments `first[i]` to `first[i + 1]`.
    """

    file: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    target: np.ndarray
    position: np.ndarray
    first: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of memory from the first target to the end of the last run."""
        return int(self.target[-1] + self.length[-1]) if len(self.target) else 0


Fault = tuple[int, int]  # the first bad one of the wanted segments, and why; -1 if there is none


def _fetch(*arguments: Any) -> Fault:
    bad, why = kernel.read_segments(*arguments)
    return int(bad), int(why)


FAULTS = {
    kernel.SHORT_READ: "is cut off",
    kernel.BAD_CHECKSUM: "is damaged: its checksum does not fit its content",
    kernel.BAD_MESSAGE: "is damaged: it is not a record batch",
}


class DiskBuffer:
    """The disk buffer D_B: a fixed piece of memory that holds some segments, mapped as pages.

    Invariant: the pages of the last `load` are valid until the next `start`.
    """

    def __init__(self, reader: SegmentReader, pages: PageTable, size: int) -> None:
        self.reader = reader
        self.pages = pages
        self.size = -(-size // PAGE) * PAGE
        self._memory = np.empty(self.size + PAGE, dtype=np.uint8)
        self._address = (self._memory.ctypes.data + PAGE - 1) & -PAGE
        self._numbers = np.empty(0, dtype=np.int64)
        self._rows = np.empty((0, 0), dtype=np.int64)
        self._wanted = np.empty(0, dtype=np.int64)
        self._runs: Runs | None = None
        self._pending: list[Future[Fault]] = []
        self._average: float | None = None
        self.reads = 0
        self.bytes_read = 0

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
        held = kernel.fit_runs(wanted, index.part_start, index.offset, index.length, reader.gap, slack, self.size)
        return max(1, int(held))

    def start(self, wanted: np.ndarray, *, in_flight: int = 0) -> None:
        """Begin to read segments; with `in_flight` in the background, otherwise when `finish` is called."""
        self._wanted = wanted
        self._runs = self.reader.runs(wanted)
        assert self._runs.nbytes <= self.size
        if len(wanted) > len(self._numbers):
            new = [self.pages.reserve(self._memory) for _ in range(len(wanted) - len(self._numbers))]
            self._numbers = np.concatenate([self._numbers, np.array(new, dtype=np.int64)])
            self._rows = np.zeros((len(self._numbers), self.pages.addresses.shape[1]), dtype=np.int64)
        self._pending = (
            self.reader.fetch(wanted, self._runs, self._address, self._rows, in_flight=in_flight) if in_flight else []
        )

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        """Wait for the segments, checked and mapped: page number and rows of each."""
        runs, wanted, index = self._runs, self._wanted, self.reader.index
        assert runs is not None
        numbers = self._numbers[: len(wanted)]
        lengths, sums, counts = index.contents(wanted)
        if self._pending:
            faults = [future.result() for future in self._pending]
            bad, why = next((fault for fault in faults if fault[0] >= 0), (-1, kernel.OK))
            self._pending = []
            self.pages.addresses[numbers] = self._rows[: len(wanted)]
        else:
            short = self.reader.read(runs, self._address)
            if short >= 0:
                bad, why = int(runs.first[short]), kernel.SHORT_READ
            else:
                bad, why = kernel.map_segments(
                    runs.position + self._address,
                    lengths,
                    sums,
                    counts,
                    self.pages.addresses,
                    numbers,
                    self.pages.layout.buffers,
                )
        if bad >= 0:
            raise CorruptMaster(f"{self.reader.describe(int(wanted[bad]))} {FAULTS[why]}; build the master again")
        self.reads += len(runs.file)
        self.bytes_read += int(runs.length.sum())
        return numbers, counts

    def load(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Read segments now."""
        self.start(wanted)
        return self.finish()
