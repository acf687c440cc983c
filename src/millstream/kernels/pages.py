"""Pages of rows addressed by reference, and record batches made from any rows of any pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from . import gather
from .flat import FlatColumns, FlatGathering, RowGathering, flat
from .layout import BITS, FIXED, LIST, NULL, REPEAT, STRUCT, VARLEN, Layout, Node


def aligned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in arrays that all start at row 0 of their buffers."""
    if not any(_has_offset(column) for column in batch.columns):
        return batch
    columns = [_from_zero(column) if _has_offset(column) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _from_zero(array: pa.Array) -> pa.Array:
    return array.take(pa.array(np.arange(len(array)), pa.int64()))


def _has_offset(array: pa.Array) -> bool:
    if array.offset:
        return True
    if isinstance(array, pa.StructArray):
        return any(_has_offset(array.field(i)) for i in range(array.type.num_fields))
    if isinstance(array, pa.MapArray):
        return _has_offset(array.keys) or _has_offset(array.items)
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return _has_offset(array.values)
    return False


class PageTable:
    """Pages of one layout, found by number.

    Invariants: 1. `addresses[p]` holds the buffer addresses of page p and `owners[p]` keeps those buffers alive.
    2. `strides[p]` is 0 unless the page has the values of a row side by side (`flat.py`). 3. A page number is used
    again only after `release`. 4. Not thread-safe.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.addresses = np.zeros((16, max(1, layout.buffers)), dtype=np.int64)
        self.strides = np.zeros(len(self.addresses), dtype=np.int64)
        self.owners: list[object | None] = []
        self.free: list[int] = []
        self._flat: dict[tuple[int, ...], FlatColumns | None] = {}

    def __len__(self) -> int:
        return len(self.owners) - len(self.free)

    def reserve(self, owner: object) -> int:
        """A page number whose addresses the caller fills in."""
        if self.free:
            page = self.free.pop()
            self.owners[page] = owner
            self.strides[page] = 0
            return page
        page = len(self.owners)
        if page == len(self.addresses):
            grown = np.zeros((2 * page, self.addresses.shape[1]), dtype=np.int64)
            grown[:page] = self.addresses
            self.addresses = grown
            self.strides = np.append(self.strides, np.zeros(page, dtype=np.int64))
        self.owners.append(owner)
        return page

    def add(self, batch: pa.RecordBatch) -> int:
        """Make a page of a record batch whose arrays start at row 0."""
        page = self.reserve(batch)
        at = 0
        row = self.addresses[page]
        for node, column in zip(self.layout.columns, batch.columns, strict=True):
            at = _write_addresses(node, column, row, at)
        return page

    def keep(self, rows: KeptRows) -> int:
        """Collect rows and make a page of them; columns that they do not have must not be asked for."""
        page = self.reserve(None)
        row = self.addresses[page]
        row[:] = 0
        self.owners[page] = rows.store(row)
        self.strides[page] = rows.stride
        return page

    def fill(self, page: int, batch: pa.RecordBatch, columns: Sequence[int]) -> None:
        """Put columns of a record batch into a reserved page; the caller keeps the batch alive."""
        row = self.addresses[page]
        for i, column in zip(columns, batch.columns, strict=True):
            _write_addresses(self.layout.columns[i], column, row, self.layout.columns[i].first)

    def release(self, page: int) -> None:
        self.owners[page] = None
        self.free.append(page)

    def measure(self, refs: np.ndarray, columns: Sequence[int]) -> Gathering:
        """Prepare to collect rows as columns: how many bytes they take is known before they are allocated."""
        found = self._flat_columns(columns)
        if found is None:
            return NestedGathering(self, refs, columns)
        return FlatGathering(self.addresses, self.strides, refs, found)

    def measure_page(self, refs: np.ndarray, columns: Sequence[int]) -> KeptRows:
        """The same for rows that `keep` makes a page of."""
        found = self._flat_columns(columns)
        rows = RowGathering(self.addresses, self.strides, refs, found) if found is not None else None
        return rows if rows is not None and rows.fits else NestedGathering(self, refs, columns)

    def _flat_columns(self, columns: Sequence[int]) -> FlatColumns | None:
        wanted = tuple(columns)
        if wanted not in self._flat:
            nodes = [self.layout.columns[i] for i in wanted]
            self._flat[wanted] = FlatColumns(nodes) if flat(nodes) else None
        return self._flat[wanted]


def _write_addresses(node: Node, array: pa.Array, row: np.ndarray, at: int) -> int:
    """Write the addresses of an array's buffers, depth first; the index after the last one."""
    if node.kind == NULL:
        return at
    buffers = array.buffers()[: node.buffers]
    for buffer in buffers:
        row[at] = buffer.address if buffer is not None else 0
        at += 1
    if node.kind == STRUCT:
        for i, child in enumerate(node.children):
            at = _write_addresses(child, array.field(i), row, at)
    elif node.kind in (LIST, REPEAT):
        at = _write_addresses(node.children[0], items(array), row, at)
    return at


def items(array: pa.Array) -> pa.Array:
    """All items of a list or map array, as its child array."""
    if isinstance(array, pa.MapArray):
        return pa.StructArray.from_arrays([array.keys, array.items], fields=_entry_fields(array.type))
    return array.values


def _entry_fields(type_: pa.MapType) -> list[pa.Field]:
    return [pa.field("key", type_.key_type, nullable=False), type_.item_field]


class NestedGathering:
    """The same as `FlatGathering` and `RowGathering`, for any columns, one after the other."""

    stride = 0

    def __init__(self, pages: PageTable, refs: np.ndarray, columns: Sequence[int]) -> None:
        self.table = pages.addresses
        self.strides = pages.strides
        self.refs = refs
        self.nodes = [pages.layout.columns[i] for i in columns]
        self.nbytes = 0
        self._passing = 0
        self.plans = [self._measure(node, refs) for node in self.nodes]

    @property
    def retained(self) -> int:
        return self.nbytes - self._passing

    def _measure(self, node: Node, refs: np.ndarray):
        n = len(refs)
        self.nbytes += n // 8 + 8
        if node.kind == FIXED:
            self.nbytes += n * node.width
        elif node.kind == BITS:
            self.nbytes += n // 8 + 8
        elif node.kind == VARLEN:
            starts, ends, total = self._offsets(node, refs)
            self.nbytes += total
            return starts, ends
        elif node.kind == LIST:
            starts, ends, total = self._offsets(node, refs)
            children = np.empty(total, dtype=np.int64)
            self.nbytes += children.nbytes
            self._passing += children.nbytes
            gather.gather_children(refs, starts, ends, children)
            return ends, children, self._measure(node.children[0], children)
        elif node.kind == REPEAT:
            children = np.empty(n * node.width, dtype=np.int64)
            gather.repeat_children(refs, node.width, children)
            self.nbytes += children.nbytes
            self._passing += children.nbytes
            return children, self._measure(node.children[0], children)
        elif node.kind == STRUCT:
            return [self._measure(child, refs) for child in node.children]
        return None

    def _offsets(self, node: Node, refs: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Where the values or items of rows lie in their pages, where they will lie, and how many there are."""
        n = len(refs)
        starts, ends = np.empty(n, dtype=np.int64), np.empty(n + 1, dtype=np.int64)
        ends[0] = 0
        total = gather.gather_lengths(self.table, self.strides, node.first + 1, node.width, refs, starts, ends)
        self.nbytes += starts.nbytes + ends.nbytes + (n + 1) * node.width
        self._passing += starts.nbytes + (ends.nbytes if node.width == 4 else (n + 1) * node.width)
        return starts, ends, total

    def store(self, row: np.ndarray) -> object:
        """Collect the rows as a page: its addresses go to `row`, and whoever keeps the result keeps them valid."""
        arrays = self.columns()
        for node, array in zip(self.nodes, arrays, strict=True):
            _write_addresses(node, array, row, node.first)
        return arrays

    def columns(self) -> list[pa.Array]:
        """The collected columns, in buffers of their own."""
        return [self._fill(node, self.refs, plan) for node, plan in zip(self.nodes, self.plans, strict=True)]

    def _fill(self, node: Node, refs: np.ndarray, plan) -> pa.Array:
        n = len(refs)
        if node.kind == NULL:
            return pa.nulls(n)
        validity = np.empty((n + 7) // 8, dtype=np.uint8)
        nulls = gather.gather_validity(self.table, node.first, refs, validity.ctypes.data)
        bits = pa.py_buffer(validity) if nulls else None
        if node.kind == FIXED:
            data = np.empty(n * node.width, dtype=np.uint8)
            width = node.width
            gather.gather_fixed(self.table, self.strides, node.first + 1, width, refs, data.ctypes.data, width)
            return pa.Array.from_buffers(node.type, n, [bits, pa.py_buffer(data)], nulls)
        if node.kind == BITS:
            data = np.empty((n + 7) // 8, dtype=np.uint8)
            gather.gather_bits(self.table, node.first + 1, refs, data.ctypes.data)
            return pa.Array.from_buffers(node.type, n, [bits, pa.py_buffer(data)], nulls)
        if node.kind == VARLEN:
            starts, ends = plan
            data = np.empty(int(ends[-1]), dtype=np.uint8)
            gather.gather_bytes(self.table, node.first + 2, refs, starts, ends, data.ctypes.data)
            return pa.Array.from_buffers(node.type, n, [bits, _offsets(ends, node.width), pa.py_buffer(data)], nulls)
        if node.kind == LIST:
            ends, children, below = plan
            items = self._fill(node.children[0], children, below)
            return pa.Array.from_buffers(node.type, n, [bits, _offsets(ends, node.width)], nulls, children=[items])
        if node.kind == REPEAT:
            children, below = plan
            items = self._fill(node.children[0], children, below)
            return pa.Array.from_buffers(node.type, n, [bits], nulls, children=[items])
        parts = [self._fill(child, refs, below) for child, below in zip(node.children, plan, strict=True)]
        return pa.Array.from_buffers(node.type, n, [bits], nulls, children=parts)


def _offsets(ends: np.ndarray, width: int) -> pa.Buffer:
    return pa.py_buffer(ends if width == 8 else ends.astype(np.int32))


Gathering = FlatGathering | NestedGathering
KeptRows = RowGathering | NestedGathering
