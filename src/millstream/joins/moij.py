"""MOIJ, the memory-optimal index-based join (Naeem et al.: Big Data Velocity Management, section IV, Algorithm 1).

CACHEJOIN without a fixed split and a threshold: each join value is kept where it takes less memory. A value with m rows
in R, of which n rows wait in H_S over the length of the queue, is cached if

    m * v_R < n * v_S                                              (cache inequality, Theorem 2)

and memory moves with it: a value that goes to H_R takes its bytes from H_S's room, and gives them back when it goes.

Worked example, v_R = 120, v_S = 20: part 10 has m = 4 suppliers and n = 3 waiting rows: 480 > 60, it stays with the
disk. Part 30 has m = 2 and n = 13: 240 < 260, its two rows move to the cache.

Legend: H_S, Q = `waiting`; H_R = `cache`; D_B = `buffer`; f_count = `cache.table.hits`; hSavailable = what `_switch`
finds free.

Eviction (lines 32 to 42) runs every ten iterations. The pseudo-code estimates n by f_count / 10, the hits of one
iteration; the n of the theorem is per length of the queue, which lasts many iterations when H_S is large. So hits are
counted while as many rows go to H_S as it holds, and values whose hits in that time make the inequality false go.

At the end of a micro-batch H_S is drained before it is full. How many rows of a value would have waited in a full one
is then estimated from those that did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pyarrow as pa

from .cachejoin import CacheJoin
from .waiting import SLACK

EVICTION = 10  # iterations between two eviction processes
SPARSE = 1.2  # bytes of H_S's pages for each byte of rows, from which on it is worth while to move rows together


class Moij(CacheJoin):
    """Invariants: those of CACHEJOIN; bytes of H_S's rows + bytes of H_R's rows <= what the fixed parts leave."""

    name: ClassVar[str] = "moij"
    waiting_share: ClassVar[float] = 0.85  # H_S may take nearly all of it, H_R's rows take their share from it
    cache_share: ClassVar[float] = 0.35  # the most keys that H_R's table has places for

    def _make_memory(self) -> None:
        super()._make_memory()
        self._entry_bytes = self.key_bytes - self.master.statistics.average_row_bytes
        self._hits = 0  # of the cache, when the present period began
        self._held = 0  # the most rows that waited since H_S was empty

    def _kept_back(self) -> int:
        return self._reserved

    def _queue(self) -> float:
        """The length of the queue: rows that H_S holds when it is full."""
        return min(self.waiting.table.capacity, self._page_limit() / (SLACK * self.waiting.row_bytes))

    def _matched(self, keys: np.ndarray, first: np.ndarray, counts: np.ndarray, waiting: np.ndarray) -> None:
        self._held = max(self._held, len(self.waiting) + int(waiting.sum()))
        expected = waiting * max(1.0, self._queue() / max(1, self._held))
        stream_side = expected * (self.waiting.row_bytes + 12.0)
        master_side = counts * self.master.statistics.average_row_bytes + self._entry_bytes
        gain = stream_side - master_side
        good = np.flatnonzero(gain > 0)
        if len(good):
            good = good[np.argsort(-gain[good])]
            self._switch(keys[good], first[good], counts[good], waiting[good])
            self._tidy()
        if self.stats.iterations % EVICTION == 0:
            self._evict()
        self.stats.cached_rows = self.cache.cached_rows
        self.stats.evicted_rows = self.cache.evicted

    def _switch(self, keys: np.ndarray, first: np.ndarray, counts: np.ndarray, waiting: np.ndarray) -> None:
        """Move keys to H_R, into the memory that their rows had in H_S: it is free once the others are together."""
        wanted = int(counts.sum()) * self.master.statistics.average_row_bytes + len(keys) * self._entry_bytes
        spread = self.waiting.bytes > SPARSE * len(self.waiting) * self.waiting.row_bytes
        if spread and self.ledger.free - self._moving() < wanted:
            self.waiting.compact()
        limit = self.cache.bytes + max(0, self.ledger.free - self._moving())
        self.cache.admit(keys, first, counts, waiting, limit)

    def _drain(self) -> Iterator[pa.RecordBatch]:
        yield from super()._drain()
        self._held = 0

    def _evict(self) -> None:
        """The eviction process, once a queue's length of rows has missed the cache since the hits were last reset."""
        queue = self._queue()
        missed = self._probes - (self.stats.cache_hits - self._hits)
        if missed < max(1024, queue) or not self.cache.order:
            return
        table = self.cache.table
        stream_side = table.hits * (queue / missed * (self.waiting.row_bytes + 12.0))
        self._probes, self._hits = 0, self.stats.cache_hits
        master_side = table.rows * self.master.statistics.average_row_bytes + self._entry_bytes
        cold = np.flatnonzero((table.rows >= 0) & (stream_side < master_side))
        table.hits[:] = 0
        if len(cold):
            self.cache.evict(cold.astype(np.int32))
            self.cache.repack()
