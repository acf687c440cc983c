"""The cost models of the scan joins, of INLJ and of `auto`.

Legend: b = bytes of a read, k = N_R / b = reads of a turn of R, w = tuples taken in for each, h = w k = tuples of the
window. A read goes on while the last one is joined, so of each the longer counts.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from ..joins.ameshjoin import AdaptiveMeshJoin
from ..joins.auto import LEAST_WAITING as AUTO_WAITING
from ..joins.auto import STRETCH, STRETCH_BYTES, AutoJoin
from ..joins.base import LEAST_SLICE, Operator
from ..joins.cache import entry_bytes
from ..joins.inlj import SLOT_OVERHEAD, IndexNestedLoopJoin
from ..joins.meshjoin import MeshJoin
from ..joins.policy import SHARES
from ..joins.rmeshjoin import PARTITIONS, ReducedMeshJoin
from ..joins.scanjoin import LEAST_BYTES, LEAST_ROWS, PACKET_BUDGET, ScanJoin
from ..joins.ssbj import CACHE_SHARE, COLLECTED, SemiStreamBalancedJoin
from ..joins.sweep import KEY_BYTES, RANGES, SORT_BYTES
from ..joins.waves import RowRoom, segment_room
from ..kernels.cache_table import CacheTable
from ..kernels.sketch import FrequencySketch
from ..kernels.window_table import WindowTable
from ..master.cycle import SegmentCycle
from ..master.cycle import buffers as number_of_buffers
from ..master.row_buffer import PER_KEY, SLACK
from .models import CacheModel, Iteration, Model, fewer
from .popularity import Floats, recently_used
from .setting import PAGE, Setting, Split, buffer_bytes


def waiting(reads: float, read: float, joining: float, once: float) -> float:
    """Seconds that an iteration waits for its reads of `read` seconds, of which others go on while one is joined.

    `joining` is the work of all pieces, which is spread over the reads; what is done `once` meets a single read.
    """
    piece = joining / max(1.0, reads)
    return max(0.0, reads - 1) * max(0.0, read - piece) + max(0.0, min(1.0, reads) * read - piece - once)


class MeshModel(Model):
    """MESHJOIN: 002, equations 1 to 3."""

    operator: ClassVar[type[ScanJoin]] = MeshJoin
    one_peak: ClassVar[bool] = False  # an iteration has whole reads
    largest_part: ClassVar[int] = 5  # there are two of it or three

    def iteration(self, memory: int, disk_buffer: int) -> Iteration:
        split = self._split(memory, disk_buffer)
        return self._turning(split, disk_buffer, hits=0.0)

    def _split(self, memory: int, disk_buffer: int) -> Split:
        split = Split.of(self.operator, self.setting, memory)
        master, size = self.setting.master, max(disk_buffer, self.least_buffer)
        loan = self._loan(split.free, size)
        size = SegmentCycle.bytes_for(size, master.statistics.average_row_bytes, direct=master.direct, loan=loan)
        split.book("disk buffer", size)
        return split

    def _loan(self, free: int, size: int) -> int:
        """Bytes that the window's table borrows, beside buffers of that size."""
        if not self.operator.borrows:
            return 0
        table, buffers = _tuple_bytes(self.setting), number_of_buffers(direct=self.setting.master.direct)
        return int(table / (table + self.setting.stream_bytes) * max(0, free - buffers * size - LEAST_BYTES))

    def _pages(self, memory: int, disk_buffer: int) -> tuple[int, float]:
        """b: pages of R in an iteration; and in a read, of which an iteration may need several."""
        pages = max(1, self.setting.master.statistics.segments)
        room = max(self.setting.segment_bytes, max(disk_buffer, self.least_buffer) - 2 * PAGE)
        read = max(1.0, pages / max(1, math.ceil(pages * self.setting.segment_bytes / room)))
        return self._whole_reads(max(int(read), -(-pages // max(1, memory // PACKET_BUDGET))), read, pages), read

    @staticmethod
    def _whole_reads(b: int, read: float, pages: int) -> int:
        """The pages of an iteration that is to have about b of all pages."""
        return b if b < int(read) else min(pages, round(round(b / read) * read))

    def _window(self, free: int) -> int:
        """Tuples that the window is made for."""
        row = self.setting.stream_bytes + _tuple_bytes(self.setting)
        return max(LEAST_ROWS, int((free - LEAST_BYTES) / row))

    def _turning(
        self, split: Split, disk_buffer: int, *, hits: float, capacity: int | None = None, rows: float | None = None
    ) -> Iteration:
        """An iteration when `hits` of the arrivals are served by memory and do not come into the window.

        Without `capacity` and `rows` the window has places for as many tuples as the memory holds, and is full.
        """
        setting, steps = self.setting, self.setting.factors.steps
        statistics = setting.master.statistics
        b, read = self._pages(split.memory, disk_buffer)
        reads = b / read
        pieces = max(1.0, reads)
        turns = max(1, -(-statistics.segments // b))
        capacity = self._window(split.free) if capacity is None else capacity
        window = self._rows(capacity, turns) if rows is None else rows
        tuples = window / turns / max(1e-9, 1 - hits)
        waited = tuples * (1 - hits)
        keys = b * statistics.rows / max(1, statistics.segments)
        matches = waited * max(1.0, statistics.rows_per_key)
        appended = max(1.0, min(waited, (1 - hits) * split.slice_rows))
        results = steps["mesh output"]
        spread = setting.factors.spread(read * setting.segment_bytes)
        output = pieces * results.fixed + matches * results.each(capacity) * spread
        if not setting.brings:
            output *= 0.5
        seconds = {
            "c_loop, fixed": pieces * steps["mesh loop"].fixed,
            "c_H": pieces * steps["mesh probe"](keys / pieces, capacity),
            "c_O": output,
            "c_E": steps["mesh expire"](waited, capacity),
            "c_A": waited / appended * steps["mesh append"](appended, capacity),
            "c_S": tuples / split.slice_rows * steps["mesh read"](split.slice_rows, 1.0),
        }
        joining = sum(seconds[term] for term in ("c_loop, fixed", "c_H", "c_O"))
        work = sum(seconds.values())
        waited_for = waiting(reads, setting.factors.scan(read * setting.segment_bytes), joining, work - joining)
        seconds["c_I/O"] = reads * setting.factors.handing_over(work / reads) + waited_for
        split.book("stream table", split.free)
        return Iteration(
            tuples=tuples,
            hits=hits,
            seconds=seconds,
            memory=split.components,
            parameters={"disk_buffer": max(disk_buffer, self.least_buffer)},
            turn=window / max(1e-9, 1 - hits),
        )

    def _rows(self, capacity: int, turns: int) -> float:
        """Tuples of the window when it is full: w for each iteration of a turn."""
        return float(max(1, capacity // turns) * turns)


class AdaptiveMeshModel(MeshModel):
    """AMESHJOIN at full speed: MESHJOIN in the nine tenths of the memory that its tuner plans with."""

    operator: ClassVar[type[ScanJoin]] = AdaptiveMeshJoin

    def _rows(self, capacity: int, turns: int) -> float:
        return 0.9 * capacity * turns / (turns + 1)


class ReducedMeshModel(MeshModel):
    """R-MESHJOIN: rows come in 32 times in a turn, however large the reads are."""

    operator: ClassVar[type[ScanJoin]] = ReducedMeshJoin

    def _pages(self, memory: int, disk_buffer: int) -> tuple[int, float]:
        _, read = super()._pages(memory, disk_buffer)
        packets = min(PARTITIONS, max(1, memory // PACKET_BUDGET))
        pages = max(1, self.setting.master.statistics.segments)
        return self._whole_reads(-(-pages // packets), read, pages), read


class BalancedModel(MeshModel):
    """SSBJ: MESHJOIN for the keys whose rows of R would take more memory than the tuples in the window."""

    operator: ClassVar[type[ScanJoin]] = SemiStreamBalancedJoin

    def iteration(self, memory: int, disk_buffer: int) -> Iteration:
        setting = self.setting
        split = self._split(memory, disk_buffer)
        entry = entry_bytes(0.0, 1.0)
        places = int(split.free * CACHE_SHARE / (setting.kept_bytes + entry))
        places = max(16, min(places, setting.master.statistics.rows + 16))
        split.book("master cache", CacheTable.bytes_for(places))
        waiting = setting.stream_bytes + _tuple_bytes(setting)
        per_key = max(1.0, setting.master.statistics.rows_per_key)
        least = math.floor((per_key * setting.kept_bytes + entry) / waiting) + 1
        cached: Floats = np.zeros(len(setting.popularity.share))
        hits, pages = 0.0, 0
        capacity = self._window(split.free)  # before there is anything in the cache
        free = split.free - capacity * _tuple_bytes(setting) - memory // COLLECTED
        for _ in range(8):
            rows = min(float(capacity), max(1.0, (free - pages) / setting.stream_bytes))
            turn = rows / max(1e-9, 1 - hits)
            cached = 1 - fewer(setting.popularity.share * turn, least)
            hits = 0.5 * hits + 0.5 * setting.popularity.served_by(cached)
            keys = min(float(places), float((cached * setting.popularity.number).sum()))
            pages = int(min(0.5 * split.free, 1.1 * keys * per_key * setting.kept_bytes))
        split.book("master cache", pages)
        found = self._turning(split, disk_buffer, hits=hits, capacity=capacity, rows=rows)
        steps = setting.factors.steps
        slices = found.tuples / split.slice_rows
        found.seconds["c_N"] = slices * steps["test"](split.slice_rows, places)
        found.seconds["c_O of hits"] = hits * found.tuples * steps["hit"].each(places) + slices * steps["hit"].fixed
        b, read = self._pages(memory, disk_buffer)
        found.seconds["c_I"] = max(1.0, b / read) * steps["ssbj switch"].fixed
        return found


class NestedLoopModel(Model):
    """INLJ: a segment for each row that does not find it in the pool."""

    operator: ClassVar[type[Operator]] = IndexNestedLoopJoin
    has_buffer: ClassVar[bool] = False

    def iteration(self, memory: int, disk_buffer: int) -> Iteration:
        setting = self.setting
        statistics = setting.master.statistics
        split = Split.of(self.operator, setting, memory)
        split.book("pool directory", 4 * statistics.segments)
        slot = -(-(statistics.max_segment_bytes + 2 * PAGE) // PAGE) * PAGE
        keep = statistics.filter_bytes + (statistics.filter_bytes >> 4) if 4 * statistics.filter_bytes < memory else 0
        slots = min(statistics.segments, max(1, (split.free - keep) // (slot + SLOT_OVERHEAD)))
        split.book("buffer pool", min(split.free, slots * (slot + SLOT_OVERHEAD) + PAGE))
        by_frequency = setting.master.layout == "frequency"
        segments = setting.popularity.partitions(statistics.segments, by_frequency=by_frequency)
        pooled = recently_used(segments.number, segments.share, slots)
        hits = float((segments.share * segments.number * pooled).sum())
        rows = float(split.slice_rows)
        steps = setting.factors.steps
        seconds = {
            "c_I/O": rows * (1 - hits) * steps["inlj read"](1, 1),
            "c_H + c_O": rows * steps["inlj row"](1, 1),
        }
        return Iteration(rows, hits, seconds, split.components)


class SweepModel(Model):
    """`auto`: a cache, and passes over ranges of R for what is not in it; the split is the one that it finds itself."""

    operator: ClassVar[type[Operator]] = AutoJoin
    has_buffer: ClassVar[bool] = False

    def iteration(self, memory: int, disk_buffer: int) -> Iteration:
        setting = self.setting
        statistics = setting.master.statistics
        split = Split.of(self.operator, setting, memory)
        spare = memory - self.least_memory
        wave = self._book_waves(split, spare)
        share = split.free - spare // 12
        keys = statistics.distinct_keys + 16
        whole = 1.05 * statistics.rows * setting.kept_bytes + CacheTable.bytes_for(keys) + (2 << 20)
        fits = whole <= 0.85 * share
        if not fits:
            per_key = entry_bytes(setting.kept_bytes, max(1.0, statistics.rows_per_key))
            keys = max(16, min(keys, int(0.75 * share / per_key)))
            sketch = min(spare // 24, 4 * statistics.distinct_keys)
            split.book("frequency sketch", FrequencySketch.bytes_for(sketch))
        split.book("master cache", CacheTable.bytes_for(keys))
        split.book("stretch", (LEAST_SLICE + min(STRETCH, spare // (32 * STRETCH_BYTES))) * STRETCH_BYTES)
        if fits:
            split.book("master cache", int(whole) - CacheTable.bytes_for(keys))
            split.book("stream table", split.free)
            return self._made(split, 1.0, 0.0, 0.0, 0.0)
        found = [self._shared(split, waiting, wave, keys) for waiting in SHARES]
        return max(found, key=lambda one: one.rate)

    def _book_waves(self, split: Split, spare: int) -> tuple[float, float]:
        """Book the buffers that rows are read to; how many rows and how many segments a wave has at most."""
        setting = self.setting
        room = RowRoom.of(setting.master, setting.kept, spare)
        if room is not None:
            split.book("disk buffer", room.nbytes)
            return room.rows / (SLACK * setting.kept_bytes + PER_KEY), math.inf
        size, number = segment_room(setting.master, spare, split.free)
        split.book("disk buffer", number * buffer_bytes(size))
        return math.inf, size / setting.segment_bytes

    def _shared(self, split: Split, waiting: float, wave: tuple[float, float], places: int) -> Iteration:
        """The steady state when waiting rows have that share of the memory."""
        setting = self.setting
        statistics = setting.master.statistics
        split = Split(split.memory, dict(split.components), split.slice_rows)
        free = split.free
        per_key = CacheModel.page_waste * setting.kept_bytes * max(1.0, statistics.rows_per_key)
        keys = min(float(places), (1 - waiting - 1 / 20) * free / per_key)
        popularity = setting.popularity
        cached = recently_used(popularity.number, popularity.share, max(0.0, keys), times=2)
        hits = popularity.served_by(cached)
        row = setting.stream_bytes + KEY_BYTES + SORT_BYTES / RANGES
        rows = max(1.0, 2 * RANGES / (RANGES + 1) * max(AUTO_WAITING, waiting * free) / row)
        segments = popularity.partitions(statistics.segments, 1 - cached)
        missed = max(1e-9, 1 - hits)
        touched = float((segments.number * -np.expm1(-rows * segments.share / missed)).sum())
        split.book("master cache", int((1 - waiting) * free))
        split.book("stream table", split.free)
        waves = max(float(RANGES), rows / wave[0], touched / wave[1])
        return self._made(split, hits, rows, touched, waves)

    def _made(self, split: Split, hits: float, rows: float, touched: float, waves: float) -> Iteration:
        """A round of the sweep in which `rows` rows that waited are resolved."""
        steps = self.setting.factors.steps
        tuples = rows / max(1e-9, 1 - hits) if rows else float(split.slice_rows)
        slices = tuples / split.slice_rows
        seconds = {
            "c_S + c_N": slices * steps["auto row"](split.slice_rows, split.memory),
            "c_O of hits": slices * steps["auto hit"].fixed + hits * tuples * steps["auto hit"].each(split.memory),
            "c_A + c_H + c_O": waves * steps["auto miss"].fixed + rows * steps["auto miss"].each(split.memory),
            "c_I/O": waves * steps["auto read"].fixed + touched * steps["auto read"].each(split.memory),
        }
        return Iteration(tuples, hits, seconds, split.components)


def _tuple_bytes(setting: Setting) -> int:
    """Memory of a tuple of the window beside its row; keys that are no hashes are taken to be short."""
    return WindowTable.tuple_bytes(wide=setting.master.codec.hashed)
