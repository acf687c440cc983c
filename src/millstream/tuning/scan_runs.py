"""The scan joins, INLJ and `auto` with a stopwatch on their steps."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

import pyarrow as pa

from .. import joins
from ..joins.auto import AutoJoin
from ..joins.inlj import IndexNestedLoopJoin
from ..joins.scanjoin import ScanJoin
from ..master.cycle import SegmentCycle
from .curves import Curve, Sample
from .runs import LARGE, LONGEST_FILLING, Running, Runs, Todo, run, text, work
from .sample_stream import BATCH_ROWS
from .scan_models import waiting
from .stopwatch import Stopwatch

JOINING = ("mesh loop", "mesh probe", "mesh output")  # of each read
ONCE = ("mesh read", "mesh append", "mesh expire")  # of each iteration
NEIGHBOURS = 2  # runs before and behind one that are taken together with it
LEAST_TUPLES = 8  # of an iteration: with less there is nothing to be measured of tuples
USUAL_BUFFER = 1 << 20  # beside those of all runs: the disk buffers that are mostly used lie around it


@dataclass(frozen=True)
class _Reads:
    """What one run shows of its reads: how many, their bytes and their seconds."""

    number: float
    bytes: float
    seconds: float
    work: float  # seconds of joining and of all else between the reads
    handing_over: float  # seconds of all reads


class ScanRuns:
    """MESHJOIN over memory and disk buffer, and SSBJ for its cache.

    Samples of results are freed of what large reads cost more, `spread`.
    """

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.reads: list[_Reads] = []
        self.watches: dict[tuple[int, int], Stopwatch] = {}  # of MESHJOIN, by memory and disk buffer
        buffers = sorted({*runs.buffers[1:], USUAL_BUFFER})
        between = [int((low * high) ** 0.5) for low, high in itertools.pairwise(runs.budgets)]
        budgets = sorted({*runs.budgets, *between})  # the window leaves one cache of the processor after the other
        settings = [
            ("meshjoin", budget, buffer)
            for budget in reversed(budgets)
            for buffer in (buffers if budget <= LARGE else buffers[-1:])
        ]
        some = min((budget for budget in budgets if budget > 6 * runs.buffers[0]), default=budgets[-1])
        settings.append(("meshjoin", some, runs.buffers[0]))  # all that fits if segments are large
        settings.append(("ssbj", runs.budgets[1], runs.buffers[1]))
        self.settings = [one for one in settings if 6 * one[2] < one[1]]

    def todo(self) -> Iterator[Todo]:
        for name, budget, buffer in self.settings:
            yield self._scan_join(name, budget, buffer)

    def _scan_join(self, name: str, budget: int, buffer: int) -> Todo:
        def start() -> Running | None:
            filled = _filled(self.runs, name, budget, buffer)
            if filled is None:
                return None
            operator, stream = filled
            watch = _watched(operator)
            before = _counted(operator)

            def file() -> None:
                if name == "ssbj":
                    self.runs.samples["ssbj switch"].append(watch.sample("switch", 1.0))
                else:
                    size = self.runs.filed("meshjoin", budget, operator.window.table.capacity)
                    seen = (new - old for new, old in zip(_counted(operator), before, strict=True))
                    self._file(watch, size, *seen)

            if name == "meshjoin":
                self.watches[budget, buffer] = watch
            return Running(operator, stream, file)

        return Todo(text(name, budget, buffer), start)

    @property
    def spread(self) -> Curve:
        """By how much results cost more with large reads than with usual ones, over the bytes of a read."""
        large = self.runs.buffers[-1]
        ratios = []
        for budget in {budget for budget, _ in self.watches}:
            both = [self.watches.get((budget, buffer)) for buffer in (USUAL_BUFFER, large)]
            cheap, dear = (watch.sample("mesh output", 1.0) if watch else _NOTHING for watch in both)
            if cheap.tuples and dear.tuples:
                ratios.append(dear.seconds / dear.tuples / (cheap.seconds / cheap.tuples))
        if large <= USUAL_BUFFER or not ratios:
            return Curve((1.0,), (1.0,))
        return Curve.of({USUAL_BUFFER: 1.0, large: max(1.0, median(ratios))})

    def _file(
        self, watch: Stopwatch, size: float, iterations: float, reads: float, bytes_read: float, read_seconds: float
    ) -> None:
        """File what was seen of MESHJOIN's steps and of its reads, if there were any."""
        if not reads:
            return
        steps = ("mesh probe", "mesh output", "mesh expire", "mesh append")
        samples = {step: watch.sample(step, size) for step in steps}
        output = samples["mesh output"]
        samples["mesh output"] = replace(output, seconds=output.seconds / self.spread(bytes_read / reads))
        samples["mesh read"] = watch.sample("mesh read", 1.0)
        loop = watch.sample("mesh loop", 1.0)
        samples["mesh loop"] = Sample(1.0, samples["mesh probe"].calls, 0.0, loop.seconds)
        turns = max(1.0, iterations)
        joining, once = (sum(samples[step].seconds for step in steps) / turns for steps in (JOINING, ONCE))
        joining += (output.seconds - samples["mesh output"].seconds) / turns
        expected = turns * waiting(reads / turns, read_seconds / reads, joining, once)
        handing_over = watch.sample("wait", 1.0).seconds - expected
        for step, sample in samples.items():
            self.runs.samples[step].append(sample)
        self.reads.append(_Reads(reads, bytes_read, read_seconds, turns * (joining + once), handing_over))

    def factors(self) -> tuple[Curve, Curve]:
        """The seconds of a read while the last one is joined, over its bytes; and those of handing it over, over the
        seconds of work since the last one: after a short time all is still in the processor's caches.
        """
        points: dict[float, list[float]] = defaultdict(list)
        for found in self.reads:
            points[round(found.bytes / found.number, -3)].append(found.seconds / found.number)
        reading = {size: median(seconds) for size, seconds in points.items()}
        handed = sorted((one.work / one.number, max(1e-7, one.handing_over / one.number)) for one in self.reads)
        among = {  # those with about as much work: a single run may have been disturbed
            since: median(seconds for _, seconds in handed[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1])
            for at, (since, _) in enumerate(handed)
        }
        return Curve.of(reading, grows=True), Curve.of(among)


_NOTHING = Sample(1.0, 0, 0.0, 0.0)

Filled = tuple[ScanJoin, Iterator[pa.RecordBatch]]


def _filled(runs: Runs, name: str, budget: int, disk_buffer: int) -> Filled | None:
    """A scan join whose window is full, and its stream; None if there is no room for more than a few tuples."""
    operator = joins.create(
        name, runs.master, on=runs.master.key, memory=budget, columns=runs.columns, disk_buffer=disk_buffer
    )
    assert isinstance(operator, ScanJoin)
    skew = 0.0 if name == "meshjoin" else 1.0
    work(operator.process(next(runs.stream.batches(skew, rows=1))))  # makes the window
    if operator.w < LEAST_TUPLES:
        operator.close()
        return None
    stream = runs.stream.batches(skew, rows=min(BATCH_ROWS, 16 * operator.w))
    begun = time.perf_counter()
    while operator.scan.pages_read < operator.scan.pages and time.perf_counter() - begun < LONGEST_FILLING:
        work(operator.process(next(stream)))  # the window is full after a turn, and slower than before
    return operator, stream


def _counted(operator: ScanJoin) -> tuple[float, ...]:
    """Iterations, and reads with their bytes and seconds, up to now."""
    scan = operator.scan
    assert isinstance(scan, SegmentCycle)
    return operator.stats.iterations, scan.reads, scan.bytes_read, scan.read_seconds


def _watched(operator: ScanJoin) -> Stopwatch:
    """Put a stopwatch on the steps of an iteration; waiting for a read is a step of its own."""
    watch = Stopwatch()
    watch.time(operator, "process", "mesh read")
    watch.time(operator, "_arrive", "mesh read", lambda arguments, _: len(arguments[0]))
    watch.time(operator.window, "add", "mesh append", lambda _, taken: taken)
    watch.time(operator, "_iterate", "mesh loop", lambda _, __: 0.0)
    watch.time(operator.scan, "next", "wait")
    watch.time(operator, "_join", "mesh probe", lambda arguments, _: arguments[0].rows)
    watch.time(operator, "_matches", "mesh output", lambda arguments, _: len(arguments[0]))
    watch.time(operator, "_expire", "mesh expire")
    watch.time(operator, "_leave", "mesh expire", lambda arguments, _: arguments[2] - arguments[1])
    watch.time(operator.window, "drop", "mesh expire")
    if hasattr(operator, "cache"):
        for name in ("_choose", "_found", "_switch", "_evict", "_copy"):
            watch.time(operator, name, "switch", (lambda _, __: 0.0) if name == "_copy" else None)
    watch.reset()
    return watch


def index_nested_loop(runs: Runs) -> Todo:
    """INLJ: what a row costs apart from reading, and what a segment read by itself costs."""

    def start() -> Running:
        operator = joins.create("inlj", runs.master, on=runs.master.key, memory=runs.budgets[1], columns=runs.columns)
        assert isinstance(operator, IndexNestedLoopJoin)
        stream = runs.stream.batches(0.5)
        work(operator.process(next(stream)))
        run(operator, stream, 0.01 * runs.seconds)
        watch = Stopwatch()
        watch.time(operator, "process", "inlj row")
        watch.time(operator, "_arrive", "inlj row", lambda arguments, _: len(arguments[0]))
        watch.time(operator, "_read", "inlj read", lambda arguments, _: len(arguments[0]))

        def file() -> None:
            for step in ("inlj row", "inlj read"):
                sample = watch.sample(step, 1.0)
                # slices are large here and the fixed part cannot be told apart from that of the rows
                runs.samples[step].append(Sample(1.0, int(max(1, sample.tuples)), sample.tuples, sample.seconds))

        return Running(operator, stream, file)

    return Todo("inlj", start)


def sweeps(runs: Runs) -> Iterator[Todo]:
    """`auto`: what a row costs on arrival, and what one that waits costs more, apart from waiting for reads."""
    if runs.master.layout == "frequency":
        return  # there it is an index join
    for budget in runs.budgets:
        for skew in (0.0, 1.0):
            yield _sweep(runs, budget, skew)


def _sweep(runs: Runs, budget: int, skew: float) -> Todo:
    def start() -> Running:
        operator = joins.create("auto", runs.master, on=runs.master.key, memory=budget, columns=runs.columns)
        assert isinstance(operator, AutoJoin)
        stream = runs.stream.batches(skew)
        work(operator.process(next(stream)))
        watch = Stopwatch()
        running = _Passes(operator, stream, lambda: _file_sweep(runs, watch, float(budget)))
        running.turn(0.03 * runs.seconds)
        running.spent = 0.0
        watch.time(operator, "process", "auto row")
        watch.time(operator, "_arrive", "auto row", lambda arguments, _: len(arguments[0]))
        watch.time(operator.waiting, "add", "auto miss", lambda _, taken: taken)
        watch.time(operator, "_pass", "auto miss")
        watch.time(operator, "_resolve", "output", lambda arguments, _: len(arguments[0]), inside="auto row")
        watch.time(operator.waves, "finish", "auto read", lambda _, segments: segments)
        return running

    return Todo(f"auto with {budget / 1e6:.3g} MB", start)


def _file_sweep(runs: Runs, watch: Stopwatch, size: float) -> None:
    read, miss, output = (watch.sample(step, size) for step in ("auto read", "auto miss", "output"))
    runs.samples["auto row"].append(watch.sample("auto row", size))
    runs.samples["auto hit"].append(watch.sample("auto row.output", size))
    runs.samples["auto read"].append(read)
    # a row that waits costs something for itself and something for its wave
    runs.samples["auto miss"].append(Sample(size, read.calls, miss.tuples, miss.seconds + output.seconds))


class _Passes(Running):
    """Runs up to the end of a pass: rows come in between passes, and are resolved in one."""

    def _run(self, seconds: float) -> None:
        begun = time.perf_counter()
        super()._run(seconds)
        passes = self.operator.stats.iterations
        while self.operator.stats.iterations == passes and time.perf_counter() - begun < LONGEST_FILLING:
            work(self.operator.process(next(self.stream)))
