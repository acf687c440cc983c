"""The waiting rows of `auto`: kept by range of keys, and the ranges resolved in turn.

Rows that have just come are staged as they are; as the memory fills up they are settled, sorted by key into the
ranges. When the memory is full one range is resolved and makes room for rows of all ranges, so the memory stays full
while the sweep goes round R. A round of k ranges then resolves 2k / (k + 1) times as many rows as fit into the memory,
where filling it up and emptying it at once would resolve as many as fit.

    staged  [....]            settle          range 0 [..][.]
            [...]          ----------->       range 1 [...]      <-- next to be resolved
            [..]                              range 2 [.][..][.]
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ..kernels.pages import KeptRows, PageTable
from .ledger import Ledger

PAGE_OVERHEAD = 2048  # Python and numpy objects of a page
KEY_BYTES = 8
SORT_BYTES = 16  # of putting keys in order
RANGES = 8
LEAST_SETTLED = 64  # rows for each range
STAGED = 16  # a sixteenth of the room for all rows may be staged,
FILLING = 0.75  # when so much of it is taken: rows that are flushed before need no ranges


@dataclass(frozen=True)
class WaitingPage:
    """Some rows that wait, with their keys."""

    number: int
    keys: np.ndarray
    size: int


class SweptRows:
    """Rows that wait for a sweep.

    Invariants: 1. a row is in exactly one page, staged or in the range of its key; 2. `bytes` is the sum of the pages'
    sizes, booked in the ledger.
    """

    def __init__(
        self,
        stream: PageTable,
        ledger: Ledger,
        bounds: np.ndarray,
        *,
        component: str = "stream table",
    ) -> None:
        self.stream = stream
        self.ledger = ledger
        self.bounds = bounds
        self.component = component
        self.columns = range(len(stream.layout.columns))
        self.staged: list[WaitingPage] = []
        self.ranges: list[list[WaitingPage]] = [[] for _ in range(len(bounds) + 1)]
        self.rows = 0
        self.bytes = 0
        self._staged_bytes = 0
        self._turn = 0
        ledger.book(component, 0)

    def add(self, refs: np.ndarray, keys: np.ndarray, limit: int) -> int:
        """Copy in as many rows as fit into `limit` bytes of pages and into the ledger; how many."""
        if len(self.ranges) > 1 and self.bytes > FILLING * limit and STAGED * self._staged_bytes > limit:
            self._settle()
        rows = len(refs)
        while rows:
            plan = self.stream.measure_page(refs[:rows], self.columns)
            size = plan.nbytes + PAGE_OVERHEAD + rows * (KEY_BYTES + SORT_BYTES)
            room = min(limit - self.bytes, self.ledger.free)
            if size <= room:
                page = self._page(plan, keys[:rows], SORT_BYTES)
                self.staged.append(page)
                self._staged_bytes += page.size
                self.rows += rows
                return rows
            fitting = int(rows * max(0, room - PAGE_OVERHEAD) / size)
            if fitting < min(rows, 256 if self.rows else 1):
                return 0
            rows = min(rows - 1, max(1, fitting))
        return 0

    def least(self, refs: np.ndarray) -> int:
        """Bytes that the first of some rows needs."""
        return self.stream.measure_page(refs[:1], self.columns).nbytes + PAGE_OVERHEAD + KEY_BYTES + SORT_BYTES

    def _page(self, plan: KeptRows, keys: np.ndarray, per_row: int) -> WaitingPage:
        self.ledger.add(self.component, plan.nbytes)
        number = self.stream.keep(plan)
        size = plan.retained + PAGE_OVERHEAD + len(keys) * (KEY_BYTES + per_row)
        self.ledger.add(self.component, size - plan.nbytes)
        self.bytes += size
        return WaitingPage(number, np.ascontiguousarray(keys), size)

    def _settle(self) -> None:
        """Sort staged rows into the ranges, as many at a time as there is room to copy, if they are enough for it."""
        while True:
            some, size = 0, 0
            while some < len(self.staged) and 2 * (size + self.staged[some].size) <= self.ledger.free:
                size += self.staged[some].size
                some += 1
            pages = self.staged[:some]
            if sum(len(page.keys) for page in pages) < LEAST_SETTLED * len(self.ranges):
                return
            keys, refs = joined(pages)
            order = np.argsort(keys)
            keys, refs = keys[order], refs[order]
            cuts = [0, *np.searchsorted(keys, self.bounds).tolist(), len(keys)]
            for place, (low, high) in enumerate(itertools.pairwise(cuts)):
                if high > low:
                    plan = self.stream.measure_page(refs[low:high], self.columns)
                    self.ranges[place].append(self._page(plan, keys[low:high], SORT_BYTES // len(self.ranges)))
            self._free(pages)
            self.staged, self._staged_bytes = self.staged[some:], self._staged_bytes - size

    def take(self) -> list[WaitingPage]:
        """The pages of the next range that has rows, or what is staged when no range has any; to be released."""
        if len(self.ranges) > 1:
            self._settle()
        for _ in range(len(self.ranges)):
            pages, self.ranges[self._turn] = self.ranges[self._turn], []
            self._turn = (self._turn + 1) % len(self.ranges)
            if pages:
                return pages
        return self._take_staged()

    def take_all(self) -> list[list[WaitingPage]]:
        """All pages, range by range; to be released."""
        if any(self.ranges):
            self._settle()
        groups = [pages for pages in self.ranges if pages]
        self.ranges = [[] for _ in self.ranges]
        return [*groups, self._take_staged()] if self.staged else groups

    def _take_staged(self) -> list[WaitingPage]:
        pages, self.staged, self._staged_bytes = self.staged, [], 0
        return pages

    def release(self, pages: list[WaitingPage]) -> None:
        """Pages that were taken are done with."""
        self.rows -= sum(len(page.keys) for page in pages)
        self._free(pages)

    def _free(self, pages: list[WaitingPage]) -> None:
        for page in pages:
            self.stream.release(page.number)
            self.bytes -= page.size
            self.ledger.add(self.component, -page.size)


def joined(pages: list[WaitingPage]) -> tuple[np.ndarray, np.ndarray]:
    """Keys and references of all rows of some pages."""
    keys = np.concatenate([page.keys for page in pages])
    refs = np.concatenate([np.arange(len(page.keys), dtype=np.int64) + (page.number << 32) for page in pages])
    return keys, refs
