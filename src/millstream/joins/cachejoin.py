"""CACHEJOIN, CJ (Naeem et al.: Big Data Velocity Management, sections II.B and IV.A, there as the baseline of MOIJ).

HYBRIDJOIN with a cache of single rows of R before it. The stream-probing phase looks a row up in H_R; what is not there
waits in H_S for the disk-probing phase. A key that as many rows waited for as a threshold says is frequent: its
master rows move to H_R.

Legend: H_R = `cache`, a fixed half of the memory; threshold = `frequent`.

The threshold adapts so that H_R fills and stays worth its memory: while H_R has room two waiting rows make a key
frequent; when H_R is full, its coldest rows make room and the threshold is what those rows were hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..master import Master
from .base import Remaining
from .cache import PAGE_OVERHEAD, MasterCache, entry_bytes
from .hybridjoin import HybridJoin

LEAST_CACHE = 24 * 1024
SMALL_PAGES = 16 * PAGE_OVERHEAD  # pages below this size are moved together when they are too many


class CacheJoin(HybridJoin):
    """Invariants: those of HYBRIDJOIN; no row waits for a key that was cached when the row came."""

    name: ClassVar[str] = "cachejoin"
    waiting_share: ClassVar[float] = 0.5
    cache_share: ClassVar[float] = 0.5
    frequent = 2

    @classmethod
    def _least_own(cls, master: Master, brought: Sequence[str]) -> int:
        return 2 * HybridJoin._least_own(master, brought) + LEAST_CACHE

    def _make_memory(self) -> None:
        assert self.plan is not None
        schema = self.pages.layout.schema
        verified = [schema.get_field_index(name) for name in self.master.key] if self.comparison else []
        kept = sorted({*self.plan.brought, *verified})
        statistics = self.master.statistics
        row = max(8.0, statistics.average_row_bytes * len(kept) / max(1, len(schema)))
        self.key_bytes = entry_bytes(row, max(1.0, statistics.rows_per_key))
        self.cache_limit = int(self.ledger.free * self.cache_share)
        keys = int(min(statistics.distinct_keys + 16, self.cache_limit / self.key_bytes))
        self.cache = MasterCache(self.pages, kept, self.ledger, capacity=max(16, keys))
        self.page_limit = max(0, self.cache_limit - self.ledger.components["master cache"])
        self._probes = 0

    def _kept_back(self) -> int:
        return self._reserved + max(0, self.page_limit - self.cache.bytes)

    def _probe_memory(self, refs: np.ndarray, keys: np.ndarray) -> Remaining:
        first, rows = self.cache.probe(keys)
        hit = rows >= 0
        hits = int(hit.sum())
        self.stats.cache_hits += hits
        self._probes += len(keys)
        if hits:
            yield from self._resolve(refs[hit], first[hit], rows[hit])
            refs, keys = refs[~hit], keys[~hit]
        return refs, keys

    def _matched(self, keys: np.ndarray, first: np.ndarray, counts: np.ndarray, waiting: np.ndarray) -> None:
        good = waiting >= self.frequent
        if good.any():
            self._switch(keys[good], first[good], counts[good], waiting[good])
            self._tidy()
        self.stats.cached_rows = self.cache.cached_rows
        self.stats.evicted_rows = self.cache.evicted

    def _tidy(self) -> None:
        """An iteration switches few rows, each time to a page of their own: move them together now and then."""
        many = min(32, max(4, self.ledger.budget // (32 * PAGE_OVERHEAD)))
        if len(self.cache.order) > many and 6 * PAGE_OVERHEAD * len(self.cache.order) > self.cache.bytes:
            self.cache.repack(small=SMALL_PAGES)

    def _switch(self, keys: np.ndarray, first: np.ndarray, counts: np.ndarray, waiting: np.ndarray) -> None:
        """Move keys to H_R; when it is full its coldest rows go first."""
        done = self.cache.admit(keys, first, counts, waiting, self.page_limit)
        if done < len(keys) and self.cache.order:
            self._make_colder_room()
            self.cache.admit(keys[done:], first[done:], counts[done:], waiting[done:], self.page_limit)

    def _make_colder_room(self) -> None:
        table = self.cache.table
        used = table.rows >= 0
        if self._probes > 8 * max(1024, table.used):
            table.halve()
            self._probes = 0
        coldest = int(np.quantile(table.hits[used], 0.25, method="lower")) if used.any() else 0
        self.frequent = max(2, coldest + 1)
        self.cache.clean(max(1, self.cache.bytes // 8), coldest)

    def _make_room(self, size: int) -> bool:
        while self.ledger.free < size and self.cache.order:
            self.cache.clean(max(1, self.cache.bytes // 8), 1 << 30)
        if self.ledger.free < size:
            return super()._make_room(size)
        self.page_limit = max(0, self.page_limit - size)
        return True

    def _empty_memory(self) -> bool:
        self.cache.clear()
        return super()._empty_memory()
