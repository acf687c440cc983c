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

H_S begins with a quarter of the places that it could have, and H_R takes what the inequality gives it. Each time a
queue's length of rows has come, H_S grows as far as both would fill the memory if H_R grew alike: the longer the queue,
the more values it makes worth caching.

At the end of a micro-batch H_S is drained before it is full. How many rows of a value would have waited in a full one
is then estimated from those that did.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pyarrow as pa

from ..kernels.cache_table import CacheTable
from ..kernels.stream_table import StreamTable
from .cachejoin import CacheJoin
from .hybridjoin import HybridJoin
from .waiting import SLACK

EVICTION = 10  # iterations between two eviction processes
PLACE_BYTES = StreamTable.bytes_for(1 << 16) / (1 << 16)  # of H_S's table, for a row
FULL = 0.9  # of the places taken: H_S is full between two iterations
LEAST_GROWTH, MOST_GROWTH = 1.05, 2.0  # times the places that H_S has
SPARSE = 1.2  # bytes of H_S's pages for each byte of rows, from which on it is worth while to move rows together


class Moij(CacheJoin):
    """Invariants: those of CACHEJOIN; bytes of H_S's rows + bytes of H_R's rows <= what the fixed parts leave."""

    name: ClassVar[str] = "moij"
    first_share: ClassVar[int] = 4
    waiting_share: ClassVar[float] = 0.95
    cache_share: ClassVar[float] = 0.1  # for so many keys H_R's table has places at first

    def _make_memory(self) -> None:
        super()._make_memory()
        self._entry_bytes = self.key_bytes - self.master.statistics.average_row_bytes
        self._hits = 0  # of the cache, when the present period began
        self._held = 0  # the most rows that waited since H_S was empty
        self._grown = 0  # rows that had come for H_S when it grew

    def _kept_back(self) -> int:
        return self._reserved

    def _queue(self) -> float:
        """The length of the queue: rows that H_S holds when it is full, with the places that it can still get."""
        places, row = self.waiting.table.capacity, SLACK * self.waiting.row_bytes
        rows = self._page_limit() / row
        if rows <= places or self._held >= FULL * places:
            return min(places, rows)
        return places + (rows - places) * row / (PLACE_BYTES + row)

    def _free_some(self, rows: int) -> Iterator[pa.RecordBatch]:
        if not self._grow():
            yield from super()._free_some(rows)

    def _grow(self) -> bool:
        """More places in H_S, once as many rows have come as it has and all are taken."""
        table, row = self.waiting.table, PLACE_BYTES + SLACK * self.waiting.row_bytes
        come = self.stats.rows_in - self.stats.cache_hits
        if table.room or come - self._grown < table.capacity:
            return False
        self._grown = come
        size = StreamTable.bytes_for(table.capacity)
        both = table.capacity * row + self.cache.bytes
        memory = size + self.waiting.bytes + self.cache.bytes + self.ledger.free - self._kept_back() - self._moving()
        places = int(table.capacity * min(MOST_GROWTH, memory / both))
        more = StreamTable.bytes_for(places) - size
        if places < LEAST_GROWTH * table.capacity or more > self.ledger.free - self._kept_back() - self._moving():
            return False
        self.waiting.grow(places)
        return True

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
        self._more_keys(len(keys))
        wanted = int(counts.sum()) * self.master.statistics.average_row_bytes + len(keys) * self._entry_bytes
        spread = self.waiting.bytes > SPARSE * len(self.waiting) * self.waiting.row_bytes
        if spread and self.ledger.free - self._moving() < wanted:
            self.waiting.compact()
        limit = self.cache.bytes + max(0, self.ledger.free - self._moving())
        self.cache.admit(keys, first, counts, waiting, limit)

    def _more_keys(self, coming: int) -> None:
        """More places in H_R's table, when nearly all are taken: rows that leave H_S make room for a larger one."""
        table = self.cache.table
        scarce = table.room - coming < table.capacity // 16
        if scarce and HybridJoin._make_room(self, CacheTable.bytes_for(2 * table.capacity)):
            self.cache.grow(2 * self.cache.bytes)

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
