"""Rows of pages collected little by little, and handed out as columns when there are many of them.

A `Gathering` makes one record batch of some rows, which costs the same few calls for each column however few rows there
are. Whoever finds a few rows at a time collects them here: one call copies all columns of some rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numba import njit

from .flat import FIRST, KIND, OF_BITS, OF_BYTES, OF_FIXED, WIDTH, flat, specification
from .gather import gather_bytes, gather_fixed, gather_lengths
from .layout import BITS, VARLEN, Layout
from .memory import load_u8, store_i32, store_i64, store_u8
from .pages import PageTable

ROW_MASK = 0xFFFFFFFF
LENGTH = 24.0  # of a value, before any is seen
ROOM = 1.3  # for values that are longer than they were

_VALID, _DATA, _BYTES, _ROOM, _USED, _NULLS = range(6)


def collectable(layout: Layout, columns: Sequence[int]) -> bool:
    """Whether rows of these columns can be collected: none is nested."""
    return flat([layout.columns[i] for i in columns])


class Collector:
    """Columns that grow.

    Invariants: 1. the first `rows` of each column are there; 2. `state` has the addresses of the columns' buffers, and
    for values of any length the bytes that there is room for and that are used.
    """

    def __init__(self, pages: PageTable, columns: Sequence[int]) -> None:
        self.pages = pages
        self.nodes = [pages.layout.columns[i] for i in columns]
        self.rows = self.capacity = 0
        self._spec = specification(self.nodes)
        self._texts = any(node.kind == VARLEN for node in self.nodes)
        self._lengths = [LENGTH if node.kind == VARLEN else 0.0 for node in self.nodes]
        self._state = np.zeros((len(self.nodes), 6), dtype=np.int64)
        self._buffers: list[list[np.ndarray]] = []

    @property
    def row_bytes(self) -> float:
        """Memory for a row."""
        total = 1.0
        for node, length in zip(self.nodes, self._lengths, strict=True):
            total += 1 + (node.width if node.kind != BITS else 1) + ROOM * length
        return total

    def allocate(self, capacity: int) -> None:
        """Make room for so many rows; nothing may be there."""
        assert not self.rows
        self.capacity, self._buffers = capacity, []
        self._state[:] = 0
        for state, node, length in zip(self._state, self.nodes, self._lengths, strict=True):
            size = capacity if node.kind == BITS else node.width * (capacity + (node.kind == VARLEN))
            room = int(ROOM * length * capacity) + 8 if node.kind == VARLEN else 0
            buffers = [np.empty(wanted, dtype=np.uint8) for wanted in (capacity, size, room)]
            state[[_VALID, _DATA, _BYTES]] = [buffer.ctypes.data for buffer in buffers]
            state[_ROOM] = room
            self._buffers.append(buffers)

    def fitting(self, refs: np.ndarray) -> int:
        """How many of the first of some rows there is room for."""
        if not self._texts:
            return min(len(refs), self.capacity - self.rows)
        return int(
            _fitting(self.pages.addresses, self.pages.strides, refs, self._spec, self._state, self.capacity - self.rows)
        )

    def append(self, refs: np.ndarray) -> int:
        """Copy the first of some rows, as many as there is room for; how many."""
        table, strides, room = self.pages.addresses, self.pages.strides, self.capacity - self.rows
        done = int(_append(table, strides, refs, self._spec, self._state, self.rows, room))
        self.rows += done
        return done

    def columns(self) -> list[pa.Array]:
        """The rows that are there; new room must be made before the next ones."""
        n, arrays = self.rows, []
        for i, (node, state, buffers) in enumerate(zip(self.nodes, self._state, self._buffers, strict=True)):
            valid, data, content = buffers
            nulls = int(state[_NULLS])
            bits = pa.py_buffer(np.packbits(valid[:n], bitorder="little")) if nulls else None
            if node.kind == VARLEN:
                used = int(state[_USED])
                parts = [bits, pa.py_buffer(data[: node.width * (n + 1)]), pa.py_buffer(content[:used])]
                self._lengths[i] = max(1.0, used / max(1, n))
            elif node.kind == BITS:
                parts = [bits, pa.py_buffer(np.packbits(data[:n], bitorder="little"))]
            else:
                parts = [bits, pa.py_buffer(data[: node.width * n])]
            arrays.append(pa.Array.from_buffers(node.type, n, parts, nulls))
        self.rows = self.capacity = 0
        self._buffers = []
        return arrays


@njit(cache=True, nogil=True)
def _fitting(table, strides, refs, spec, state, rows):
    n = min(rows, refs.shape[0])
    for c in range(spec.shape[0]):
        if spec[c, KIND] == OF_BYTES:
            room = state[c, _ROOM] - state[c, _USED]
            starts, ends = np.empty(n, dtype=np.int64), np.empty(n + 1, dtype=np.int64)
            ends[0] = 0
            first, width = spec[c, FIRST] + 1, spec[c, WIDTH]
            if gather_lengths(table, strides, first, width, refs[:n], starts, ends) > room:
                n = max(0, np.searchsorted(ends, room, side="right") - 1)
    return n


@njit(cache=True, nogil=True)
def _append(table, strides, refs, spec, state, at, room):
    n = min(room, refs.shape[0])
    texts = 0
    for c in range(spec.shape[0]):
        texts += spec[c, KIND] == OF_BYTES
    starts, ends = np.empty((texts, n), dtype=np.int64), np.empty((texts, n + 1), dtype=np.int64)
    texts = 0
    for c in range(spec.shape[0]):
        if spec[c, KIND] == OF_BYTES:
            left = state[c, _ROOM] - state[c, _USED]
            first, width = spec[c, FIRST] + 1, spec[c, WIDTH]
            ends[texts, 0] = 0
            if gather_lengths(table, strides, first, width, refs[:n], starts[texts, :n], ends[texts, : n + 1]) > left:
                n = max(0, np.searchsorted(ends[texts, : n + 1], left, side="right") - 1)
            texts += 1
    refs = refs[:n]
    texts = 0
    for c in range(spec.shape[0]):
        first = spec[c, FIRST]
        width = spec[c, WIDTH]
        state[c, _NULLS] += _valid_bytes(table, first, refs, state[c, _VALID] + at)
        if spec[c, KIND] == OF_FIXED:
            gather_fixed(table, strides, first + 1, width, refs, state[c, _DATA] + at * width, width)
        elif spec[c, KIND] == OF_BITS:
            _bit_bytes(table, first + 1, refs, state[c, _DATA] + at)
        else:
            used = state[c, _USED]
            gather_bytes(table, first + 2, refs, starts[texts, :n], ends[texts, : n + 1], state[c, _BYTES] + used)
            for i in range(n + 1):
                if width == 4:
                    store_i32(state[c, _DATA] + 4 * (at + i), ends[texts, i] + used)
                else:
                    store_i64(state[c, _DATA] + 8 * (at + i), ends[texts, i] + used)
            state[c, _USED] = used + ends[texts, n]
            texts += 1
    return n


@njit(inline="always")
def _bit(address, ref):
    row = ref & ROW_MASK
    return (load_u8(address + (row >> 3)) >> (row & 7)) & 1


@njit(cache=True, nogil=True)
def _valid_bytes(table, buffer, refs, out):
    """Write 1 for every row that is there and not NULL; the number of the others."""
    nulls = 0
    for i in range(refs.shape[0]):
        ref = refs[i]
        valid = 0
        if ref >= 0:
            address = table[ref >> 32, buffer]
            valid = 1 if address == 0 else _bit(address, ref)
        store_u8(out + i, valid)
        nulls += 1 - valid
    return nulls


@njit(cache=True, nogil=True)
def _bit_bytes(table, buffer, refs, out):
    for i in range(refs.shape[0]):
        store_u8(out + i, _bit(table[refs[i] >> 32, buffer], refs[i]) if refs[i] >= 0 else 0)
