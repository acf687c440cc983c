"""Runs the scan joins, INLJ and `auto` for a moment with a stopwatch on their steps."""

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
from ..joins.base import Operator
from ..joins.inlj import IndexNestedLoopJoin
from ..joins.scanjoin import ScanJoin
from ..master.cycle import SegmentCycle
from .curves import Curve, Sample
from .runs import LEAST_WINDOW, LONGEST_FILLING, Runs, run, work
from .sample_stream import BATCH_ROWS
from .scan_models import waiting
from .stopwatch import Stopwatch

JOINING = ("mesh loop", "mesh probe", "mesh output")  # of each read
ONCE = ("mesh read", "mesh append", "mesh expire")  # of each iteration
NEIGHBOURS = 2  # runs before and behind one that are taken together with it
LARGE = 100_000_000  # bytes of memory whose window is filled once, with one disk buffer: it takes seconds
LONG_FILLING = 1.0  # seconds to fill a window: such a run is not repeated
TURNS = 6  # of settings that are compared
LEAST_TUPLES = 8  # of an iteration: with less there is nothing to be measured of tuples
MORE_BUFFERS = (1 << 20,)  # beside those of all runs: the disk buffers that are mostly used lie around it


@dataclass(frozen=True)
class _Reads:
    """What one run shows of its reads: how many, their bytes and their seconds."""

    number: float
    bytes: float
    seconds: float
    work: float  # seconds of joining and of all else between the reads
    handing_over: float  # seconds of all reads


class ScanRuns:
    """MESHJOIN over memory and disk buffer, and SSBJ for its cache."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        buffers = sorted({*runs.buffers[1:], *MORE_BUFFERS})
        between = [int((low * high) ** 0.5) for low, high in itertools.pairwise(runs.budgets)]
        budgets = sorted({*runs.budgets, *between})  # the window leaves one cache of the processor after the other
        todo = [
            ("meshjoin", budget, buffer)
            for budget in reversed(budgets)
            for buffer in (buffers if budget <= LARGE else buffers[-1:])
        ]
        some = min((budget for budget in budgets if budget > 6 * runs.buffers[0]), default=budgets[-1])
        todo.append(("meshjoin", some, runs.buffers[0]))  # all that fits if segments are large
        todo.append(("ssbj", runs.budgets[1], runs.buffers[1]))
        self.todo = [(name, budget, buffer) for name, budget, buffer in todo if 6 * buffer < budget]
        self.reads: list[_Reads] = []
        self.slow: set[tuple[str, int, int]] = set()  # runs that are not repeated
        self.spread = Curve((1.0,), (1.0,))

    def compare_buffers(self, seconds: float) -> None:
        """MESHJOIN with usual and with large reads and the same memory, by turns: what results of large ones cost more.

        Comes before all rounds, whose samples are freed of it.
        """
        usual, large = MORE_BUFFERS[0], self.runs.buffers[-1]
        budgets = [budget for _, budget, buffer in self.todo if buffer == large and budget <= LARGE]
        if large <= usual or not budgets:
            return
        self.runs.say(f"running meshjoin by turns with {usual / 1e6:.2g} and {large / 1e6:.2g} MB of disk buffer")
        found = [_filled(self.runs, "meshjoin", budgets[0], size) for size in (usual, large)]
        both = [(operator, stream, _watched(operator)) for operator, stream in filter(None, found)]
        turns: list[list[float]] = []
        while len(both) == 2 and len(turns) < TURNS:
            turns.append([])
            for operator, stream, watch in both:
                watch.reset()
                run(operator, stream, seconds / (2 * TURNS))
                output = watch.sample("mesh output", 1.0)
                turns[-1].append(output.seconds / max(1.0, output.tuples))
        for operator, _, _ in both:
            operator.close()
        if turns:
            ratio = median(dear / max(1e-12, cheap) for cheap, dear in turns)
            self.spread = Curve.of({usual: 1.0, large: max(1.0, ratio)})

    def round(self, seconds: float) -> None:
        """Run everything once more, but for windows that took long to fill."""
        for name, budget, buffer in self.todo:
            if (name, budget, buffer) in self.slow:
                continue
            self.runs.say(f"running {name} with {budget / 1e6:.3g} MB, of them {buffer / 1e6:.2g} MB of disk buffer")
            begun = time.perf_counter()
            filled = _filled(self.runs, name, budget, buffer)
            if filled is None or budget > LARGE or time.perf_counter() - begun > LONG_FILLING:
                self.slow.add((name, budget, buffer))
            if filled is None:
                continue
            found = _mesh(self.runs, name, budget, filled, seconds / len(self.todo), self.spread)
            if found is not None:
                self.reads.append(found)

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


def _mesh(runs: Runs, name: str, budget: int, filled: Filled, seconds: float, spread: Curve) -> _Reads | None:
    """Run a scan join, and file what is seen of its steps; what its reads show, if there were any."""
    operator, stream = filled
    watch = _watched(operator)
    scan, stats = operator.scan, operator.stats
    assert isinstance(scan, SegmentCycle)

    def counted() -> tuple[float, ...]:
        return stats.iterations, scan.reads, scan.bytes_read, scan.read_seconds

    before = counted()
    run(operator, stream, max(LEAST_WINDOW, 0.7 * seconds))
    iterations, reads, bytes_read, read_seconds = (new - old for new, old in zip(counted(), before, strict=True))
    size = runs.filed("meshjoin", budget, operator.window.table.capacity)
    operator.close()
    if name == "ssbj":
        runs.samples["ssbj switch"].append(watch.sample("switch", 1.0))
        return None
    if not reads:
        return None
    samples = {step: watch.sample(step, size) for step in ("mesh probe", "mesh output", "mesh expire", "mesh append")}
    output = samples["mesh output"]
    samples["mesh output"] = replace(output, seconds=output.seconds / spread(bytes_read / reads))
    samples["mesh read"] = watch.sample("mesh read", 1.0)
    loop = watch.sample("mesh loop", 1.0)
    samples["mesh loop"] = Sample(1.0, samples["mesh probe"].calls, 0.0, loop.seconds)
    turns = max(1.0, iterations)
    joining, once = (sum(samples[step].seconds for step in steps) / turns for steps in (JOINING, ONCE))
    joining += (output.seconds - samples["mesh output"].seconds) / turns
    expected = turns * waiting(reads / turns, read_seconds / reads, joining, once)
    handing_over = watch.sample("wait", 1.0).seconds - expected
    for step, sample in samples.items():
        runs.samples[step].append(sample)
    return _Reads(reads, bytes_read, read_seconds, turns * (joining + once), handing_over)


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


def index_nested_loop(runs: Runs, seconds: float) -> None:
    """INLJ: what a row costs apart from reading, and what a segment read by itself costs."""
    runs.say("running inlj")
    operator = joins.create("inlj", runs.master, on=runs.master.key, memory=runs.budgets[1], columns=runs.columns)
    assert isinstance(operator, IndexNestedLoopJoin)
    stream = runs.stream.batches(0.5)
    work(operator.process(next(stream)))
    run(operator, stream, 0.3 * seconds)
    watch = Stopwatch()
    watch.time(operator, "process", "inlj row")
    watch.time(operator, "_arrive", "inlj row", lambda arguments, _: len(arguments[0]))
    watch.time(operator, "_read", "inlj read", lambda arguments, _: len(arguments[0]))
    watch.reset()
    run(operator, stream, max(LEAST_WINDOW, 0.7 * seconds))
    for step in ("inlj row", "inlj read"):
        sample = watch.sample(step, 1.0)
        # slices are large here and the fixed part cannot be told apart from that of the rows
        runs.samples[step].append(Sample(1.0, int(max(1, sample.tuples)), sample.tuples, sample.seconds))
    operator.close()


def sweeps(runs: Runs, seconds: float) -> None:
    """`auto`: what a row costs on arrival, and what one that waits costs more, apart from waiting for reads."""
    if runs.master.layout == "frequency":
        return  # there it is an index join
    todo = [(budget, skew) for budget in runs.budgets for skew in (0.0, 1.0)]
    for budget, skew in todo:
        runs.say(f"running auto with {budget / 1e6:.3g} MB")
        operator = joins.create("auto", runs.master, on=runs.master.key, memory=budget, columns=runs.columns)
        assert isinstance(operator, AutoJoin)
        stream = runs.stream.batches(skew)
        work(operator.process(next(stream)))
        _sweep(operator, stream, 0.6 * seconds / len(todo))
        watch = Stopwatch()
        watch.time(operator, "process", "auto row")
        watch.time(operator, "_arrive", "auto row", lambda arguments, _: len(arguments[0]))
        watch.time(operator.waiting, "add", "auto miss", lambda _, taken: taken)
        watch.time(operator, "_pass", "auto miss")
        watch.time(operator, "_resolve", "output", lambda arguments, _: len(arguments[0]), inside="auto row")
        watch.time(operator.waves, "finish", "auto read", lambda _, segments: segments)
        watch.reset()
        _sweep(operator, stream, 0.4 * seconds / len(todo))
        size = float(budget)
        read, miss, output = (watch.sample(step, size) for step in ("auto read", "auto miss", "output"))
        runs.samples["auto row"].append(watch.sample("auto row", size))
        runs.samples["auto hit"].append(watch.sample("auto row.output", size))
        runs.samples["auto read"].append(read)
        # a row that waits costs something for itself and something for its wave
        runs.samples["auto miss"].append(Sample(size, read.calls, miss.tuples, miss.seconds + output.seconds))
        operator.close()


def _sweep(operator: Operator, stream: Iterator[pa.RecordBatch], seconds: float) -> None:
    """Run for some seconds, up to the end of a pass: rows come in between passes, and are resolved in one."""
    begun = time.perf_counter()
    run(operator, stream, seconds)
    passes = operator.stats.iterations
    while operator.stats.iterations == passes and time.perf_counter() - begun < LONGEST_FILLING:
        work(operator.process(next(stream)))
