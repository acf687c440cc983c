"""The files of a master's parts, opened when first needed, and reads of runs of bytes from them."""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..errors import CorruptMaster, MasterNotFound
from ..kernels import segments as kernel
from ..kernels.runs import read_runs
from .files import Store
from .index import ScanIndex, SegmentIndex
from .manifest import Part

PAGE = 4096
HUGE = 2 << 20  # bytes of a huge page

_FAULTS = {
    kernel.SHORT_READ: "is cut off",
    kernel.BAD_CHECKSUM: "is damaged: its checksum does not fit its content",
    kernel.BAD_MESSAGE: "is damaged: it is not a record batch",
}


class PartFiles:
    """Not thread-safe, but for reads of files that are open."""

    def __init__(
        self, store: Store, parts: tuple[Part, ...], index: SegmentIndex | ScanIndex, *, direct: bool = False
    ) -> None:
        self.store = store
        self.parts = parts
        self.index = index
        self.direct = direct and store.local
        self.descriptors = np.full(len(parts), -1, dtype=np.int32)
        self._slack = PAGE - 1 if self.direct else 0
        self._handles: dict[int, int] = {}
        self._files: dict[int, pa.NativeFile] = {}

    def close(self) -> None:
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
    def page(self) -> int:
        """What reads are aligned to; 0 if they need not be."""
        return PAGE if self.direct else 0

    def read(self, runs: Runs, address: int) -> int:
        """Read runs in this thread, one after the other; the first one that came short, or -1."""
        self._open_all(runs.file)
        if not self.store.local:
            for i in range(len(runs.file)):
                short = self._read_remote(runs, i, address)
                if short >= 0:
                    return short
            return -1
        targets = runs.target + address
        return int(read_runs(self.descriptors[runs.file], runs.offset, runs.length, self._slack, targets))

    def _read_remote(self, runs: Runs, i: int, address: int) -> int:
        data = self._files[int(runs.file[i])].read_at(int(runs.length[i]), int(runs.offset[i]))
        if len(data) < runs.length[i]:
            return i
        raw = np.frombuffer(data, dtype=np.uint8)
        kernel.copy_to(raw.ctypes.data, address + int(runs.target[i]), raw.nbytes)
        return -1

    def _open_all(self, files: np.ndarray) -> None:
        """Open those of some files that are not open."""
        if not self.store.local or int(self.descriptors[files].min(initial=0)) < 0:
            for number in np.unique(files).tolist():
                self._open(number)

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

    def fault(self, segment: int, why: int) -> CorruptMaster:
        """What to raise for a segment that a kernel has found bad: names its file, its number and where it lies."""
        number, offset, length = self.index.place(segment)
        inside = segment - int(self.index.part_start[number])
        where = f"bytes {offset} to {offset + length}"
        name = self.store.full(self.parts[number].file)
        return CorruptMaster(f"segment {inside} of {name} ({where}) {_FAULTS[why]}; build the master again")


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


@dataclass(frozen=True, eq=False)
class Memory:
    """`size` bytes from an `address` that the disk can read to directly; they live as long as this object, and take
    `nbytes` of memory.
    """

    address: int
    size: int
    nbytes: int
    _bytes: np.ndarray

    @classmethod
    def of(cls, size: int) -> Memory:
        """In ordinary pages."""
        return cls._aligned(np.empty(size + PAGE, dtype=np.uint8), PAGE, size, size + PAGE)

    @classmethod
    def mostly_huge(cls, size: int) -> Memory:
        """In as many huge pages as it fills, the rest in ordinary ones: no more memory than these alone."""
        nbytes = size + PAGE
        whole = size // HUGE * HUGE
        return cls._aligned(_huge_pages(whole, nbytes - whole), HUGE, size, nbytes) if whole else cls.of(size)

    @classmethod
    def huge(cls, size: int, *, more: int = 0) -> Memory:
        """In huge pages, which take memory as a whole: a disk reads to them up to twice as fast. Behind the first
        `size` bytes are `more`, in what is left of these pages and in ordinary ones.
        """
        whole = -(-size // HUGE) * HUGE
        behind = max(0, size + more - whole)
        return cls._aligned(_huge_pages(whole, behind), HUGE, size, whole + behind)

    @classmethod
    def _aligned(cls, room: np.ndarray, step: int, size: int, nbytes: int) -> Memory:
        return cls((room.ctypes.data + step - 1) & -step, size, nbytes, room)

    def part(self, start: int, size: int) -> Memory:
        """Some of these bytes, which keep all of them alive and take no memory of their own."""
        return Memory(self.address + start, size, 0, self._bytes)

    def array(self) -> np.ndarray:
        """The bytes themselves."""
        start = self.address - self._bytes.ctypes.data
        return self._bytes[start : start + self.size]


def _huge_pages(size: int, behind: int) -> np.ndarray:
    """Room for so many bytes in huge pages, if the system has any, and for those `behind` them in ordinary ones; what
    lies before them is never used.
    """
    room = mmap.mmap(-1, HUGE + size + behind, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(room, dtype=np.uint8)
    stop = -array.ctypes.data % HUGE + size
    with contextlib.suppress(AttributeError, OSError):  # systems without them
        room.madvise(mmap.MADV_HUGEPAGE, 0, stop)
        room.madvise(mmap.MADV_NOHUGEPAGE, stop)
    return array
