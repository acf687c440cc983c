"""The master cache H_R: rows of R kept in memory one by one, found by key, in pages that are cleaned oldest first.

    newest page  [row row row row]        admit: a new page with rows that come in
                 [row  .  row row]
    oldest page  [ .  row  .  row]        clean: rows that are still asked for move to a new page, the rest go

Rows of different length never fragment memory this way, and the bytes of the cache are the bytes of its pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..kernels import gather
from ..kernels.cache_table import ENTRY_BYTES, CacheTable
from ..kernels.pages import KeptRows, PageTable
from .ledger import Ledger

PAGE_OVERHEAD = 4096
PAGES = 512  # that are never worth repacking
MERGED = 4 << 20  # bytes of small pages that become one; a page of half of that is never rewritten for its size
SLOT_BYTES = 12  # hash slots for each entry, at worst


@dataclass
class _Page:
    number: int
    size: int
    entries: np.ndarray


class MasterCache:
    """Cached keys with all their rows, at most `limit` bytes together with the table.

    Invariants: 1. all rows of a cached key lie one after the other in one page; 2. an entry belongs to the page its
    reference names; 3. the ledger has the bytes of the table and of all pages.
    """

    def __init__(
        self,
        pages: PageTable,
        columns: Sequence[int],
        ledger: Ledger,
        *,
        capacity: int,
        component: str = "master cache",
    ) -> None:
        self.pages = pages
        self.columns = list(columns)
        self.ledger = ledger
        self.component = component
        self.table = CacheTable(max(16, capacity))
        self.order: deque[_Page] = deque()
        self._packed = 0
        self.bytes = 0
        self.evicted = 0
        self.cached_rows = 0
        ledger.book(component, CacheTable.bytes_for(self.table.capacity))

    def probe(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First row and number of rows of each key; -1 rows for keys that are not cached."""
        refs = np.empty(len(keys), dtype=np.int64)
        rows = np.empty(len(keys), dtype=np.int32)
        self.table.probe(keys, refs, rows)
        return refs, rows

    def admit(self, keys: np.ndarray, first: np.ndarray, rows: np.ndarray, hits: np.ndarray, limit: int) -> int:
        """Copy in the rows of keys that are not cached, as many of the first keys as fit into `limit` bytes of pages.

        `hits` is what is known of each key's frequency. A key with 0 rows is remembered as absent.
        """
        take = min(len(keys), self.table.room)
        while take:
            counts = rows[:take].astype(np.int64)
            refs = _expanded(first[:take], counts)
            plan = self.pages.measure_page(refs, self.columns)
            size = plan.nbytes + PAGE_OVERHEAD
            if self.bytes + size <= limit and size <= self.ledger.free:
                break
            take //= 2
        if not take:
            return 0
        page = self._store(plan)
        starts = np.cumsum(counts) - counts
        page.entries = self.table.insert(
            keys[:take], starts + (page.number << 32), rows[:take].astype(np.int32), hits[:take].astype(np.int32)
        )
        self.cached_rows += len(refs)
        return take

    def grow(self, limit: int) -> int:
        """Make room for more keys, as many as `limit` bytes of pages hold with rows like those that are cached.

        The bytes that the table takes more; 0 if there is no memory for a larger one beside the old one.
        """
        table = self.table
        key_bytes = max(1.0, self.bytes / max(1, table.used))
        capacity = table.capacity + int(0.9 * (limit - self.bytes) / (key_bytes + ENTRY_BYTES + SLOT_BYTES))
        size, grown = CacheTable.bytes_for(table.capacity), CacheTable.bytes_for(capacity)
        if capacity < 1.02 * table.capacity or grown > self.ledger.free:
            return 0
        self.ledger.add(self.component, grown)  # for a moment there are two tables
        table.grow(capacity)
        self.ledger.add(self.component, -size)
        return grown - size

    def _store(self, plan: KeptRows) -> _Page:
        self.ledger.add(self.component, plan.nbytes)
        number = self.pages.keep(plan)
        size = plan.retained + PAGE_OVERHEAD
        page = _Page(number, size, np.empty(0, dtype=np.int32))
        self.order.append(page)
        self.bytes += size
        self.ledger.add(self.component, size - plan.nbytes)
        return page

    def _discard(self, page: _Page) -> None:
        self.bytes -= page.size
        self.ledger.add(self.component, -page.size)
        self.pages.release(page.number)

    def clean(self, size: int, threshold: int) -> None:
        """Take the oldest pages, about `size` bytes, and keep of their rows those with more hits than `threshold`.

        The survivors go to one new page; the ledger must have room for it for a moment.
        """
        pages: list[_Page] = []
        survivors: list[np.ndarray] = []
        taken = 0
        while self.order and taken < size:
            page = self.order.popleft()
            pages.append(page)
            taken += page.size
            live = self.live(page)
            keep = self.table.hits[live] > threshold
            self.evict(live[~keep])
            survivors.append(live[keep])
        entries = np.concatenate(survivors) if survivors else np.empty(0, dtype=np.int32)
        if len(entries):
            entries = entries[np.argsort(-self.table.hits[entries], kind="stable")]
            self._move(entries)
        for page in pages:
            self._discard(page)

    def shrink(self, limit: int) -> None:
        """Give memory back until the pages take at most `limit` bytes, the least used rows first."""
        limit = max(0, limit)
        for _ in range(64):
            if self.bytes <= limit:
                return
            self.clean(max(1, self.bytes // 8), self.coldest(1 - limit / self.bytes))
        while self.bytes > limit and self.order:
            self.clean(max(1, self.bytes // 8), 1 << 30)

    def coldest(self, share: float) -> int:
        """The number of hits that the coldest share of the cached keys does not pass, from a sample."""
        step = max(1, self.table.capacity // 65_536)
        used = self.table.rows[::step] >= 0
        hits = self.table.hits[::step][used]
        return int(np.quantile(hits, share, method="lower")) if len(hits) else 0

    def _move(self, entries: np.ndarray) -> None:
        """Copy the rows of entries to a new page, dropping the last ones if there is no room for them."""
        while len(entries):
            counts = self.table.rows[entries].astype(np.int64)
            plan = self.pages.measure_page(_expanded(self.table.ref[entries], counts), self.columns)
            size = plan.nbytes + PAGE_OVERHEAD
            if size <= self.ledger.free:
                page = self._store(plan)
                page.entries = entries
                self.table.ref[entries] = np.cumsum(counts) - counts + (page.number << 32)
                return
            half = len(entries) // 2
            self.evict(entries[half:])
            entries = entries[:half]

    def live(self, page: _Page) -> np.ndarray:
        """The entries whose rows lie in a page."""
        entries = page.entries
        there = (self.table.rows[entries] >= 0) & (self.table.ref[entries] >> 32 == page.number)
        return entries[there]

    def evict(self, entries: np.ndarray) -> None:
        """Forget entries at once; their bytes come back when their pages are cleaned or repacked."""
        rows = int(self.table.rows[entries].sum())
        self.evicted += rows
        self.cached_rows -= rows
        self.table.drop(entries)

    def repack(self, small: int = 8 * PAGE_OVERHEAD) -> None:
        """Rewrite the pages of which a quarter or more is gone, and small ones, several into one."""
        kept: deque[_Page] = deque()
        sparse: list[tuple[_Page, np.ndarray, float]] = []
        while self.order:
            page = self.order.popleft()
            live = self.live(page)
            share = len(live) / max(1, len(page.entries))
            if share <= 0.75 or page.size < min(small, MERGED // 2):
                sparse.append((page, live, share * page.size))
            else:
                kept.append(page)
        self.order = kept
        while sparse:
            group: list[_Page] = []
            entries: list[np.ndarray] = []
            size, most = 0.0, min(MERGED, self.ledger.free // 2)
            while sparse and (not group or size + sparse[0][2] <= most):
                page, live, bytes_ = sparse.pop(0)
                group.append(page)
                entries.append(live)
                size += bytes_
            if size > most:
                self.order.extend(group)  # there is no room to move its rows: they stay where they are
                continue
            if size:
                self._move(np.concatenate(entries))
            for page in group:
                self._discard(page)
        self._packed = len(self.order)

    @property
    def scattered(self) -> bool:
        """Whether there are so many pages more than after the last time that it is worth while to repack."""
        return len(self.order) > PAGES + 5 * self._packed // 4

    def clear(self) -> None:
        """Forget everything."""
        while self.order:
            page = self.order.popleft()
            self.evict(self.live(page))
            self._discard(page)


def _expanded(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """References of all rows of groups."""
    if len(counts) and int(counts.max()) == 1 and int(counts.min()) == 1:
        return np.ascontiguousarray(first)
    total = int(counts.sum())
    refs = np.empty(total, dtype=np.int64)
    gather.expand_groups(first, counts, refs)
    return refs


def entry_bytes(row_bytes: float, rows_per_key: float) -> float:
    """Memory for one cached key: its rows, its entry and its share of the slots."""
    return row_bytes * rows_per_key + ENTRY_BYTES + SLOT_BYTES
