"""Runs operators for a moment with a stopwatch on their steps, at some settings of memory and disk buffer.

A step's factor is what fits all of its runs: a fixed part for each time, and a part for each tuple that depends on how
large the structure is that the step works on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from .. import joins
from ..joins.base import Operator
from ..joins.cachejoin import CacheJoin
from ..joins.hybridjoin import HybridJoin
from ..master import Master
from .curves import Curve, Sample, Step, fit
from .factors import SKEWED
from .sample_stream import BATCH_ROWS, SampleStream
from .stopwatch import Stopwatch

LEAST_WINDOW = 0.25  # seconds
LARGEST_BUDGET = 160_000_000
LONGEST_FILLING = 3.0  # seconds until an operator must have begun to read

Say = Callable[[str], None]


class Runs:
    """Collects samples of steps; `fill` is how full H_S is on average, as a share of its capacity.

    A machine that others use is slow for half a minute now and then. Whoever runs all settings in rounds that lie apart
    sees what it usually does, and so does whoever runs a join on it later.
    """

    def __init__(self, master: Master, stream: SampleStream, *, columns: Sequence[str] | None, say: Say) -> None:
        self.master = master
        self.stream = stream
        self.columns = columns
        self.say = say
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        self.fills: list[float] = []
        self._sizes: dict[tuple[str, int], float] = {}
        low = joins.least_memory("moij", master, on=master.key, columns=columns) + 1_500_000
        high = max(2 * low, min(LARGEST_BUDGET, low + master.statistics.bytes))
        self.budgets = [low, int((low * high) ** 0.5), high]
        least = Operator.least_disk_buffer(master)
        self.buffers = [least, max(2 * least, 256 << 10), max(4 * least, 4 << 20)]

    @property
    def fill(self) -> float:
        return float(np.median(self.fills)) if self.fills else 1.0

    def steps(self) -> dict[str, Step]:
        """The factor of each step, of the samples that were filed."""
        return {name: fit(samples) for name, samples in self.samples.items()}

    def reads(self, alone: Curve) -> Curve:
        """What reads cost inside of an operator, from what they cost `alone`: the difference is seen at some sizes."""
        seen: dict[float, list[float]] = defaultdict(list)
        for one in self.samples.pop("io", []):
            if one.calls:
                size = one.tuples / one.calls
                seen[round(size, -3)].append(one.seconds / one.calls / alone(size))
        if not seen:
            return alone
        sizes = sorted(seen)
        ratios = [float(np.mean(seen[size])) for size in sizes]
        inside = np.interp(np.log(alone.sizes), np.log(sizes), ratios) * np.array(alone.seconds)
        return Curve(alone.sizes, tuple(inside.tolist()), alone.grows)

    def hybrid_joins(self, seconds: float, *, skewed: bool) -> None:
        """A round of HYBRIDJOIN over memory and disk buffer: with keys that are often asked for at hand in the
        processor's caches everything is faster.
        """
        todo = [(budget, buffer) for budget in self.budgets for buffer in self.buffers if 4 * buffer < budget]
        for budget, buffer in todo:
            self._run("hybridjoin", budget, buffer, seconds / len(todo), warm_up=0.0, skewed=skewed)

    def caches(self, seconds: float) -> None:
        """CACHEJOIN and MOIJ for what the cache costs: only a cache that is full shows it."""
        todo = [
            (name, budget, buffer)
            for name in ("cachejoin", "moij")
            for budget in self.budgets[:2]
            for buffer in self.buffers[1:]
            if 4 * buffer < budget
        ]
        longest = max(budget for _, budget, _ in todo) if todo else 0
        shares = [0.25 if budget < longest else 1.0 for _, budget, _ in todo]
        for (name, budget, buffer), share in zip(todo, shares, strict=True):
            mine = seconds * share / sum(shares)
            self._run(name, budget, buffer, 0.25 * mine, warm_up=0.75 * mine, skewed=True)

    def _run(self, name: str, budget: int, buffer: int, seconds: float, *, warm_up: float, skewed: bool) -> None:
        self.say(f"running {name} with {budget / 1e6:.3g} MB, of them {buffer / 1e6:.2g} MB of disk buffer")
        operator = joins.create(
            name, self.master, on=self.master.key, memory=budget, columns=self.columns, disk_buffer=buffer
        )
        assert isinstance(operator, HybridJoin)
        small = budget == self.budgets[0]  # and slow: a large batch would take seconds
        stream = self.stream.batches(1.0 if skewed else 0.0, rows=BATCH_ROWS // 8 if small else BATCH_ROWS)
        work(operator.process(next(stream)))  # makes H_S
        fill(operator, stream)
        run(operator, stream, max(warm_up, 0.5 * seconds))
        watch, held = _watched(operator)
        run(operator, stream, max(LEAST_WINDOW, 0.5 * seconds))
        waiting = self.filed(name, budget, operator.waiting.table.capacity)
        if name == "hybridjoin":
            if held:
                self.fills.append(float(np.mean(held)) / operator.waiting.table.capacity)
            kind = SKEWED if skewed else ""
            for step in ("loop", "probe", "expire", "output", "append"):
                self.samples[step + kind].append(watch.sample(step, waiting))
            self.samples["read" + kind].append(watch.sample("read", 1.0))
            self.samples["stream output" + kind].append(_stream_output(operator, waiting))
            self.samples["io"].append(watch.sample("io", waiting))
        else:
            assert isinstance(operator, CacheJoin)
            cached = self.filed(f"{name} cache", budget, operator.cache.table.capacity)
            seen = {"test": "test", "hit": "test.output"}
            if not small:  # looking through a table costs every iteration the more the larger it is
                seen[f"{name} switch"] = "switch"
            for step, timed in seen.items():
                self.samples[step].append(watch.sample(timed, cached))
        operator.close()

    def filed(self, what: str, budget: int, size: int) -> float:
        """The size under which samples are filed, one for all runs with a budget, so that they are fitted together."""
        return self._sizes.setdefault((what, budget), float(size))


def _watched(operator: HybridJoin) -> tuple[Stopwatch, list[int]]:
    """Put a stopwatch on the steps of an iteration; also the numbers of rows that waited when iterations began."""
    watch = Stopwatch()
    held: list[int] = []
    keys = [0]

    def probed(arguments: tuple[Any, ...], _: Any) -> float:
        keys[0] = max(keys[0], len(arguments[0]))
        return len(arguments[0])

    def iterated(_: tuple[Any, ...], __: Any) -> float:
        held.append(len(operator.waiting))
        last, keys[0] = keys[0], 0
        return last

    waiting = operator.waiting
    watch.time(operator, "process", "read")
    watch.time(operator, "_arrive", "read", lambda arguments, _: len(arguments[0]))
    watch.time(operator, "_probe_memory", "test", lambda arguments, _: len(arguments[0]))
    watch.time(operator, "_resolve", "output", lambda arguments, _: len(arguments[0]), inside="test")
    watch.time(waiting, "add", "append", lambda _, taken: taken)
    watch.time(waiting, "compact", "append")
    watch.time(operator, "_free_some", "loop")
    watch.time(operator, "_iterate", "loop", iterated)
    watch.time(operator, "_load", "io", lambda arguments, _: float(operator.reader.index.length[arguments[0]].sum()))
    watch.time(operator, "_groups", "probe")
    watch.time(waiting.table, "count", "probe", probed)
    watch.time(waiting.table, "remove", "expire")
    watch.time(waiting, "leave", "expire", lambda arguments, _: len(arguments[0]))
    watch.time(operator, "_matched", "switch", lambda arguments, _: float(arguments[3].sum()))
    watch.reset()
    return watch, held


def _stream_output(operator: HybridJoin, waiting: float) -> Sample:
    """The output of stream columns alone, as semi and anti joins have it."""
    refs = operator.waiting.table.refs(np.arange(operator.waiting.table.capacity, dtype=np.int32))
    refs = refs[refs >= 0] if len(operator.waiting) else refs[:0]
    live = np.isin(refs >> 32, np.fromiter(operator.waiting.live, dtype=np.int64))
    refs = refs[live][:65_536]
    begun = time.perf_counter()
    columns = range(len(operator.stream.layout.columns))
    for start in range(0, len(refs), 4096):
        operator.stream.measure(refs[start : start + 4096], columns).columns()
    return Sample(waiting, max(1, -(-len(refs) // 4096)), float(len(refs)), time.perf_counter() - begun)


def fill(operator: Operator, stream: Iterator[pa.RecordBatch]) -> None:
    """Feed until the operator has begun to read."""
    begun = time.perf_counter()
    while not operator.stats.iterations and time.perf_counter() - begun < LONGEST_FILLING:
        work(operator.process(next(stream)))


def run(operator: Operator, stream: Iterator[pa.RecordBatch], seconds: float) -> None:
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        work(operator.process(next(stream)))


def work(results: Iterable[Any]) -> None:
    for _ in results:
        pass
