"""Rows about to be collected from columns that are not nested: one call measures all columns, one copies them.

All buffers of the columns lie in one block of memory. Columns of a record batch lie as Arrow wants them; a page that is
kept has the values of a row side by side, so that whoever comes back for some rows finds each in a few cache lines
instead of one or two for each column:

    columns    [ bits that are not NULL | values ][ bits | offsets | texts ] ...
    kept rows  [ bits ][ bits ] ... [ values and offsets of row 0 | of row 1 | ... ][ texts of row 0 | of row 1 | ... ]

Both are made a thousand rows at a time: what one column has brought near is still there for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numba import njit

from .gather import (
    AHEAD,
    copy_value,
    gather_bits,
    gather_bytes,
    gather_fixed,
    gather_lengths,
    gather_validity,
)
from .layout import BITS, FIXED, VARLEN, Node
from .memory import prefetch, store_i32, store_i64

KIND, FIRST, WIDTH = range(3)  # of a specification
OF_FIXED, OF_BITS, OF_BYTES = range(3)
_KINDS = {FIXED: OF_FIXED, BITS: OF_BITS, VARLEN: OF_BYTES}
_VALID, _DATA, _BYTES = range(3)  # places of a column's buffers
_ALIGNED = 16
_SOME = 1024  # rows that are copied at a time; a multiple of 8
MOST_TEXT = (1 << 31) - 1  # bytes of texts that the offsets of a kept page reach


def flat(nodes: Sequence[Node]) -> bool:
    """Whether none of some columns is nested."""
    return all(node.kind in _KINDS for node in nodes)


def specification(nodes: Sequence[Node]) -> np.ndarray:
    """Kind, first buffer and width of columns that are not nested, for compiled loops."""
    rows = [(_KINDS[node.kind], node.first, node.width) for node in nodes]
    return np.array(rows, dtype=np.int64).reshape(len(nodes), 3)


class FlatColumns:
    """Some columns of a layout, none of them nested.

    In a row that is kept, the values of column c begin at `within[c]`, those of the next row `stride` bytes behind it.
    A text has the offset of its end there too, which is where the next text begins: `order` is that of the texts.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = list(nodes)
        self.spec = specification(nodes)
        self.within = np.zeros(len(nodes), dtype=np.int64)
        texts = [c for c, node in enumerate(nodes) if node.kind == VARLEN]
        self.order = np.array(sorted(texts, key=lambda c: nodes[c].width), dtype=np.int64)
        self.texts = len(texts)
        at = 0
        for c, node in enumerate(nodes):
            if node.kind == FIXED:
                self.within[c] = at
                at += node.width
        for width in (4, 8):
            some = [c for c in self.order.tolist() if nodes[c].width == width]
            for c in some:
                self.within[c] = at
                at += width
            at += width if some else 0
        self.stride = at


class FlatGathering:
    """Columns about to be collected: `nbytes` is what that takes at its height, `retained` what they then hold."""

    def __init__(self, table: np.ndarray, strides: np.ndarray, refs: np.ndarray, columns: FlatColumns) -> None:
        self.refs = refs
        self._of = columns
        self._from = table, strides
        self._starts, self._ends = _offsets(columns, refs)
        self._places = np.empty((len(columns.nodes), 3), dtype=np.int64)
        _measure(table, strides, refs, columns.spec, self._starts, self._ends)
        self.retained = int(_place(len(refs), columns.spec, self._ends, self._places))
        self.nbytes = self.retained + self._starts.nbytes + self._ends.nbytes

    def columns(self) -> list[pa.Array]:
        """The collected columns."""
        block = np.empty(self.retained, dtype=np.uint8)
        nulls = np.zeros(len(self._of.nodes), dtype=np.int64)
        _fill(
            *self._from,
            self.refs,
            self._of.spec,
            self._starts,
            self._ends,
            self._places,
            block.ctypes.data,
            nulls,
        )
        whole, n, text = pa.py_buffer(block), len(self.refs), 0
        bits = (n + 7) // 8
        arrays = []
        for node, (valid, data, content), missing in zip(
            self._of.nodes, self._places.tolist(), nulls.tolist(), strict=True
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


class RowGathering:
    """Rows about to be kept as a page, with the same figures. `fits` says whether their offsets reach all texts."""

    def __init__(self, table: np.ndarray, strides: np.ndarray, refs: np.ndarray, columns: FlatColumns) -> None:
        self.refs = refs
        self.stride = columns.stride
        self._of = columns
        self._from = table, strides
        self._starts, self._ends = _offsets(columns, refs)
        _measure(table, strides, refs, columns.spec, self._starts, self._ends)
        text = int(self._ends[:, len(refs)].sum())
        kinds = columns.spec[:, KIND]
        self._bits = _aligned_size((len(refs) + 7) // 8)
        self._bitmaps = len(kinds) + int((kinds == OF_BITS).sum())
        self.fits = text <= MOST_TEXT
        self.retained = self._bitmaps * self._bits + len(refs) * self.stride + text
        self.nbytes = self.retained + self._starts.nbytes + self._ends.nbytes

    def store(self, row: np.ndarray) -> object:
        """Collect the rows as a page: its addresses go to `row`, and whoever keeps the result keeps them valid."""
        block = np.empty(self.retained, dtype=np.uint8)
        of, start = self._of, block.ctypes.data
        _keep(
            *self._from,
            self.refs,
            of.spec,
            of.within,
            of.order,
            of.stride,
            self._starts,
            self._ends,
            start,
            self._bits,
            start + self._bitmaps * self._bits,
            row,
        )
        return block


def _offsets(columns: FlatColumns, refs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Room for the offsets of all texts in their pages, and of their ends where they are collected."""
    starts = np.empty((columns.texts, len(refs)), dtype=np.int64)
    ends = np.empty((columns.texts, len(refs) + 1), dtype=np.int64)
    ends[:, 0] = 0
    return starts, ends


def _aligned_size(size: int) -> int:
    return (size + _ALIGNED - 1) & -_ALIGNED


_aligned = njit(inline="always")(_aligned_size)


@njit(cache=True, nogil=True)
def _measure(table, strides, refs, spec, starts, ends):
    """The offsets of all texts, as `gather_lengths` gives them."""
    n = refs.shape[0]
    for low in range(0, n, _SOME):
        high = min(low + _SOME, n)
        text = 0
        for c in range(spec.shape[0]):
            if spec[c, KIND] == OF_BYTES:
                first, width = spec[c, FIRST] + 1, spec[c, WIDTH]
                gather_lengths(
                    table, strides, first, width, refs[low:high], starts[text, low:high], ends[text, low : high + 1]
                )
                text += 1


@njit(cache=True, nogil=True)
def _place(n, spec, ends, places):
    """Where the buffers of each column will lie in a block, and its size."""
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
            at += _aligned((n + 1) * width)
            places[c, _BYTES] = at
            at += _aligned(ends[text, n])
            text += 1
    return at


@njit(cache=True, nogil=True)
def _may_be_null(table, refs, spec):
    """Whether a value of each column may be NULL, if that can be told with less work than looking at each."""
    n = refs.shape[0]
    may = np.ones(spec.shape[0], dtype=np.bool_)
    least = np.int64(0)
    if n >= table.shape[0]:  # looking at all pages must be worth it
        for i in range(n):
            least = min(least, refs[i])
        for c in range(spec.shape[0]):
            may[c] = least < 0
            for page in range(table.shape[0]):
                if table[page, spec[c, FIRST]]:
                    may[c] = True
                    break
    return may


@njit(cache=True, nogil=True)
def _fill(table, strides, refs, spec, starts, ends, places, block, nulls):
    n = refs.shape[0]
    may = _may_be_null(table, refs, spec)
    for low in range(0, n, _SOME):
        high = min(low + _SOME, n)
        some = refs[low:high]
        text = 0
        for c in range(spec.shape[0]):
            first, width = spec[c, FIRST], spec[c, WIDTH]
            data = block + places[c, _DATA]
            if may[c]:
                nulls[c] += gather_validity(table, first, some, block + places[c, _VALID] + (low >> 3))
            if spec[c, KIND] == OF_FIXED:
                gather_fixed(table, strides, first + 1, width, some, data + width * low, width)
            elif spec[c, KIND] == OF_BITS:
                gather_bits(table, first + 1, some, data + (low >> 3))
            else:
                gather_bytes(
                    table,
                    first + 2,
                    some,
                    starts[text, low:high],
                    ends[text, low : high + 1],
                    block + places[c, _BYTES],
                )
                for i in range(low, high + 1):
                    if width == 4:
                        store_i32(data + 4 * i, ends[text, i])
                    else:
                        store_i64(data + 8 * i, ends[text, i])
                text += 1
    if n == 0:
        for c in range(spec.shape[0]):
            if spec[c, KIND] == OF_BYTES:  # the first offset
                store_i64(block + places[c, _DATA], 0)


@njit(cache=True, nogil=True)
def _keep(table, strides, refs, spec, within, order, stride, starts, ends, bitmaps, bits, rows, row):
    """Collect rows: bitmaps of `bits` bytes each, then rows, then their texts; the addresses go to `row`."""
    n = refs.shape[0]
    may = _may_be_null(table, refs, spec)
    content = rows + n * stride
    for c in range(spec.shape[0]):
        first = spec[c, FIRST]
        nulls = gather_validity(table, first, refs, bitmaps) if may[c] else 0
        row[first] = bitmaps if nulls else 0
        bitmaps += bits
        row[first + 1] = rows + within[c]
        if spec[c, KIND] == OF_BITS:
            gather_bits(table, first + 1, refs, bitmaps)
            row[first + 1] = bitmaps
            bitmaps += bits
        elif spec[c, KIND] == OF_BYTES:
            row[first + 2] = content
    which = np.empty(order.shape[0], dtype=np.int64)  # of the texts in their order, in `starts` and `ends`
    for t in range(order.shape[0]):
        which[t] = 0
        for c in range(order[t]):
            which[t] += spec[c, KIND] == OF_BYTES
    at = np.int64(0)
    for low in range(0, n, _SOME):
        high = min(low + _SOME, n)
        for c in range(spec.shape[0]):
            if spec[c, KIND] == OF_FIXED:
                first, width = spec[c, FIRST], spec[c, WIDTH]
                out = rows + within[c] + stride * low
                gather_fixed(table, strides, first + 1, width, refs[low:high], out, stride)
        for i in range(low, high) if order.shape[0] else range(0):
            j = min(i + AHEAD, n - 1)
            for t in range(order.shape[0]):
                c, text = order[t], which[t]
                buffer, place = spec[c, FIRST] + 2, rows + within[c] + stride * i
                if refs[j] >= 0:
                    prefetch(table[refs[j] >> 32, buffer] + starts[text, j])
                length = ends[text, i + 1] - ends[text, i]
                if length:
                    copy_value(content + at, table[refs[i] >> 32, buffer] + starts[text, i], length)
                if spec[c, WIDTH] == 4:
                    store_i32(place, at)
                    store_i32(place + 4, at + length)
                else:
                    store_i64(place, at)
                    store_i64(place + 8, at + length)
                at += length
