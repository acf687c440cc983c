"""`auto`: everything the papers teach, arranged for batches, an SSD and vector code.

    stream rows --> cache (H_R) --hit--> result
                      | miss
                      v
                    filter --absent--> result (left, anti)
                      |
                      v
                    waiting rows, by range of keys, until their share of the memory is full
                      |  the next range: distinct keys, sorted
                      v
                    segments in file order, neighbours in one read, the next wave read while this one is joined
                      |  result
                      v
                    cache: rows worth keeping

A pass over a range reads every segment at most once, however many rows wait for it, and the passes go round R as
MESHJOIN's scan does (`sweep.py`), skipping what the index of HYBRIDJOIN shows that nobody waits for. The cache is the
tuple-level one of CACHEJOIN and MOIJ, and memory moves between it and the waiting rows by what it earns: with a flat
stream the rows get nearly all of it (`policy.py`). A master that fits is cached whole, segment by segment as read, and
a cache that has room for a good part of R is filled that way before it becomes choosy.

All of this is for a master in the order of its keys; one in the order of access frequency is for `hotfirst.py`.

Legend: waiting = H_S without a hash table (sorted instead), wave = D_B, hits = f_count, window = one pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from ..kernels.cache_table import CacheTable
from ..kernels.search import references
from ..master import Master
from .base import LEAST_SLICE, Operator
from .cache import MasterCache, entry_bytes
from .policy import CachePolicy
from .sweep import RANGES, SweptRows, WaitingPage
from .waves import RowRoom, RowWaves, SegmentWaves, Wave, Waves, segment_room

STRETCH_BYTES = 96  # of locating and joining for each row of a stretch
LEAST_WAITING = 32 * 1024
STRETCH = 1 << 17  # sorted rows that are located at once
ROOMY = 0.12  # a cache for this share of R's keys is filled with all rows that are read, asked for or not,
FILLED = 0.85  # up to this share of its memory: what was never asked for is the first to go


class AutoJoin(Operator):
    """Invariants: 1. a stream row is in `waiting` or resolved; 2. the cache never takes memory from rows that wait."""

    name: ClassVar[str] = "auto"

    @classmethod
    def _least_own(cls, master: Master, brought: Sequence[str]) -> int:
        return cls.least_disk_buffer(master) + LEAST_WAITING + LEAST_SLICE * STRETCH_BYTES + 16 * 1024

    def _start(self) -> None:
        master = self.master
        assert self.plan is not None
        verified = [self.pages.layout.schema.get_field_index(name) for name in master.key] if self.comparison else []
        kept = sorted({*self.plan.brought, *verified})
        self.waves = self._make_waves(kept)
        self.ledger.book("disk buffer", self.waves.nbytes)
        share = self.ledger.free - self.spare // 12
        statistics = master.statistics
        row_bytes = _kept_bytes(master, kept)
        whole = 1.05 * statistics.rows * row_bytes + CacheTable.bytes_for(statistics.distinct_keys + 16) + (2 << 20)
        self.fits = whole <= 0.85 * share
        keys = int(0.75 * share / entry_bytes(row_bytes, max(1.0, statistics.rows_per_key)))
        keys = statistics.distinct_keys + 16 if self.fits else min(keys, statistics.distinct_keys + 16)
        self.roomy = not self.fits and keys >= ROOMY * statistics.distinct_keys
        self.cache = MasterCache(self.pages, kept, self.ledger, capacity=max(16, keys))
        self.policy = CachePolicy(self.cache, master, self.ledger, spare=self.spare, fits=self.fits)
        self.stretch = LEAST_SLICE + min(STRETCH, self.spare // (32 * STRETCH_BYTES))
        self.ledger.book("stretch", self.stretch * STRETCH_BYTES)
        self._share = self.ledger.free
        self.waiting = SweptRows(self.stream, self.ledger, self._bounds())

    def _make_waves(self, kept: Sequence[int]) -> Waves:
        """What reads rows with these columns."""
        room = RowRoom.of(self.master, kept, self.spare)
        if room is not None:
            return RowWaves(self.reader, self.pages, kept, self.stats, key=self.key_node, room=room)
        size, number = segment_room(self.master, self.spare, self.ledger.free)
        return SegmentWaves(
            self.reader, self.pages, self.locator, self.stats, key=self.key_node, size=size, number=number
        )

    def _bounds(self) -> np.ndarray:
        """Where the ranges of keys begin that are swept in turn: none if R is small."""
        first = self.reader.index.first_key
        if len(first) < 8 * RANGES:
            return np.empty(0, dtype=np.int64)
        return first[[len(first) * i // RANGES for i in range(1, RANGES)]]

    # -- arrival -----------------------------------------------------------------------------------------------

    def _arrive(self, refs: np.ndarray, keys: np.ndarray) -> Iterator[pa.RecordBatch]:
        hit, first, rows, missed = self.cache.table.probe_rows(keys, refs)
        self.stats.cache_hits += len(hit)
        self.policy.note(len(keys), len(hit))
        if len(hit):
            yield from self._resolve(hit, first, rows)
        refs, keys = yield from self._without_absent(*missed)
        while len(refs):
            taken = self.waiting.add(refs, keys, self._waiting_limit())
            refs, keys = refs[taken:], keys[taken:]
            if len(refs) and self.waiting.rows:
                yield from self._sweep()
            elif len(refs) and not self._make_room(self.waiting.least(refs)):
                self.ledger.add("stream table", self.waiting.least(refs))  # says how much would be needed

    @property
    def _waiting_share(self) -> int:
        """Bytes that are set aside for waiting rows."""
        return int(self._share * self.policy.waiting_share)

    def _waiting_limit(self) -> int:
        """Bytes that the waiting rows may take; a first row finds all that is free."""
        return self._waiting_share if self.waiting.rows else max(self._waiting_share, self.ledger.free)

    def _make_room(self, size: int) -> bool:
        """Shrink the cache until that many bytes are free; False if even an empty one does not do."""
        while self.ledger.free < size and self.cache.order:
            self.cache.clean(max(1, self.cache.bytes // 8), 1 << 30)
        return self.ledger.free >= size

    # -- resolution --------------------------------------------------------------------------------------------

    def _drain(self) -> Iterator[pa.RecordBatch]:
        rows, size = self.waiting.rows, self.waiting.bytes
        segments, seconds = self.stats.segments_read, self.waves.seconds
        for pages in self.waiting.take_all():
            yield from self._pass(pages)
        self._end_pass(rows, size, segments, seconds, full=False)

    def _sweep(self) -> Iterator[pa.RecordBatch]:
        """Resolve the next range of keys, because the waiting rows have no room."""
        segments, seconds = self.stats.segments_read, self.waves.seconds
        pages = self.waiting.take()
        yield from self._pass(pages)
        rows, size = sum(len(page.keys) for page in pages), sum(page.size for page in pages)
        self._end_pass(rows, size, segments, seconds, full=True)

    def _pass(self, pages: list[WaitingPage]) -> Iterator[pa.RecordBatch]:
        """Resolve the rows of some pages, in the order of their keys."""
        self.stats.iterations += 1
        codes = np.concatenate([page.keys for page in pages])
        numbers = np.array([page.number for page in pages], dtype=np.int64)
        begins = np.cumsum([0, *(len(page.keys) for page in pages[:-1])], dtype=np.int64)
        order = np.argsort(codes)
        start = 0
        while start < len(order):
            stretch = order[start : start + self.stretch]
            refs = np.empty(len(stretch), dtype=np.int64)
            references(stretch, begins, numbers, refs)
            yield from self._join(codes[stretch], refs)
            start += len(stretch)
        self.waiting.release(pages)

    def _end_pass(self, rows: int, size: int, segments: int, seconds: float, *, full: bool) -> None:
        """Let the policy learn from a pass that began after so many segments and seconds of reading, and give the
        cache the room that it now has.
        """
        self.policy.end_pass(
            rows=rows,
            size=size,
            share=self._share,
            segments=self.stats.segments_read - segments,
            seconds=self.waves.seconds - seconds,
            full=full,
        )
        self.cache.shrink(self._cache_limit())
        self.stats.cached_rows = self.cache.cached_rows
        self.stats.evicted_rows = self.cache.evicted

    def _join(self, codes: np.ndarray, refs: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Resolve rows that come sorted by key, wave by wave."""
        starts = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
        keys, counts = codes[starts], np.diff(np.append(starts, len(codes)))
        segments = self.locator.segments(keys)
        lost = int(np.searchsorted(segments, 0))  # keys that no segment can hold
        absent = int(counts[:lost].sum())
        if absent:
            self._absent += absent
            yield from self._unmatched(refs[:absent])
        keys, counts, starts, segments = keys[lost:], counts[lost:], starts[lost:], segments[lost:]
        for wave in self.waves.of(keys, segments, whole=self._keeps_all()):
            group = slice(wave.low, wave.high)
            waiting = counts[group]
            left = refs[starts[wave.low] : starts[wave.low] + int(waiting.sum())]
            if int(wave.found.min()) == 0:
                self._absent += int(waiting[wave.found == 0].sum())
            yield from self._resolve(left, np.repeat(wave.first, waiting), np.repeat(wave.found, waiting))
            self._keep(keys[group], waiting, wave)

    def _keeps_all(self) -> bool:
        """Whether all rows of the segments that are read go to the cache, asked for or not."""
        return self.fits or (self.roomy and self.cache.bytes < FILLED * self._cache_limit())

    def _keep(self, keys: np.ndarray, waiting: np.ndarray, wave: Wave) -> None:
        """Offer what was just read to the cache."""
        first, found = wave.first, wave.found
        if self.fits:
            self._keep_all(*wave.groups(), hits=1)
            absent = found == 0
            keys, first, found, waiting = keys[absent], first[absent], found[absent], waiting[absent]
        limit = self._cache_limit()
        if self.cache.table.room < len(keys) and self.cache.bytes < 0.9 * limit:
            self._share -= self.cache.grow(limit)  # rows are smaller than the statistics let expect
            limit = self._cache_limit()
        self.policy.offer(keys, first, found, waiting, limit)
        if self.roomy and wave.whole and self._keeps_all():
            self._keep_all(*wave.groups(), hits=0)

    def _cache_limit(self) -> int:
        """Bytes that the cache's pages may take now; a part stays free to clean pages in."""
        reserve = self.waiting.bytes if self.fits else max(self.waiting.bytes, self._waiting_share)
        return self._share - self._share // 20 - reserve

    def _keep_all(self, keys: np.ndarray, first: np.ndarray, counts: np.ndarray, *, hits: int) -> None:
        """Cache all rows of segments that are not there, as if each had been asked for so often."""
        _, known = self.cache.probe(keys)
        new = known < 0
        self.cache.admit(
            keys[new], first[new], counts[new], np.full(int(new.sum()), hits, dtype=np.int32), self._cache_limit()
        )


def _kept_bytes(master: Master, kept: list[int]) -> float:
    """About how many bytes of a row the cache keeps."""
    share = len(kept) / max(1, len(master.stored_schema))
    return max(8.0, master.statistics.average_row_bytes * share)
