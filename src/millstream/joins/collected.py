"""Results that are collected until there are many: each piece of R gives a few, and a record batch has its price."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..kernels.collector import Collector, collectable
from ..kernels.pages import PageTable
from .plan import JoinPlan

LEAST_COLLECTED = 64  # rows: fewer are not worth collecting
MOST_COLLECTED = 1 << 15


class CollectedResults:
    """Stream rows beside master rows, copied into about `size` bytes.

    With a `marker` one column more says whether a row matched.
    Invariant: both sides have the same rows, unless the results have no master rows.
    """

    def __init__(self, plan: JoinPlan, stream: PageTable, pages: PageTable, *, marker: str | None, size: int) -> None:
        with_master = plan.how in ("inner", "left")
        self.schema = plan.output
        self.size = size
        self._mine = Collector(stream, range(len(plan.stream)))
        self._theirs = Collector(pages, plan.brought) if with_master else None
        self._marker = marker if with_master else None
        self._marks = np.empty(0, dtype=np.bool_)

    @staticmethod
    def possible(plan: JoinPlan, stream: PageTable, pages: PageTable) -> bool:
        """Whether the results of a join can be collected: no column of them is nested."""
        return collectable(stream.layout, range(len(plan.stream))) and collectable(pages.layout, plan.brought)

    @property
    def rows(self) -> int:
        return self._mine.rows

    def add(self, left: np.ndarray, right: np.ndarray | None) -> int:
        """Copy the first of some results, as many as there is room for; how many."""
        mine, theirs = self._mine, self._theirs
        if not mine.capacity and not self._allocate():
            return 0
        taken = mine.fitting(left)
        if theirs is not None:
            assert right is not None
            taken = theirs.append(right[:taken])
            if self._marker is not None:
                self._marks[mine.rows : mine.rows + taken] = right[:taken] >= 0
        mine.append(left[:taken])
        return taken

    def _allocate(self) -> bool:
        """Make room for as many results as are worth it, if the memory suffices for them."""
        mine, theirs = self._mine, self._theirs
        rows = int(self.size / (1 + mine.row_bytes + (theirs.row_bytes if theirs is not None else 0)))
        if rows < LEAST_COLLECTED:
            return False
        mine.allocate(min(rows, MOST_COLLECTED))
        if theirs is not None:
            theirs.allocate(mine.capacity)
        if self._marker is not None:
            self._marks = np.empty(mine.capacity, dtype=np.bool_)
        return True

    def take(self) -> pa.RecordBatch:
        """The results that are there; none are left."""
        rows = self.rows
        columns = self._mine.columns() + (self._theirs.columns() if self._theirs is not None else [])
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        return batch.append_column(self._marker, pa.array(self._marks[:rows])) if self._marker is not None else batch
