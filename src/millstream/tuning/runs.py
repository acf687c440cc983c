"""Operators that are warm and run for a moment now and then with a stopwatch on their steps, at some settings of memory
and disk buffer.

A step's factor is what fits all of its runs: a fixed part for each time, and a part for each tuple that depends on how
large the structure is that the step works on.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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

LARGEST_BUDGET = 160_000_000
LARGE = 100_000_000  # bytes of memory that take seconds to fill: with one disk buffer only
OF_ALL = 12  # times the largest budget is about what all operators have together
LONGEST_FILLING = 3.0  # seconds until an operator must have begun to read


class Running:
    """An operator that is warm, with its stream; `file` files what was seen of it."""

    def __init__(self, operator: Operator, stream: Iterator[pa.RecordBatch], file: Callable[[], None]) -> None:
        self.operator = operator
        self.stream = stream
        self.file = file
        self.spent = 0.0

    def turn(self, until: float) -> None:
        """Run until it has had so many seconds in all its turns."""
        begun = time.perf_counter()
        if self.spent < until:
            self._run(until - self.spent)
        self.spent += time.perf_counter() - begun

    def _run(self, seconds: float) -> None:
        run(self.operator, self.stream, seconds)


class Todo(NamedTuple):
    """A setting to be watched; `start` makes its operator and warms it up, or finds that it has no room to work in."""

    what: str
    start: Callable[[], Running | None]


class Runs:
    """Collects samples of steps; `fill` is how full H_S is on average, as a share of its capacity."""

    def __init__(self, master: Master, stream: SampleStream, *, columns: Sequence[str] | None, seconds: float) -> None:
        self.master = master
        self.stream = stream
        self.columns = columns
        self.seconds = seconds
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        self.fills: list[float] = []
        self._sizes: dict[tuple[str, int], float] = {}
        low = joins.least_memory("moij", master, on=master.key, columns=columns) + 1_500_000
        most = min(LARGEST_BUDGET, _free_memory() // (4 * OF_ALL))
        high = max(2 * low, min(most, low + master.statistics.bytes))
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

    def index_joins(self) -> Iterator[Todo]:
        """HYBRIDJOIN over memory and disk buffer, with a flat and with a skewed stream: with keys that are often asked
        for at hand in the processor's caches everything is faster. Then CACHEJOIN and MOIJ for what the cache costs:
        only a cache that is full shows it.
        """
        for budget in self.budgets:
            for buffer in self.buffers if budget <= LARGE else self.buffers[-1:]:
                if 4 * buffer < budget:
                    yield self._hybrid_join(budget, buffer, skewed=False)
                    yield self._hybrid_join(budget, buffer, skewed=True)
        todo = [(budget, buffer) for budget in self.budgets[:2] for buffer in self.buffers[1:] if 4 * buffer < budget]
        longest = max((budget for budget, _ in todo), default=0)
        shares = [0.25 if budget < longest else 1.0 for budget, _ in todo]
        for (budget, buffer), share in zip(todo, shares, strict=True):
            for name in ("cachejoin", "moij"):
                yield self._cache_join(name, budget, buffer, 0.22 * self.seconds * share / sum(shares))

    def _hybrid_join(self, budget: int, buffer: int, *, skewed: bool) -> Todo:
        kind = SKEWED if skewed else ""

        def start() -> Running:
            operator, stream = self._made("hybridjoin", budget, buffer, skewed=skewed)
            watch, held = _watched(operator)

            def file() -> None:
                table = operator.waiting.table
                waiting = self.filed("hybridjoin", budget, table.capacity)
                if held:
                    self.fills.append(float(np.mean(held)) / table.capacity)
                for step in ("loop", "probe", "expire", "output", "append"):
                    self.samples[step + kind].append(watch.sample(step, waiting))
                self.samples["read" + kind].append(watch.sample("read", 1.0))
                self.samples["stream output" + kind].append(_stream_output(operator, waiting))
                self.samples["io"].append(watch.sample("io", waiting))

            return Running(operator, stream, file)

        return Todo(text("hybridjoin", budget, buffer), start)

    def _cache_join(self, name: str, budget: int, buffer: int, warm_up: float) -> Todo:
        def start() -> Running:
            operator, stream = self._made(name, budget, buffer, skewed=True)
            assert isinstance(operator, CacheJoin)
            cache = operator.cache
            run(operator, stream, warm_up)
            watch, _ = _watched(operator)

            def file() -> None:
                cached = self.filed(f"{name} cache", budget, cache.table.capacity)
                seen = {"test": "test", "hit": "test.output"}
                if not self._small(budget):  # looking through a table costs every iteration the more the larger it is
                    seen[f"{name} switch"] = "switch"
                for step, timed in seen.items():
                    self.samples[step].append(watch.sample(timed, cached))

            return Running(operator, stream, file)

        return Todo(text(name, budget, buffer), start)

    def _made(
        self, name: str, budget: int, buffer: int, *, skewed: bool
    ) -> tuple[HybridJoin, Iterator[pa.RecordBatch]]:
        """An operator that has begun to read, and its stream."""
        operator = joins.create(
            name, self.master, on=self.master.key, memory=budget, columns=self.columns, disk_buffer=buffer
        )
        assert isinstance(operator, HybridJoin)
        rows = BATCH_ROWS // 8 if self._small(budget) else BATCH_ROWS
        stream = self.stream.batches(1.0 if skewed else 0.0, rows=rows)
        begun = time.perf_counter()
        while not operator.stats.iterations and time.perf_counter() - begun < LONGEST_FILLING:
            work(operator.process(next(stream)))
        return operator, stream

    def _small(self, budget: int) -> bool:
        """Whether it is the least one, and slow: a large batch would take seconds."""
        return budget == self.budgets[0]

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


def text(name: str, budget: int, buffer: int) -> str:
    return f"{name} with {budget / 1e6:.3g} MB, of them {buffer / 1e6:.2g} MB of disk buffer"


def _free_memory() -> int:
    """Bytes that programs can have, those of the page cache among them."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else LARGEST_BUDGET * 4 * OF_ALL


def run(operator: Operator, stream: Iterator[pa.RecordBatch], seconds: float) -> None:
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        work(operator.process(next(stream)))


def work(results: Iterable[Any]) -> None:
    for _ in results:
        pass
