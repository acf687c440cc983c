"""Joins that scan R: against look-ups by index, against the disk, and on plain Parquet against Spark's own join."""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ..joins import SCANS, least_memory
from ..master import Master
from ..spark.join import join
from ..workloads import Workload
from .data import Data
from .operator import Case, Measured
from .operators import measure_apart
from .report import Check, Section, Table
from .streaming import Batch, file_stream, median_seconds, run_batches, watched

ROWS = 3_500_000  # as in the paper, of about 120 bytes
QUICK_ROWS = 200_000
PARQUET_ROWS = 20_000_000
BUDGETS = (0.01, 0.1)
SKEWS = (0.0, 0.5)
COMPARED = ("inlj", "meshjoin")  # by turns, several times: the disk changes its speed
FASTER = 10.0  # meshjoin against inlj
SCAN_SHARE = 0.6  # of a plain sequential read
BLOCK = 1 << 20  # of a plain sequential read
MEMORY = "64MB"
BATCH_ROWS = 200_000
FILES = 2
SPEED_UP = {"inner": 1.0, "left": 3.0}


@dataclass(frozen=True)
class Effort:
    """Seconds of work of the operators and rounds of those compared; micro-batches on Spark, some skipped at first."""

    warm_up: float = 3.0
    window: float = 3.0
    rounds: int = 3
    batches: int = 5
    skipped: int = 1


QUICK = Effort(warm_up=0.5, window=0.5, rounds=1, batches=3)


@dataclass(frozen=True)
class Scanned:
    """An operator in one setting; `disk` is what plain reads before and after it get, in bytes a second."""

    algorithm: str
    budget: float
    skew: float
    measured: Measured
    disk: float

    @property
    def scan_rate(self) -> float:
        return self.measured.rate * self.measured.bytes_per_tuple


@dataclass(frozen=True)
class Compared:
    """Seconds in addBatch of the same micro-batches, ours and Spark's."""

    how: str
    rows: int
    ours: list[float]
    theirs: list[float]
    median_ours: float
    median_theirs: float
    equal: bool
    memory_peak: int

    @property
    def speed_up(self) -> float:
        return self.median_theirs / self.median_ours


def sequential_rate(master: Master) -> float:
    """Bytes a second that the disk gives to a plain read of R from end to end, the page cache kept out."""
    block = mmap.mmap(-1, BLOCK)
    begun, total = time.perf_counter(), 0
    for part in master.manifest.parts:
        descriptor = os.open(master.store.full(part.file), os.O_RDONLY | os.O_DIRECT)
        at = 0
        try:
            while got := os.preadv(descriptor, [block], at):
                at += got
        finally:
            os.close(descriptor)
        total += at
    return total / (time.perf_counter() - begun)


def run_operators(data: Data, rows: int, effort: Effort) -> list[Scanned]:
    """The scan joins and inlj, each in a process of its own."""
    path = data.master(Workload(keys=rows))
    return [
        _run(data, path, rows, algorithm, budget, skew, effort)
        for budget in BUDGETS
        for skew in SKEWS
        for number in range(effort.rounds)
        for algorithm in (("inlj", *SCANS) if number == 0 else COMPARED)
    ]


def _run(data: Data, path: str, rows: int, algorithm: str, budget: float, skew: float, effort: Effort) -> Scanned:
    master = Master.open(path)
    memory = max(int(master.statistics.bytes * budget), least_memory(algorithm, master, on=master.key) * 5 // 4)
    case = Case(
        algorithm=algorithm,
        workload=f"Zipf {skew}",
        master=path,
        budget=budget,
        memory=memory,
        keys=rows,
        exponent=skew,
        warm_up=effort.warm_up,
        window=effort.window,
        windows=2,
    )
    data.say(f"scan: {case.name}")
    disk = [sequential_rate(master) for _ in range(2)]
    measured = measure_apart(case)
    disk += [sequential_rate(master) for _ in range(2)]
    return Scanned(algorithm, budget, skew, measured, statistics.mean(disk))


def typical(operators: Sequence[Scanned]) -> list[Scanned]:
    """Of the rounds of each operator and setting the one with the median rate."""
    rounds: dict[tuple[str, float, float], list[Scanned]] = {}
    for one in operators:
        rounds.setdefault((one.algorithm, one.budget, one.skew), []).append(one)
    return [sorted(some, key=lambda one: one.measured.rate)[len(some) // 2] for some in rounds.values()]


def run_spark(spark: SparkSession, data: Data, rows: int, effort: Effort) -> list[Compared]:
    """The same micro-batches joined with the same Parquet files, by a scan of ours and by Spark."""
    folder = data.products(rows, key="string")
    table = spark.read.parquet(str(folder))
    sales = data.sales(Workload(keys=rows, key="string"), batches=20, batch_rows=BATCH_ROWS, files=FILES)
    found = []
    for how in SPEED_UP:
        scan = Master.scan(folder, key="product_id")

        def stream() -> DataFrame:
            return file_stream(spark, Path(sales), files=FILES)

        data.say(f"Parquet of {rows:,} rows, {how}: ms.join")
        mine = run_batches(
            watched(join(stream(), scan, "product_id", how=how, memory=MEMORY, algorithm="meshjoin")),
            limit=effort.batches + effort.skipped,
        )
        data.say(f"Parquet of {rows:,} rows, {how}: Spark's own join")
        other = run_batches(watched(stream().join(table, "product_id", how)), limit=effort.batches + effort.skipped)
        found.append(_compared(how, rows, mine, other, effort.skipped))
    return found


def _compared(how: str, rows: int, mine: Sequence[Batch], other: Sequence[Batch], skipped: int) -> Compared:
    return Compared(
        how=how,
        rows=rows,
        ours=[batch.seconds for batch in mine],
        theirs=[batch.seconds for batch in other],
        median_ours=median_seconds(mine[skipped:]),
        median_theirs=median_seconds(other[skipped:]),
        equal=[batch.result for batch in mine] == [batch.result for batch in other],
        memory_peak=max(batch.counters.get("memory_peak", 0) for batch in mine),
    )


def checks(operators: Sequence[Scanned], compared: Sequence[Compared], *, full: bool) -> list[Check]:
    """The targets of the scan joins."""
    found = []
    operators = typical(operators)
    by = {(one.algorithm, one.budget, one.skew): one for one in operators}
    for budget in BUDGETS:
        for skew in SKEWS:
            mesh, other = by["meshjoin", budget, skew], by["inlj", budget, skew]
            ratio = mesh.measured.rate / other.measured.rate
            what = f"meshjoin against inlj, {budget:.0%} of R, Zipf {skew:g}"
            found.append(Check(what, f"{ratio:.1f}x", f">= {FASTER:.0f}x", ratio >= FASTER if full else None))
    for one in operators:
        if one.algorithm == "meshjoin" and one.budget == min(BUDGETS):  # with more memory, results are the limit
            share = one.scan_rate / one.disk
            what = f"meshjoin's scan against a sequential read, {one.budget:.0%} of R, Zipf {one.skew:g}"
            found.append(Check(what, f"{share:.0%}", f">= {SCAN_SHARE:.0%}", share >= SCAN_SHARE if full else None))
    for pair in compared:
        what = f"plain Parquet, {pair.rows / 1e6:g} M rows, {pair.how}, against Spark's own join"
        judged = pair.speed_up >= SPEED_UP[pair.how] if full else None
        found.append(Check(what, f"{pair.speed_up:.1f}x", f">= {SPEED_UP[pair.how]:.0f}x", judged))
    equal = all(pair.equal for pair in compared)
    found.append(Check("results equal to Spark's", "yes" if equal else "no", "yes", equal))
    return found


def section(
    operators: Sequence[Scanned], compared: Sequence[Compared], *, rows: int, command: str, full: bool
) -> Section:
    """The report."""
    table = Table(
        "Service rate in 1000 tuples/s, and bytes scanned",
        ("operator", "budget", "skew", "rate", "scan MB/s", "disk MB/s", "bytes a tuple"),
        [
            [
                one.algorithm,
                f"{one.budget:.0%}",
                f"{one.skew:g}",
                f"{one.measured.rate / 1000:,.1f}",
                f"{one.scan_rate / 1e6:,.0f}",
                f"{one.disk / 1e6:,.0f}",
                f"{one.measured.bytes_per_tuple:,.0f}",
            ]
            for one in typical(operators)
        ],
        f"*Disk* is the mean of four plain sequential reads of the same files in blocks of {BLOCK >> 20} MiB, two "
        "right before and two right after, into ordinary pages, while `meshjoin` reads into huge ones, which is up to "
        "twice as fast. `inlj` and `meshjoin` run by turns, these are medians. "
        "With 1% of R the disk limits `meshjoin`; with 10% each page meets ten times as many rows, and the core "
        "is busy with making results.",
    )
    on_spark = Table(
        "Plain Parquet on Spark: seconds of a micro-batch",
        ("how", "ms.join", "Spark's own join", "speed-up", "memory of a task"),
        [
            [
                pair.how,
                f"{pair.median_ours:.2f}",
                f"{pair.median_theirs:.2f}",
                f"{pair.speed_up:.1f}x",
                f"{pair.memory_peak / 1e6:.0f} MB",
            ]
            for pair in compared
        ],
        f"Micro-batches of {BATCH_ROWS:,} rows, `meshjoin` with {MEMORY}, string key, Zipf 1.",
    )
    raw: dict[str, Any] = {
        "rows": rows,
        "operators": [asdict(one) for one in operators],
        "spark": [asdict(pair) for pair in compared],
    }
    return Section(
        name="scan",
        title="Joins that scan",
        about=f"R has {rows:,} rows of about 120 bytes; operators read it with O_DIRECT, each in a process of its own.",
        checks=checks(operators, compared, full=full),
        tables=[table, on_spark],
        raw=raw,
        command=command,
    )
