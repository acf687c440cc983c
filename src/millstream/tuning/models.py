"""The cost models of the index joins: memory split, and c_loop of an iteration in the steady state.

Legend: b = bytes of a partition, d_T = its tuples, h_S = tuples that wait, h_R = keys in the cache, T = arrivals that
the oldest tuple waits, w = w_N + w_S = tuples processed in an iteration, from memory and from disk.
`docs/cost-models.md` has the equations.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from ..joins.base import Operator
from ..joins.cache import entry_bytes
from ..joins.cachejoin import CacheJoin
from ..joins.hotfirst import KEPT, HotFirstJoin, kept_room
from ..joins.hybridjoin import REFILL, HybridJoin, partition_segments
from ..joins.moij import Moij
from ..joins.xhybridjoin import XHybridJoin
from ..kernels.cache_table import CacheTable
from .curves import Step
from .popularity import Floats, Partitions, age_of_oldest, reads_per_arrival, recently_used
from .setting import Setting, Split, buffer_bytes

WAITING_ENTRY = 12.0  # bytes that the cache inequality adds to a waiting tuple


@dataclass(frozen=True)
class Iteration:
    """An iteration in the steady state: tuples that it processes, and its seconds by term of c_loop.

    `turn` is T, the arrivals while the oldest tuple waits: what comes in waves comes again after that many.
    """

    tuples: float
    hits: float  # share of them that is served from memory
    seconds: dict[str, float]
    memory: dict[str, int]
    parameters: dict[str, int] = field(default_factory=dict)
    turn: float = 0.0

    @property
    def c_loop(self) -> float:
        return sum(self.seconds.values())

    @property
    def rate(self) -> float:
        """mu, in tuples a second."""
        return self.tuples / self.c_loop


class Model(ABC):
    """The cost model of an algorithm, for one setting."""

    operator: ClassVar[type[Operator]]
    has_buffer: ClassVar[bool] = True  # whether there is a disk buffer to choose
    one_peak: ClassVar[bool] = True  # whether the rate over the disk buffer has one maximum
    largest_part: ClassVar[int] = 3  # of the memory, that a disk buffer may have: a third

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @property
    def least_memory(self) -> int:
        return self.operator.least_memory(self.setting.master, self.setting.brought)

    @property
    def least_buffer(self) -> int:
        return self.operator.least_disk_buffer(self.setting.master)

    def largest_buffer(self, memory: int) -> int:
        """The largest disk buffer that is worth a look: not beyond those that were measured.

        There the processor's caches lose what was read before it is joined, which the factors do not show.
        """
        measured = int(self.setting.factors.scan.sizes[-1])
        most = min((memory - self.least_memory) // self.largest_part, self.setting.master.statistics.bytes // 2)
        return max(self.least_buffer, min(most, measured))

    def default_buffer(self, memory: int) -> int:
        """The disk buffer that the operator takes if none is given."""
        spare = memory - self.least_memory
        return max(self.least_buffer, self.operator.default_disk_buffer(self.setting.master, spare))

    @abstractmethod
    def iteration(self, memory: int, disk_buffer: int) -> Iteration:
        """The steady state with this memory and this disk buffer."""


class HybridModel(Model):
    """HYBRIDJOIN."""

    operator: ClassVar[type[HybridJoin]] = HybridJoin

    def iteration(self, memory: int, disk_buffer: int) -> Iteration:
        split = self._split(memory, disk_buffer)
        partitions = self._partitions(disk_buffer)
        return self._steady(split, disk_buffer, partitions, hits=0.0, cached=0.0)

    def _split(self, memory: int, disk_buffer: int) -> Split:
        split = Split.of(self.operator, self.setting, memory)
        split.book("disk buffer", buffer_bytes(max(disk_buffer, self.least_buffer)))
        return split

    def _partition_segments(self, disk_buffer: int) -> int:
        return partition_segments(self.setting.master, max(disk_buffer, self.least_buffer))

    def _partitions(self, disk_buffer: int, waiting: Floats | None = None) -> Partitions:
        master = self.setting.master
        number = master.statistics.segments / self._partition_segments(disk_buffer)
        return self.setting.popularity.partitions(number, waiting, by_frequency=master.layout == "frequency")

    def _waiting(self, split: Split) -> tuple[float, int]:
        """h_S on average, and the capacity of H_S."""
        capacity = self.operator.waiting_capacity(split.free, self.setting.stream_bytes)
        return capacity * self.setting.factors.fill, capacity

    def _steady(
        self,
        split: Split,
        disk_buffer: int,
        partitions: Partitions,
        *,
        hits: float,
        cached: float,
        waiting: Floats | None = None,
    ) -> Iteration:
        """The iteration when `hits` of the arrivals find their key among the `cached` keys in memory.

        `waiting` is the probability of each key that its rows wait instead.
        """
        rows, capacity = self._waiting(split)
        steps = self.setting.steps(rows, self.setting.popularity.distinct(rows, waiting))
        age = age_of_oldest(partitions, rows)
        tuples = 1 / max(1e-12, reads_per_arrival(partitions, age))
        split.book("stream table", split.free)
        return Iteration(
            tuples=tuples,
            hits=hits,
            seconds=self._seconds(split, disk_buffer, tuples, hits, capacity, cached, steps),
            memory=split.components,
            parameters={"disk_buffer": max(disk_buffer, self.least_buffer)},
            turn=age,
        )

    def _seconds(
        self,
        split: Split,
        disk_buffer: int,
        tuples: float,
        hits: float,
        capacity: float,
        cached: float,
        steps: dict[str, Step],
    ) -> dict[str, float]:
        """c_loop by term."""
        setting = self.setting
        statistics = setting.master.statistics
        segments = min(self._partition_segments(disk_buffer), statistics.segments)
        keys = segments * statistics.distinct_keys / max(1, statistics.segments)
        waited = tuples * (1 - hits)
        slices = tuples / split.slice_rows
        appended = max(1.0, min(max(waited, capacity / REFILL), (1 - hits) * split.slice_rows))
        seconds = {
            "c_I/O": setting.factors.io(segments * setting.segment_bytes),
            "c_loop, fixed": steps["loop"](keys, capacity),
            "c_H": 2 * steps["probe"].fixed + keys * steps["probe"].each(capacity),
            "c_E": steps["expire"](waited, capacity),
            "c_O": steps["output" if setting.brings else "stream output"](waited, capacity),
            "c_A": waited / appended * steps["append"](appended, capacity),
            "c_S": slices * steps["read"](split.slice_rows, 1.0),
        }
        if setting.master.layout == "frequency":
            seconds["c_I/O of the index"] = setting.factors.io(setting.segment_bytes)
        if cached:
            seconds["c_N"] = slices * steps["test"](split.slice_rows, cached)
            seconds["c_O of hits"] = hits * tuples * steps["hit"].each(cached) + slices * steps["hit"].fixed
        return seconds


class XHybridModel(HybridModel):
    """X-HYBRIDJOIN: the most popular partition stays in memory."""

    operator: ClassVar[type[HybridJoin]] = XHybridJoin
    one_peak: ClassVar[bool] = False  # a large buffer leaves no room for the part that stays

    def iteration(self, memory: int, disk_buffer: int) -> Iteration:
        split = self._split(memory, disk_buffer)
        buffer = max(disk_buffer, self.least_buffer)
        partitions = self._partitions(disk_buffer)
        rows = int(buffer / max(16.0, self.setting.master.statistics.average_row_bytes)) + 64
        room = buffer + 8192 + CacheTable.bytes_for(rows)
        if room * 3 >= split.free:
            return self._steady(split, disk_buffer, partitions, hits=0.0, cached=0.0)
        split.book("non-swappable part", room)
        best, others = partitions.without_best()
        return self._steady(split, disk_buffer, others, hits=best, cached=float(rows))


class HotFirstModel(XHybridModel):
    """`auto` on a master by access frequency: the most popular rows stay in memory, and it sets the rest by itself."""

    operator: ClassVar[type[HybridJoin]] = HotFirstJoin
    has_buffer: ClassVar[bool] = False

    def iteration(self, memory: int, disk_buffer: int) -> Iteration:
        disk_buffer = self.default_buffer(memory)
        split = self._split(memory, disk_buffer)
        room = kept_room(split.free, self.setting.master, KEPT)
        popularity = self.setting.popularity
        kept = np.zeros(len(popularity.share))
        if room is not None:
            size, keys = room
            split.book("non-swappable part", size + CacheTable.bytes_for(keys))
            before = np.cumsum(popularity.number) - popularity.number
            kept = np.clip((keys - before) / popularity.number, 0.0, 1.0)
        partitions = self._partitions(disk_buffer, 1 - kept)
        hits = popularity.served_by(kept)
        found = self._steady(
            split, disk_buffer, partitions, hits=hits, cached=float(room[1]) if room else 0.0, waiting=1 - kept
        )
        return replace(found, parameters={})


class CacheModel(HybridModel):
    """CACHEJOIN: H_R has a fixed half of the memory and keeps the keys that were frequent of late."""

    operator: ClassVar[type[CacheJoin]] = CacheJoin
    page_waste: ClassVar[float] = 1.12  # bytes of pages for each byte of cached rows

    def iteration(self, memory: int, disk_buffer: int) -> Iteration:
        setting = self.setting
        split = self._split(memory, disk_buffer)
        limit = int(split.free * self.operator.cache_share)
        places = self._places(limit)
        table = CacheTable.bytes_for(places)
        split.book("master cache", table)
        rows_per_key = max(1.0, setting.master.statistics.rows_per_key)
        room = max(0.0, limit - table) / (self.page_waste * rows_per_key * setting.kept_bytes)
        cached, hits = self._cached(min(room, places))
        partitions = self._partitions(disk_buffer, 1 - cached)
        found = self._steady(split, disk_buffer, partitions, hits=hits, cached=float(places), waiting=1 - cached)
        found.memory["master cache"] = limit
        found.memory["stream table"] -= limit - table
        waited = found.tuples * (1 - hits)
        found.seconds["c_I"] = setting.factors.steps[f"{self.operator.name} switch"](waited, places)
        return found

    def _places(self, limit: int) -> int:
        statistics = self.setting.master.statistics
        key = entry_bytes(self.setting.kept_bytes, max(1.0, statistics.rows_per_key))
        return max(16, int(min(statistics.distinct_keys + 16, limit / key)))

    def _cached(self, keys: float) -> tuple[Floats, float]:
        """The probability that each key is cached, and the share of the stream that then finds its key."""
        popularity = self.setting.popularity
        once = recently_used(popularity.number, popularity.share, keys, times=1)
        twice = recently_used(popularity.number, popularity.share, keys, times=2)
        cached = (once + twice) / 2
        return cached, popularity.served_by(cached)


class MoijModel(CacheModel):
    """MOIJ: a key is cached when it takes less memory there than the tuples that wait for it."""

    operator: ClassVar[type[CacheJoin]] = Moij

    def iteration(self, memory: int, disk_buffer: int) -> Iteration:
        setting = self.setting
        split = self._split(memory, disk_buffer)
        places = self._places(int(split.free * self.operator.cache_share))
        split.book("master cache", CacheTable.bytes_for(places))
        statistics = setting.master.statistics
        per_key = max(1.0, statistics.rows_per_key)
        needed = per_key * statistics.average_row_bytes + entry_bytes(0.0, 1.0)
        least = math.floor(needed / (setting.stream_bytes + WAITING_ENTRY)) + 1
        cached = np.zeros(len(setting.popularity.share))
        free, pages, age = split.free, 0, 0.0
        for _ in range(12):
            rows = self.operator.waiting_capacity(free - pages, setting.stream_bytes) * setting.factors.fill
            partitions = self._partitions(disk_buffer, 1 - cached)
            before, age = age, age_of_oldest(partitions, rows)
            if abs(age - before) < 0.005 * age:
                break
            period = rows / max(1e-6, 1 - setting.popularity.served_by(cached))
            cached = 0.5 * cached + 0.5 * self._kept(age, period, least, partitions)
            keys = min(float(places), float((cached * setting.popularity.number).sum()))
            pages = int(min(0.75 * free, keys * per_key * setting.kept_bytes * self.page_waste))
        split.book("master cache", pages)
        hits = setting.popularity.served_by(cached)
        found = self._steady(split, disk_buffer, partitions, hits=hits, cached=float(places), waiting=1 - cached)
        waited = found.tuples * (1 - hits)
        found.seconds["c_I"] = setting.factors.steps["moij switch"](waited, places)
        return found

    def _kept(self, age: float, period: float, least: int, partitions: Partitions) -> Floats:
        """The probability that each key is cached: how often the inequality lets it in, and how long it then stays.

        A key comes in when `least` of its tuples wait as its partition is read, once in T arrivals; it is looked at
        once in a period of so many arrivals, which bring h_S misses, and goes when it had fewer hits than that since
        the last look.
        """
        share = self.setting.popularity.share
        turn = age + 1 / max(1e-15, float(np.average(partitions.share, weights=partitions.number)))
        let_in = 1 - fewer(share * turn, least)
        goes = np.maximum(1e-12, fewer(share * period, least))
        stay = period * (0.5 + 1 / goes)
        away = turn / np.maximum(1e-12, let_in)
        return stay / (stay + away)


def fewer(mean: Floats, count: int) -> Floats:
    """The probability that a Poisson number with some mean is below a count."""
    term = np.exp(-np.minimum(mean, 700.0))
    total = term.copy()
    for k in range(1, count):
        term = term * mean / k
        total = total + term
    return np.minimum(total, 1.0)
