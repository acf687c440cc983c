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

Legend: that of `scanjoin.py`; H_R = `cache`; the values being collected = `chosen`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from ..errors import InputError
from ..master import Master, ParquetScan
from ..master.cycle import Piece
from ..master.parquet_cycle import decoded_row_bytes
from .cache import PAGE_OVERHEAD, MasterCache, entry_bytes
from .scanjoin import ScanJoin

LEAST_CACHE = 24 * 1024
CACHE_SHARE = 0.35  # of the free memory: the most keys that H_R's table has places for
COLLECTED = 12  # a twelfth of the memory is left free by rows, for values that are collected and switched
COPIES = 16  # of collected rows, before they are put together
SAMPLE = 1 << 16  # rows of the window that n is estimated from


@dataclass
class _Chosen:
    """Values whose rows are being collected for one turn; each is marked by one of its rows in the window."""

    ends: int
    keys: np.ndarray
    counts: np.ndarray
    marked: np.ndarray
    codes: list[np.ndarray] = field(default_factory=list)
    refs: list[np.ndarray] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    here: list[np.ndarray] = field(default_factory=list)  # rows of the piece in hand
    size: int = 0


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
        if isinstance(self.relation, ParquetScan):
            self.row_bytes = decoded_row_bytes(self.relation, names)
        else:
            self.row_bytes = max(8.0, statistics.average_row_bytes * len(names) / max(1, len(schema)))
        self.entry_bytes = entry_bytes(0.0, 1.0)
        keys = int(self.ledger.free * CACHE_SHARE / (self.row_bytes + self.entry_bytes))
        keys = min(keys, statistics.rows + 16)
        self.cache = MasterCache(self.pages, self.kept, self.ledger, capacity=max(16, keys))
        self.chosen: _Chosen | None = None
        self._reserve = 0 if self.ordered else self.ledger.budget // COLLECTED
        self._probes = 0
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
        self._probes += len(keys)
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
        if self.chosen is None and not self.ordered and self.scan.pages:
            self._choose()
        self._length = max(len(self.window), self._length // 2)
        yield from super()._iterate(needed)
        if self.chosen is not None and self.clock >= self.chosen.ends:
            self._evict()
            self._switch(self.chosen)

    def _choose(self) -> None:
        """Pick the values of the youngest packet that seem to be worth their rows."""
        packet = self.window.packets[-1] if self.window.packets else None
        if packet is None or packet.began != self.clock:
            return
        table = self.window.table
        every = max(1, len(self.window) // SAMPLE)
        keys, counts = np.unique(table.keys(table.oldest, table.next)[::every], return_counts=True)
        worth = counts * (every * self._stream_bytes) > self.row_bytes + self.entry_bytes
        worth &= counts > 1
        if not worth.any():
            return
        keys, counts = keys[worth], counts[worth] * every
        newest, where = np.unique(table.keys(packet.first, packet.stop), return_index=True)
        common, mine, theirs = np.intersect1d(keys, newest, assume_unique=True, return_indices=True)
        room = min(self.cache.table.room, int(self._reserve / 4 / (self.row_bytes + self.entry_bytes)))
        best = np.sort(np.argsort(-counts[mine], kind="stable")[:room])
        if not len(best):
            return
        marked = np.zeros(table.capacity, dtype=np.bool_)
        marked[(where[theirs[best]] + packet.first) % table.capacity] = True
        self.chosen = _Chosen(packet.ends, common[best], counts[mine[best]], marked)

    def _found(self, piece: Piece, slots: np.ndarray, rows: np.ndarray) -> None:
        if self.chosen is not None:
            rows = rows[self.chosen.marked[slots]]
            if len(rows):
                self.chosen.here.append(rows)

    def _join(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        if self.chosen is not None and len(self.chosen.marked) != self.window.table.capacity:
            self._forget()  # the rows of the window have other places now
        yield from super()._join(piece)
        if self.chosen is not None and self.chosen.here:
            rows = np.concatenate(self.chosen.here)
            self.chosen.here.clear()
            self._collect(self.chosen, piece.codes[rows], piece.refs(rows))

    def _collect(self, chosen: _Chosen, codes: np.ndarray, refs: np.ndarray) -> None:
        """Copy rows of the chosen values; small copies are put together now and then."""
        old = chosen.pages
        if len(old) == COPIES:
            codes, refs = np.concatenate([*chosen.codes, codes]), np.concatenate([*chosen.refs, refs])
            chosen.codes, chosen.refs, chosen.pages = [], [], []
        plan = self.pages.measure(refs, self.kept)
        size = plan.nbytes + PAGE_OVERHEAD + 16 * len(refs)
        if size > self.ledger.free or chosen.size + size > self._reserve:
            chosen.pages = old
            self._forget()  # they have too many rows to be collected
            return
        self.ledger.add("collected rows", size)
        chosen.size += size
        page = self.pages.add_columns(
            pa.RecordBatch.from_arrays(plan.columns(), schema=self.cache.schema) if self.kept else None, self.kept
        )
        if not chosen.pages and old:
            for number in old:
                self.pages.release(number)
            self.ledger.book("collected rows", size)
            chosen.size = size
        chosen.pages = [*chosen.pages, page]
        chosen.codes.append(codes)
        chosen.refs.append(np.arange(len(refs), dtype=np.int64) + (page << 32))

    def _switch(self, chosen: _Chosen) -> None:
        """Move the values for which the inequality holds to H_R, with the rows that a whole turn has found."""
        nothing = np.empty(0, dtype=np.int64)
        codes, refs = np.concatenate([nothing, *chosen.codes]), np.concatenate([nothing, *chosen.refs])
        order = np.argsort(codes, kind="stable")
        codes, refs = codes[order], refs[order]
        begin = np.searchsorted(codes, chosen.keys, side="left")
        counts = np.searchsorted(codes, chosen.keys, side="right") - begin
        good = chosen.counts * self._stream_bytes > counts * self.row_bytes + self.entry_bytes
        plan = self.pages.measure(refs, self.kept)
        if good.any() and plan.nbytes + PAGE_OVERHEAD <= self.ledger.free // 2:
            self.ledger.add("collected rows", plan.nbytes + PAGE_OVERHEAD)
            batch = pa.RecordBatch.from_arrays(plan.columns(), schema=self.cache.schema) if self.kept else None
            page = self.pages.add_columns(batch, self.kept)
            limit = self.cache.bytes + self.ledger.free
            self.cache.admit(chosen.keys[good], begin[good] + (page << 32), counts[good], chosen.counts[good], limit)
            self.pages.release(page)
        self._forget()
        self.stats.cached_rows = self.cache.cached_rows

    def _forget(self) -> None:
        """Let go of what was collected."""
        if self.chosen is not None:
            for page in self.chosen.pages:
                self.pages.release(page)
            self.ledger.book("collected rows", 0)
            self.chosen = None

    def _evict(self) -> None:
        """Values that came too seldom go, once as many rows have come as the window holds."""
        if self._probes < max(1024, self._length) or not self.cache.order:
            return
        table = self.cache.table
        length = max(1, self._length) / self._probes
        self._probes = 0
        stream_side = table.hits * (length * self._stream_bytes)
        cold = np.flatnonzero((table.rows >= 0) & (stream_side < table.rows * self.row_bytes + self.entry_bytes))
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
