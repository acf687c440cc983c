"""MOIJ, the memory-optimal index-based join (Naeem et al.: Big Data Velocity Management, section IV, Algorithm 1).

CACHEJOIN without a fixed split and a threshold: each join value is kept where it takes less memory. A value with m rows
in R, of which n rows wait in H_S over the length of the queue, is cached if

    m * v_R < n * v_S                                              (cache inequality, Theorem 2)

and memory moves with it: a value that goes to H_R takes its bytes from H_S's room, and gives them back when it goes.

Worked example, v_R = 120, v_S = 20: part 10 has m = 4 suppliers and n = 3 waiting rows: 480 > 60, it stays with the
disk. Part 30 has m = 2 and n = 13: 240 < 260, its two rows move to the cache.

Legend: H_S, Q = `waiting`; H_R = `cache`; D_B = `buffer`; f_count = `cache.table.hits`; hSavailable = `_page_limit`.

Eviction (lines 32 to 42) runs every ten iterations. The pseudo-code estimates n by f_count / 10, the hits of one
iteration; the n of the theorem is per length of the queue, which lasts many iterations when H_S is large. So hits are
counted over as many arrivals as H_S holds rows, and values whose hits in that time make the inequality false go.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .cachejoin import CacheJoin

EVICTION = 10  # iterations between two eviction processes


class Moij(CacheJoin):
    """Invariants: those of CACHEJOIN; bytes of H_S's rows + bytes of H_R's rows <= what the fixed parts leave."""

    name: ClassVar[str] = "moij"
    waiting_share: ClassVar[float] = 0.85  # H_S may take nearly all of it, H_R's rows take their share from it
    cache_share: ClassVar[float] = 0.35  # the most keys that H_R's table has places for

    def _make_memory(self) -> None:
        super()._make_memory()
        self._entry_bytes = self.key_bytes - self.master.statistics.average_row_bytes

    def _page_limit(self) -> int:
        return self.waiting.bytes + max(0, self.ledger.free - self._reserved)

    def _matched(self, keys: np.ndarray, first: np.ndarray, counts: np.ndarray, waiting: np.ndarray) -> None:
        stream_side = waiting * (self.waiting.row_bytes + 12.0)
        master_side = counts * self.master.statistics.average_row_bytes + self._entry_bytes
        good = stream_side > master_side
        if good.any():
            limit = self.cache.bytes + self.ledger.free
            self.cache.admit(keys[good], first[good], counts[good], waiting[good], limit)
            self._tidy()
        if self.stats.iterations % EVICTION == 0:
            self._evict()
        self.stats.cached_rows = self.cache.cached_rows
        self.stats.evicted_rows = self.cache.evicted

    def _evict(self) -> None:
        """The eviction process, once a queue's length of rows has arrived since the hits were last reset."""
        if self._probes < max(1024, len(self.waiting)) or not self.cache.order:
            return
        table = self.cache.table
        queue = max(1, len(self.waiting)) / self._probes
        self._probes = 0
        stream_side = table.hits * (queue * (self.waiting.row_bytes + 12.0))
        master_side = table.rows * self.master.statistics.average_row_bytes + self._entry_bytes
        cold = np.flatnonzero((table.rows >= 0) & (stream_side < master_side))
        table.hits[:] = 0
        if len(cold):
            self.cache.evict(cold.astype(np.int32))
            self.cache.repack()
