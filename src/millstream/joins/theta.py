"""Matching by a condition instead of a key: which pairs of window rows and rows of a piece of R to look at.

Where the condition compares numbers, the rows of the window are kept sorted by the stream's column, and each row of R
matches a range of them, found by binary search; other conditions look at all pairs. Either way pairs come in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ..kernels.pages import PageTable
from .conditions import Condition, Sortable, numbers, split
from .window import Window

SORTED_BYTES = 48  # for each row of the window: value and number, twice while rows are merged in

Block = tuple[np.ndarray, np.ndarray]


def gathered(pages: PageTable, refs: np.ndarray, names: list[str]) -> pa.RecordBatch:
    """Some columns of rows, as a record batch."""
    schema = pages.layout.schema
    at = [schema.get_field_index(name) for name in names]
    columns = pages.measure(refs, at).columns()
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(refs), pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([schema.field(i) for i in at]))


class Matcher:
    """Finds the pairs that a condition without a key is about.

    Invariant: `values` are sorted, and `rows` are the numbers of the window rows that have them, all that are not NULL
    among the rows up to `known`.
    """

    def __init__(self, condition: Condition, stream: pa.Schema, master: pa.Schema) -> None:
        self.condition = condition
        self.driver, self.rest = split(condition, stream, master)
        self.kind = self.driver.number_type(stream, master) if self.driver is not None else None
        self.theirs = self.driver.columns(stream, master)[1] if self.driver is not None else []
        self.values = np.empty(0, dtype=self.kind or np.int64)
        self.rows = np.empty(0, dtype=np.int64)
        self.known = 0

    def pairs(self, window: Window, pages: PageTable, right: np.ndarray, step: int) -> Iterator[Block]:
        """Blocks of pairs, number of the window row and position in `right`, that fulfil what is searched by."""
        if self.driver is None:
            oldest, size = window.table.oldest, len(window)
            zero = np.zeros(len(right), dtype=np.int64)
            for at, position in blocks(zero, np.full(len(right), size, dtype=np.int64), step):
                yield position + oldest, at
            return
        self._follow(window, self.driver)
        for start in range(0, len(right), step):
            part = gathered(pages, right[start : start + step], self.theirs)
            for begin, end in self.driver.ranges(self.values, part):
                for at, position in blocks(begin, end - begin, step):
                    yield self.rows[position], at + start

    def _follow(self, window: Window, driver: Sortable) -> None:
        """Let rows that left the window go, and sort in those that have come."""
        oldest, following = window.table.oldest, window.table.next
        if len(self.rows) and int(self.rows.min()) < oldest:
            stay = self.rows >= oldest
            self.values, self.rows = self.values[stay], self.rows[stay]
        first = max(self.known, oldest)
        self.known = following
        if first == following:
            return
        column = gathered(window.stream, window.table.refs(window.table.slots(first, following)), [driver.column])
        values, there = numbers(column.column(0), self.values.dtype)
        rows = np.arange(first, following, dtype=np.int64)[there]
        order = np.argsort(values[there], kind="stable")
        values, rows = values[there][order], rows[order]
        at = np.searchsorted(self.values, values)
        self.values, self.rows = np.insert(self.values, at, values), np.insert(self.rows, at, rows)


def blocks(begin: np.ndarray, counts: np.ndarray, step: int) -> Iterator[Block]:
    """All positions of some ranges, a bounded number at a time: number of the range, position."""
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, step):
        pair = np.arange(start, min(start + step, total), dtype=np.int64)
        at = np.searchsorted(ends, pair, side="right")
        yield at, begin[at] + (pair - (ends[at] - counts[at]))
