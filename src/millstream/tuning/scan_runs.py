"""Runs the scan joins, INLJ and `auto` for a moment with a stopwatch on their steps."""

from __future__ import annotations

import time

from .. import joins
from ..joins.auto import AutoJoin
from ..joins.inlj import IndexNestedLoopJoin
from ..joins.scanjoin import ScanJoin
from ..master.cycle import SegmentCycle
from .curves import Curve, Sample
from .runs import Runs, best_run, fill, run, work
from .sample_stream import BATCH_ROWS
from .stopwatch import Stopwatch

STEPS = ("mesh read", "mesh append", "mesh loop", "mesh probe", "mesh output", "mesh expire")
LEAST_TUPLES = 8  # of an iteration: with less there is nothing to be measured of tuples


def mesh_joins(runs: Runs, seconds: float) -> Curve:
    """MESHJOIN over memory and disk buffer, SSBJ for its cache; what reading ahead takes, over the bytes of a read."""
    todo = [("meshjoin", budget, buffer) for budget in runs.budgets for buffer in runs.buffers]
    todo.append(("ssbj", runs.budgets[1], runs.buffers[1]))
    reads: dict[float, list[float]] = {}
    for name, budget, buffer in todo:
        if 6 * buffer < budget:
            runs.say(f"running {name} with {budget / 1e6:.3g} MB, of them {buffer / 1e6:.2g} MB of disk buffer")
            _mesh(runs, name, budget, buffer, seconds / len(todo), reads)
    # a disk that others use has slow moments: what it can do is seen in the fastest run
    return Curve.of({size: size * min(each) for size, each in reads.items()}, grows=True)


def _mesh(
    runs: Runs, name: str, budget: int, disk_buffer: int, seconds: float, reads: dict[float, list[float]]
) -> None:
    operator = joins.create(
        name, runs.master, on=runs.master.key, memory=budget, columns=runs.columns, disk_buffer=disk_buffer
    )
    assert isinstance(operator, ScanJoin)
    skew = 0.0 if name == "meshjoin" else 1.0
    work(operator.process(next(runs.stream.batches(skew, rows=1))))  # makes the window
    if operator.w < LEAST_TUPLES:
        operator.close()
        return
    stream = runs.stream.batches(skew, rows=min(BATCH_ROWS, 16 * operator.w))
    fill(operator, stream)
    begun = time.perf_counter()
    while operator.scan.pages_read < operator.scan.pages and time.perf_counter() - begun < 2 * seconds:
        work(operator.process(next(stream)))
    watch = _watched(operator)
    scan = operator.scan
    assert isinstance(scan, SegmentCycle)
    grown = best_run(operator, stream, watch, 0.7 * seconds, lambda: (scan.reads, scan.bytes_read, scan.read_seconds))
    reads_made, bytes_read, read_seconds = grown
    size = runs.filed("meshjoin", budget, operator.window.table.capacity)
    if name == "meshjoin" and reads_made:
        for step in ("mesh probe", "mesh output", "mesh expire", "mesh append"):
            runs.samples[step].append(watch.sample(step, size))
        runs.samples["mesh read"].append(watch.sample("mesh read", 1.0))
        pieces = watch.sample("mesh probe", size).calls
        runs.samples["mesh loop"].append(Sample(1.0, pieces, 0.0, watch.sample("mesh loop", size).seconds))
        reads.setdefault(float(disk_buffer), []).append(read_seconds / bytes_read)
        # reading goes on while the last read is joined: what is waited for beyond that is the handing over
        worked = sum(watch.sample(step, size).seconds for step in STEPS)
        handed = watch.sample("wait", size).seconds - max(0.0, read_seconds - worked)
        runs.samples["mesh handing over"].append(Sample(1.0, int(reads_made), 0.0, max(1e-9, handed)))
    elif name == "ssbj":
        runs.samples["ssbj switch"].append(watch.sample("switch", 1.0))
    operator.close()


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
        for name in ("_choose", "_switch", "_evict", "_found"):
            watch.time(operator, name, "switch", (lambda _, __: 0.0) if name == "_found" else None)
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
    best_run(operator, stream, watch, 0.7 * seconds)
    for step in ("inlj row", "inlj read"):
        sample = watch.sample(step, 1.0)
        # slices are large here and the fixed part cannot be told apart from that of the rows
        runs.samples[step].append(Sample(1.0, int(max(1, sample.tuples)), sample.tuples, sample.seconds))
    operator.close()


def sweeps(runs: Runs, seconds: float) -> None:
    """`auto`: what a row costs on arrival, and what one that waits costs more, apart from waiting for reads."""
    for budget in runs.budgets[:2]:
        runs.say(f"running auto with {budget / 1e6:.3g} MB")
        operator = joins.create("auto", runs.master, on=runs.master.key, memory=budget, columns=runs.columns)
        assert isinstance(operator, AutoJoin)
        stream = runs.stream.batches(1.0)
        work(operator.process(next(stream)))
        run(operator, stream, 0.2 * seconds)
        watch = Stopwatch()
        watch.time(operator, "process", "auto row")
        watch.time(operator, "_arrive", "auto row", lambda arguments, _: len(arguments[0]))
        watch.time(operator.waiting, "add", "auto miss", lambda _, taken: taken)
        watch.time(operator, "_pass", "auto miss")
        for buffer in operator.buffers:
            watch.time(buffer, "finish", "auto read", lambda _, found: len(found[0]))
        best_run(operator, stream, watch, 0.3 * seconds)
        read, miss = watch.sample("auto read", 1.0), watch.sample("auto miss", 1.0)
        runs.samples["auto row"].append(watch.sample("auto row", 1.0))
        runs.samples["auto read"].append(read)
        # a row that waits costs something for itself and something for its wave
        runs.samples["auto miss"].append(Sample(1.0, read.calls, miss.tuples, miss.seconds))
        operator.close()
