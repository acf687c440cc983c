"""A disk buffer that keeps only rows: of the segments that are read for some keys, the rows of these keys."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait

import numpy as np

from ..kernels import wanted_rows as kernel
from ..kernels.flat import specification
from ..kernels.layout import BITS, VARLEN, Layout, Node
from ..kernels.pages import PageTable
from ..kernels.segments import BAD_MESSAGE
from .index import SegmentIndex
from .master import Master
from .part_files import Memory
from .reader import SegmentReader

PER_KEY = 24  # bytes beside the rows: clustering key, first row and number of rows
LENGTH = 24.0  # of a value, before any is seen
SLACK = 1.2  # for values that are longer than they were
_ALIGNED = 16


class RowBuffer:
    """The disk buffer D_B without what nobody asked for: `size` bytes for rows, and some `memory` that reads go to.

    Invariants: 1. the page and what `finish` found are valid until the next `start`; 2. there is room for all rows of
    any one segment, so that every fetch comes further.
    """

    def __init__(
        self, reader: SegmentReader, pages: PageTable, columns: Sequence[int], *, key: Node, size: int, memory: Memory
    ) -> None:
        self.nodes = [pages.layout.columns[i] for i in columns]
        self.reader = reader
        self.pages = pages
        self.key = key
        self.size = size
        self._largest = _largest(reader.index)
        self.reads = self.bytes_read = self.segments = 0
        self._memory = memory
        self._block = np.empty(size, dtype=np.uint8)
        self.page = pages.reserve(self._block)  # not the buffer, which knows the pages: memory that is let go is free
        self._spec = specification(self.nodes)
        self._texts = np.array([node.kind == VARLEN for node in self.nodes], dtype=np.bool_)
        self._lengths = np.where(self._texts, LENGTH, 0.0)
        self._state = np.zeros((len(self.nodes), 6), dtype=np.int64)
        self._addresses = np.zeros(pages.addresses.shape[1], dtype=np.int64)
        self._done = np.zeros(7, dtype=np.int64)
        self._wanted = np.empty(0, dtype=np.int64)
        self._pending: Future[None] | None = None
        self._job: tuple[object, ...] = ()
        self._lay_out()

    @property
    def nbytes(self) -> int:
        return self.size + self._memory.nbytes

    @staticmethod
    def least(master: Master, columns: Sequence[int]) -> int:
        """A size that holds all rows of any one segment."""
        nodes = [Layout.of(master.stored_schema).columns[i] for i in columns]
        rows, size = _largest(master.index)
        return rows * _row_bytes(nodes) + sum(size for node in nodes if node.kind == VARLEN) + _padding(nodes)

    def _lay_out(self) -> None:
        """Divide the block among the columns, by how long their values were; `capacity` is the rows it then holds.

        Whatever they were, there is room for one segment.
        """
        rows, size = self._largest
        fixed = _row_bytes(self.nodes)
        taken = rows * fixed + size * int(self._texts.sum()) + _padding(self.nodes)
        more = max(0, int((self.size - taken) / (fixed + SLACK * float(self._lengths.sum()))))
        self.capacity = rows + more
        rooms = np.where(self._texts, size + (SLACK * more * self._lengths).astype(np.int64), 0)
        at = 0

        def piece(size: int) -> int:
            nonlocal at
            start, at = at, at - (-size // _ALIGNED) * _ALIGNED
            return start

        numbers = [piece(8 * self.capacity) for _ in range(3)]
        self.first, self.found, self.codes = (
            self._block[start : start + 8 * self.capacity].view(np.int64) for start in numbers
        )
        bits = self.capacity // 8 + 1
        for state, node, room in zip(self._state, self.nodes, rooms.tolist(), strict=True):
            text = node.kind == VARLEN
            width = bits if node.kind == BITS else node.width * (self.capacity + text)
            valid, data, content = piece(bits), piece(width), piece(room)
            state[kernel.VALID], state[kernel.DATA], state[kernel.BYTES] = valid, data, content
            if text:
                self._block[data : data + node.width] = 0  # the first offset
            state[kernel.ROOM], state[kernel.USED], state[kernel.NULLS] = room, 0, 0
        assert at <= self.size
        self._state[:, [kernel.VALID, kernel.DATA, kernel.BYTES]] += self._block.ctypes.data

    def start(self, keys: np.ndarray, segments: np.ndarray, *, whole: bool, background: bool) -> None:
        """Begin to fetch the rows of the first of some sorted distinct keys from their segments, as many as there is
        room for; with `whole`, all rows of these segments. In the background, or when `finish` is called.
        """
        if self._pending is not None:
            wait([self._pending])  # of a join that was given up
        self._lay_out()
        keys, segments = keys[: self.capacity], segments[: self.capacity]
        reader, index = self.reader, self.reader.index
        reader.open_between(int(segments[0]), int(segments[-1]))
        self._wanted = segments
        self._job = (
            keys, segments, whole, index.part_start, index.offset, index.length, index.rows, index.checksum,
            reader.descriptors, reader.gap, reader.page, self._memory.address, self._memory.size, self.key.first + 1,
            self.key.width, self._spec, self._state, self.capacity, self.first, self.found, self.codes,
            self._addresses, self._done,
        )  # fmt: skip
        self._pending = reader.pool.submit(self._fetch) if background else None

    def _fetch(self) -> None:
        """Do what was begun; whoever runs this keeps the memory alive that is written to."""
        kernel.fetch_wanted(*self._job)

    def finish(self) -> int:
        """Wait for the rows: how many of the keys are done. `first` and `found` have their rows as references."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None
        else:
            self._fetch()
        done = self._done
        if done[kernel.BAD] >= 0:
            raise self.reader.fault(int(done[kernel.BAD]), int(done[kernel.WHY]))
        keys, rows = int(done[kernel.KEYS]), int(done[kernel.ROWS])
        if not keys:  # its rows claim to be longer than the segment
            raise self.reader.fault(int(self._wanted[0]), BAD_MESSAGE)
        self.pages.addresses[self.page] = self._addresses
        self.first, self.found = self.first[:keys] + (self.page << 32), self.found[:keys]
        self.codes = self.codes[:rows]
        self.reads += int(done[kernel.READS])
        self.bytes_read += int(done[kernel.READ_BYTES])
        self.segments += int(done[kernel.SEGMENTS])
        if rows:
            used = self._state[:, kernel.USED] / rows
            self._lengths = np.where(self._texts, np.maximum(1.0, used), 0.0)
        return keys

    def groups(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of whole segments: all their keys, the first row and the number of rows of each."""
        codes = self.codes
        starts = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1]))) if len(codes) else np.empty(0, int)
        return codes[starts], starts + (self.page << 32), np.diff(np.append(starts, len(codes)))


def _largest(index: SegmentIndex) -> tuple[int, int]:
    """The most rows and bytes that a segment has."""
    return int(index.rows.max(initial=1)), int(index.length.max(initial=1))


def _row_bytes(nodes: Sequence[Node]) -> int:
    """Memory of a row, but for values of any length."""
    return PER_KEY + sum(2 if node.kind == BITS else 1 + node.width for node in nodes)


def _padding(nodes: Sequence[Node]) -> int:
    return (len(nodes) + 1) * (3 * _ALIGNED + 16)
