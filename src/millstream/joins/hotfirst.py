"""`auto` on a master in the order of access frequency: X-HYBRIDJOIN with as large a part in memory as pays.

Such a master says itself which rows are hot: those at its beginning. They need no cache that learns, with a counter
and a place in a page for each row; they are read once, in one piece, and stay as they lie. And for the others there is
no order of keys that a sweep could follow: X-HYBRIDJOIN's partitions need one look-up in the index on disk for each
read, where a sweep would look up every key.

The paper's non-swappable part is as large as the other one. Here it has `KEPT` of the memory while the stream flows,
and nearly all of it when micro-batches are drained in which few rows wait; a master that fits is kept whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa

from ..kernels.cache_table import CacheTable
from ..kernels.stream_table import StreamTable
from ..master import Master
from ..master.part_files import PAGE
from .hybridjoin import LEAST_WAITING_BYTES
from .waiting import WaitingRows
from .xhybridjoin import XHybridJoin

KEPT = 0.12  # of the memory, when the stream flows: what more rows would serve, their larger table costs the hot ones
MOST_KEPT = 0.9
PER_SEGMENT = 512  # bytes that a kept segment takes beside its own: addresses of its buffers, its page
ROOMY = 4  # times as many rows as waited in a micro-batch may wait in the next one
LEAST_ROOM = 16_384  # rows


class HotFirstJoin(XHybridJoin):
    """Invariants: those of X-HYBRIDJOIN. `kept` is the share of the memory that the non-swappable part may have."""

    name: ClassVar[str] = "auto"
    options: ClassVar[tuple[str, ...]] = ()
    kept: float = KEPT
    _overflowed: bool = False  # rows had no room since the last drain

    def _kept_room(self) -> tuple[int, int] | None:
        return kept_room(self.ledger.free, self.master, self.kept)

    def _free_some(self, rows: int) -> Iterator[pa.RecordBatch]:
        self._overflowed = True
        yield from super()._free_some(rows)

    def _drain(self) -> Iterator[pa.RecordBatch]:
        rows, overflowed = len(self.waiting), self._overflowed
        self._overflowed = False
        yield from super()._drain()
        if overflowed and self.kept > KEPT:
            self._split_anew(KEPT, self.waiting.table.capacity)
        elif not overflowed and self.kept == KEPT and rows:
            self._split_anew(MOST_KEPT, max(min(LEAST_ROOM, self.waiting.table.capacity // 8), ROOMY * rows))

    def _split_anew(self, kept: float, rows: int) -> None:
        """Give the non-swappable part another share of the memory; nothing waits. At least so many rows can.

        A larger part must be worth it: it is read anew.
        """
        booked, reserve = self.ledger.components, 0
        if kept > KEPT:
            per_row = 2.0 * self.waiting.row_bytes + StreamTable.bytes_for(1 << 16) / (1 << 16)
            reserve = int(rows * per_row) + LEAST_WAITING_BYTES
            free = self.ledger.free + booked[self.waiting.component] + booked.get("non-swappable part", 0)
            larger = kept_room(free - reserve, self.master, kept)
            if larger is None or larger[0] < 1.5 * (self.room[0] if self.room else 0):
                return
        self.kept = kept
        self._let_go()
        self.ledger.book(self.waiting.component, reserve)
        self._make_memory()
        self.ledger.book(self.waiting.component, 0)
        capacity = self.waiting_capacity(self.ledger.free, self.waiting.row_bytes)
        self.waiting = WaitingRows(self.stream, self.ledger, capacity=capacity)


def kept_room(free: int, master: Master, kept: float) -> tuple[int, int] | None:
    """How many bytes of R are kept in a share of the memory that is free, and how many keys they may have."""
    statistics = master.statistics
    free -= 2 * LEAST_WAITING_BYTES + StreamTable.bytes_for(LEAST_ROOM // 16)
    segments = statistics.bytes + PER_SEGMENT * statistics.segments
    whole = segments + CacheTable.bytes_for(statistics.distinct_keys + 64) + 4 * PAGE
    share = 1.0 if whole < 0.85 * free else kept * free / max(1, whole)
    while free > 0 and share > 1e-6:
        keys = int(share * statistics.distinct_keys) + 64
        room = int(share * segments) + 4 * PAGE
        if room + CacheTable.bytes_for(keys) < 0.95 * free:
            return room, keys
        share *= 0.8
    return None
