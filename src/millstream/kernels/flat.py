"""Rows about to be collected from columns that are not nested: one call measures all columns, one copies them.

All buffers of the columns lie in one block of memory:

    [ bits that are not NULL | values ][ bits | offsets | values ] ...
      a column of numbers                a column of texts
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numba import njit

from .gather import gather_bits, gather_bytes, gather_fixed, gather_lengths, gather_validity
from .layout import BITS, FIXED, VARLEN, Node
from .memory import store_i32, store_i64

KIND, FIRST, WIDTH = range(3)  # of a specification
OF_FIXED, OF_BITS, OF_BYTES = range(3)
_KINDS = {FIXED: OF_FIXED, BITS: OF_BITS, VARLEN: OF_BYTES}
_VALID, _DATA, _BYTES = range(3)  # places of a column's buffers
_ALIGNED = 16


def flat(nodes: Sequence[Node]) -> bool:
    """Whether none of some columns is nested."""
    return all(node.kind in _KINDS for node in nodes)


def specification(nodes: Sequence[Node]) -> np.ndarray:
    """Kind, first buffer and width of columns that are not nested, for compiled loops."""
    rows = [(_KINDS[node.kind], node.first, node.width) for node in nodes]
    return np.array(rows, dtype=np.int64).reshape(len(nodes), 3)


class FlatColumns:
    """Some columns of a layout, none of them nested."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = list(nodes)
        self.spec = specification(nodes)
        self.texts = sum(node.kind == VARLEN for node in nodes)


class FlatGathering:
    """Rows about to be collected: `nbytes` is what that takes at its height, `retained` what the columns then hold."""

    def __init__(self, table: np.ndarray, refs: np.ndarray, columns: FlatColumns) -> None:
        self.table = table
        self.refs = refs
        self.of = columns
        self._starts = np.empty((columns.texts, len(refs)), dtype=np.int64)
        self._ends = np.empty((columns.texts, len(refs) + 1), dtype=np.int64)
        self._places = np.empty((len(columns.nodes), 3), dtype=np.int64)
        self.retained = int(_measure(table, refs, columns.spec, self._starts, self._ends, self._places))
        self.nbytes = self.retained + self._starts.nbytes + self._ends.nbytes

    def _fill(self, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The block of all buffers, whose addresses go to `row`, and the number of NULLs in each column."""
        block = np.empty(self.retained, dtype=np.uint8)
        nulls = np.empty(len(self.of.nodes), dtype=np.int64)
        _fill(
            self.table,
            self.refs,
            self.of.spec,
            self._starts,
            self._ends,
            self._places,
            block.ctypes.data,
            nulls,
            row,
        )
        return block, nulls

    def store(self, row: np.ndarray) -> object:
        """Collect the rows as a page: its addresses go to `row`, and whoever keeps the result keeps them valid."""
        return self._fill(row)[0]

    def columns(self) -> list[pa.Array]:
        """The collected columns."""
        block, nulls = self._fill(np.empty(self.table.shape[1], dtype=np.int64))
        whole, n, text = pa.py_buffer(block), len(self.refs), 0
        bits = (n + 7) // 8
        arrays = []
        for node, (valid, data, content), missing in zip(
            self.of.nodes, self._places.tolist(), nulls.tolist(), strict=True
        ):
            parts = [whole.slice(valid, bits) if missing else None]
            if node.kind == VARLEN:
                size = int(self._ends[text, n])
                parts += [whole.slice(data, node.width * (n + 1)), whole.slice(content, size)]
                text += 1
            else:
                parts.append(whole.slice(data, bits if node.kind == BITS else node.width * n))
            arrays.append(pa.Array.from_buffers(node.type, n, parts, missing))
        return arrays


@njit(inline="always")
def _aligned(size):
    return (size + _ALIGNED - 1) & -_ALIGNED


@njit(cache=True, nogil=True)
def _measure(table, refs, spec, starts, ends, places):
    """Where the buffers of each column will lie in a block, and its size; `starts` and `ends` as `gather_lengths`."""
    n = refs.shape[0]
    at = np.int64(0)
    text = 0
    for c in range(spec.shape[0]):
        width = spec[c, WIDTH]
        places[c, _VALID] = at
        at += _aligned((n + 7) >> 3)
        places[c, _DATA] = at
        if spec[c, KIND] == OF_FIXED:
            at += _aligned(n * width)
        elif spec[c, KIND] == OF_BITS:
            at += _aligned((n + 7) >> 3)
        else:
            size = gather_lengths(table, spec[c, FIRST] + 1, width, refs, starts[text], ends[text])
            at += _aligned((n + 1) * width)
            places[c, _BYTES] = at
            at += _aligned(size)
            text += 1
    return at


@njit(cache=True, nogil=True)
def _all_there(refs):
    """Whether no reference stands for no row."""
    least = np.int64(0)
    for i in range(refs.shape[0]):
        least = min(least, refs[i])
    return least >= 0


@njit(cache=True, nogil=True)
def _no_nulls(table, buffer):
    """Whether no page has bits for what is NULL in a column."""
    for page in range(table.shape[0]):
        if table[page, buffer]:
            return False
    return True


@njit(cache=True, nogil=True)
def _fill(table, refs, spec, starts, ends, places, block, nulls, row):
    n = refs.shape[0]
    text = 0
    there = n >= table.shape[0] and _all_there(refs)  # looking at all pages must be worth it
    for c in range(spec.shape[0]):
        first, width = spec[c, FIRST], spec[c, WIDTH]
        valid, data = block + places[c, _VALID], block + places[c, _DATA]
        nulls[c] = 0 if there and _no_nulls(table, first) else gather_validity(table, first, refs, valid)
        row[first] = valid if nulls[c] else 0
        row[first + 1] = data
        if spec[c, KIND] == OF_FIXED:
            gather_fixed(table, first + 1, width, refs, data)
        elif spec[c, KIND] == OF_BITS:
            gather_bits(table, first + 1, refs, data)
        else:
            row[first + 2] = block + places[c, _BYTES]
            gather_bytes(table, first + 2, refs, starts[text], ends[text], block + places[c, _BYTES])
            for i in range(n + 1):
                if width == 4:
                    store_i32(data + 4 * i, ends[text, i])
                else:
                    store_i64(data + 8 * i, ends[text, i])
            text += 1
