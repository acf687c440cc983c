"""Stream rows that wait for their master rows: H_S with its queue, and the pages that hold the rows themselves."""

from __future__ import annotations

import numpy as np

from ..kernels.pages import KeptRows, PageTable
from ..kernels.stream_table import StreamTable
from .ledger import Ledger

PAGE_OVERHEAD = 2048  # Python and numpy objects of a small page
MANY = 256  # rows that show what a row takes: a page of few has its own bytes
SLACK = 1.5  # bytes of pages for each byte of rows, so that pages can empty before their rows are moved together


class WaitingRows:
    """At most `capacity` rows in at most `page_bytes` of pages.

    Invariants: 1. `live[page]` is the number of rows of a page still waiting; a page with none is released.
    2. The ledger has the table's bytes and the bytes of all pages, those of gone rows in them included.
    """

    def __init__(self, stream: PageTable, ledger: Ledger, *, capacity: int, component: str = "stream table") -> None:
        self.stream = stream
        self.ledger = ledger
        self.component = component
        self.table = StreamTable(capacity)
        self.columns = range(len(stream.layout.columns))
        self.live: dict[int, int] = {}
        self.places: dict[int, np.ndarray] = {}
        self.size: dict[int, int] = {}
        self.row_bytes = 64.0
        ledger.book(component, StreamTable.bytes_for(capacity))
        self.bytes = 0

    def __len__(self) -> int:
        return self.table.tuples

    def add(self, refs: np.ndarray, keys: np.ndarray, limit: int) -> int:
        """Copy rows in, as many as fit into the table and into `limit` bytes of pages; how many."""
        rows = min(len(refs), self.table.room)
        while rows:
            rows_by_bytes = int((limit - self.bytes - PAGE_OVERHEAD) / max(1.0, self.row_bytes))
            if rows_by_bytes < 1:
                return 0
            rows = min(rows, rows_by_bytes)
            plan = self.stream.measure_page(refs[:rows], self.columns)
            self.row_bytes += (max(8.0, plan.retained / rows) - self.row_bytes) * min(1.0, rows / MANY)
            if self.bytes + plan.nbytes + PAGE_OVERHEAD <= limit and plan.nbytes + PAGE_OVERHEAD <= self.ledger.free:
                page = self._page(plan)
                self.places[page] = self.table.insert(keys[:rows], np.arange(rows, dtype=np.int64) + (page << 32))
                return rows
            rows //= 2
        return 0

    def grow(self, capacity: int) -> None:
        """Make the table larger; its rows stay where they are."""
        self.ledger.add(self.component, StreamTable.bytes_for(capacity) - StreamTable.bytes_for(self.table.capacity))
        self.table.grow(capacity)

    def _page(self, plan: KeptRows) -> int:
        self.ledger.add(self.component, plan.nbytes)
        page = self.stream.keep(plan)
        size = plan.retained + PAGE_OVERHEAD
        self.live[page] = len(plan.refs)
        self.size[page] = size
        self.bytes += size
        self.ledger.add(self.component, size - plan.nbytes)
        return page

    def leave(self, refs: np.ndarray) -> None:
        """Rows taken out of the table have been used: their pages are freed when no row of theirs waits."""
        pages, counts = np.unique(refs >> 32, return_counts=True)
        for page, count in zip(pages.tolist(), counts.tolist(), strict=True):
            self.live[page] -= count
            if not self.live[page]:
                self._release(page)

    def _release(self, page: int) -> None:
        del self.live[page], self.places[page]
        size = self.size.pop(page)
        self.bytes -= size
        self.ledger.add(self.component, -size)
        self.stream.release(page)

    def compact(self) -> None:
        """Move the rows of the emptiest pages together, until an eighth of all bytes is free or no page is worth it."""
        goal = self.bytes // 8
        emptiest = sorted(self.live, key=lambda page: self.live[page] / len(self.places[page]))
        gained = 0
        group: list[int] = []
        size = 0.0
        for page in emptiest:
            left = self.live[page] / len(self.places[page])
            if gained >= goal or left > 0.9:
                break
            if size and size + left * self.size[page] > min(4 << 20, self.ledger.free // 2):
                self._merge(group)
                group, size = [], 0.0
            if left * self.size[page] > self.ledger.free // 2:
                break
            group.append(page)
            size += left * self.size[page]
            gained += int((1 - left) * self.size[page])
        if group:
            self._merge(group)

    def _merge(self, pages: list[int]) -> None:
        """Move the waiting rows of some pages to a new one."""
        places, old = [], []
        for page in pages:
            refs = self.table.refs(self.places[page])
            here = refs == np.arange(len(refs), dtype=np.int64) + (page << 32)
            places.append(self.places[page][here])
            old.append(refs[here])
        refs = np.concatenate(old)
        plan = self.stream.measure_page(refs, self.columns)
        if plan.nbytes + PAGE_OVERHEAD > self.ledger.free:
            return
        page = self._page(plan)
        self.places[page] = np.concatenate(places)
        self.table.move(self.places[page], np.arange(len(refs), dtype=np.int64) + (page << 32))
        self.leave(refs)
