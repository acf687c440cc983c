"""SSBJ, the semi-stream balanced join: MESHJOIN with a cache of single rows of R, filled by the cache inequality
(Naeem et al.: Big Data Velocity Management, sections II and IV.A, there as the index-less relative of MOIJ).

Each join value is kept where it takes less memory. A value with m rows in R, of which n rows are in the window, one
turn of R long, is cached if

    m * v_R < n * v_S                                              (cache inequality, Theorem 2)

R has no order, so the m rows of a value may lie anywhere. Values that could be worth it are chosen among the rows that
have just come; these stay for a turn of R, so all m rows meet them, and are copied when they do. At the end of the turn
m is known, and the inequality decides. A value of which a whole turn found no row is cached as absent.

    stream --> [ H_R ] --miss--> window <-- pages of R
                 hit |             | rows of values that were chosen
                     v             v one turn later, if m v_R < n v_S
                   result         H_R

Legend: that of `scanjoin.py`; H_R = `cache`; the values being collected = `chosen`, many times a turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from ..errors import InputError
from ..master import Master, ParquetScan
from ..master.cycle import Piece
from .cache import PAGE_OVERHEAD, MasterCache, entry_bytes
from .chosen import ChosenValues, Group
from .scanjoin import ScanJoin

LEAST_CACHE = 24 * 1024
CACHE_SHARE = 0.35  # of the free memory: the most keys that H_R's table has places for
COLLECTED = 12  # a twelfth of the memory is left free by rows, for values that are collected and switched
CHOICES = 16  # in a turn of R
STAYING = 0.5  # a cached value goes when its rows would take this much of what its master rows do: chance goes by less
SAMPLE = 1 << 16  # rows of a packet that values are chosen from


class SemiStreamBalancedJoin(ScanJoin):
    """Invariants: those of the scan joins; a cached value is cached with all its rows; no row waits for a value that
    was cached when the row came.
    """

    name: ClassVar[str] = "ssbj"

    def __init__(self, master: Any, *, on: Any, **arguments: Any) -> None:
        if on is None:
            raise InputError("ssbj caches rows of R by their key; give on=, or take meshjoin for a condition alone")
        super().__init__(master, on=on, **arguments)

    @classmethod
    def _least_own(cls, master: Master | ParquetScan, brought: Sequence[str]) -> int:
        return super()._least_own(master, brought) + LEAST_CACHE

    def _make_memory(self) -> None:
        assert self.plan is not None
        schema = self.pages.layout.schema
        verified = self.relation.key if self.comparison is not None else []
        self.kept = sorted(
            {*self.plan.brought, *(schema.get_field_index(n) for n in (*verified, *self.condition_columns[1]))}
        )
        names = [schema.names[i] for i in self.kept]
        statistics = self.relation.statistics
        self.row_bytes = max(8.0, self.scanned.row_bytes(names))
        self.entry_bytes = entry_bytes(0.0, 1.0)
        keys = int(self.ledger.free * CACHE_SHARE / (self.row_bytes + self.entry_bytes))
        keys = min(keys, statistics.rows + 16)
        self.cache = MasterCache(self.pages, self.kept, self.ledger, capacity=max(16, keys))
        self.chosen: ChosenValues | None = None
        self._next_choice = 0  # by the clock
        self._reserve = 0 if self.ordered else self.ledger.budget // COLLECTED
        self._misses = 0  # since values were last evicted
        self._length = 0  # rows of the window, lately

    @property
    def _stream_bytes(self) -> float:
        """v_S: bytes of a row of the window."""
        return self.window.row_bytes + self.window.tuple_bytes

    # -- stream-probing ----------------------------------------------------------------------------------------

    def _arrive(self, refs: np.ndarray, keys: np.ndarray) -> Iterator[pa.RecordBatch]:
        first, rows = self.cache.probe(keys)
        hit = rows >= 0
        hits = int(hit.sum())
        self._misses += len(keys) - hits
        self.stats.cache_hits += hits
        if hits:
            yield from self._cached(refs[hit], first[hit], rows[hit].astype(np.int64))
            refs, keys = refs[~hit], keys[~hit]
        yield from super()._arrive(refs, keys)

    def _cached(self, left: np.ndarray, first: np.ndarray, counts: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Results of rows whose master rows are cached."""
        if self.residual is None:
            yield from self._resolve(left, first, counts)
            return
        matched = np.zeros(len(left), dtype=np.bool_)
        for at, right in self._pairs(first, counts):
            keep = self._checked(left[at], right)
            at, right = (at, right) if keep is None else (at[keep], right[keep])
            matched[at] = True
            if self.how in ("inner", "left"):
                yield from self._output(left[at], right)
        self.stats.matched += int(matched.sum())
        if self.how == "left_semi":
            yield from self._output(left[matched], None)
        yield from self._unmatched(left[~matched])

    # -- disk-probing ------------------------------------------------------------------------------------------

    def _iterate(self, needed: int) -> Iterator[pa.RecordBatch]:
        if not self.ordered and self.scan.pages and self.clock >= self._next_choice:
            self._choose()
        self._length = max(len(self.window), self._length // 2)
        yield from super()._iterate(needed)
        if self.chosen is not None:
            for group, codes, refs in self.chosen.ended(self.clock):
                self._evict()
                self._switch(group, codes, refs)

    def _choose(self) -> None:
        """Pick the values of the youngest packet that seem to be worth their rows."""
        packet = self.window.packets[-1] if self.window.packets else None
        if packet is None or packet.began != self.clock:
            return
        self._next_choice = self.clock + self.scan.pages // CHOICES
        table = self.window.table
        chosen = self._marked(table.capacity)
        if chosen is None:
            return
        every = max(1, packet.rows // SAMPLE)
        keys, where = np.unique(table.keys(packet.first, packet.stop)[::every], return_index=True)
        counts = table.count(keys)
        collected = chosen.keys
        worth = (counts > 1) & (counts * self._stream_bytes > self.row_bytes + self.entry_bytes)
        worth &= ~np.isin(keys, collected)
        worth[worth] = self.cache.probe(keys[worth])[1] < 0  # rows that came before their value was cached enter late
        value = self.row_bytes * max(1.0, self.relation.statistics.rows_per_key) + self.entry_bytes
        room = min(self.cache.table.room, int(self._reserve / 4 / value)) - len(collected)
        at = np.flatnonzero(worth)
        best = np.sort(at[np.argsort(-counts[at], kind="stable")[: max(0, room)]])
        if len(best):
            slots = (every * where[best] + packet.first) % table.capacity
            chosen.choose(keys[best], counts[best], slots, ends=packet.ends)

    def _marked(self, places: int) -> ChosenValues | None:
        """What collects rows of a window with so many places; None if there is no memory for its marks."""
        if self.chosen is not None and self.chosen.places != places:
            self._forget()  # the rows of the window have other places now
        if self.chosen is None and places <= min(self.ledger.free, self._reserve // 2):
            self.chosen = ChosenValues(self.pages, self.kept, self.ledger, places=places, limit=self._reserve)
        return self.chosen

    def _found(self, piece: Piece, slots: np.ndarray, rows: np.ndarray) -> None:
        if self.chosen is not None:
            self.chosen.note(slots, rows)

    def _join(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        if self.chosen is not None and self.chosen.places != self.window.table.capacity:
            self._forget()
        yield from super()._join(piece)
        self._copy(piece)

    def _copy(self, piece: Piece) -> None:
        """Copy the rows of chosen values that were found in a piece of R."""
        if self.chosen is not None:
            self.chosen.copy(piece)

    def _switch(self, group: Group, codes: np.ndarray, refs: np.ndarray) -> None:
        """Move the values for which the inequality holds to H_R, with the rows that a whole turn has found."""
        begin = np.searchsorted(codes, group.keys, side="left")
        counts = np.searchsorted(codes, group.keys, side="right") - begin
        good = group.counts * self._stream_bytes > counts * self.row_bytes + self.entry_bytes
        plan = self.pages.measure_page(refs, self.kept)
        size = plan.nbytes + PAGE_OVERHEAD
        if good.any() and size <= self.ledger.free // 2:
            self.ledger.add("switched rows", size)
            page = self.pages.keep(plan)
            limit = self.cache.bytes + self.ledger.free
            self.cache.admit(group.keys[good], begin[good] + (page << 32), counts[good], group.counts[good], limit)
            self.pages.release(page)
            self.ledger.book("switched rows", 0)
        self.stats.cached_rows = self.cache.cached_rows

    def _forget(self) -> None:
        """Let go of what was collected."""
        if self.chosen is not None:
            self.chosen.close()
            self.chosen = None

    def _evict(self) -> None:
        """Values that came too seldom go, once as many rows have come to the window as it holds: in that time a cached
        value had as many hits as rows of it would wait there.
        """
        if self._misses < max(1024, self._length) or not self.cache.order:
            return
        table = self.cache.table
        turns = self._misses / max(1, self._length)
        self._misses = 0
        stream_side = table.hits * (self._stream_bytes / turns)
        master_side = table.rows * self.row_bytes + self.entry_bytes
        cold = np.flatnonzero((table.rows >= 0) & (stream_side < STAYING * master_side))
        table.hits[:] = 0
        if len(cold):
            self.cache.evict(cold.astype(np.int32))
            self.cache.repack()
        self.stats.cached_rows, self.stats.evicted_rows = self.cache.cached_rows, self.cache.evicted

    def _give_up_memory(self) -> bool:
        self._forget()
        there = bool(self.cache.order)
        self.cache.clear()
        return there
