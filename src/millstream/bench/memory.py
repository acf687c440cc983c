"""What the workers of a join take, measured from outside, against the budget they were given."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from ..joins import ALGORITHMS
from ..master import Master
from ..spark.build import build_master
from ..spark.join import join
from ..spark.metrics import join_metrics
from ..units import format_bytes
from ..workloads import Workload
from .building import ResidentSets, resident_sets
from .data import Data
from .report import Check, Section, Table

BUDGET = 64_000_000
ALLOWED = 64_000_000  # on top of the budget
FILES = 2


@dataclass(frozen=True)
class Growth:
    """How much the workers of one join grew: `growth` is that of the worker that grew most."""

    algorithm: str
    workers: int
    growth: int
    booked: int
    rows: int


def run(
    session: Callable[[], AbstractContextManager[SparkSession]], data: Data, rows: int, sales_rows: int
) -> list[Growth]:
    """Join with each algorithm in workers of its own that have joined with a tiny master before.

    Each has a session of its own: in one session the ninth join would be given the workers of the first one.
    """
    path = data.folder / "master-two-sizes"
    shutil.rmtree(path, ignore_errors=True)
    try:
        with session() as spark:
            for size in (1_000, rows):
                build_master(spark.read.parquet(str(data.products(size, key="string"))), path, "product_id")
        sales = data.sales(Workload(keys=rows, key="string"), batches=1, batch_rows=sales_rows, files=FILES)
        results = []
        for algorithm in ALGORITHMS:
            with session() as spark:
                results.append(_measure(spark.read.parquet(str(sales)), str(path), algorithm, data))
        return results
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _measure(stream: DataFrame, path: str, algorithm: str, data: Data) -> Growth:
    data.say(f"resident set of {algorithm} with {format_bytes(BUDGET)}")
    others = set(resident_sets())

    def joined(rows: DataFrame, version: int) -> dict[str, int]:
        # both versions have the same path and so the same workers
        seen = Observation()
        master = Master.open(path, version=version)
        result = join(rows, master, "product_id", how="left", memory=BUDGET, algorithm=algorithm, metrics=seen)
        result.write.format("noop").mode("overwrite").save()
        (counters,) = join_metrics(seen).values()
        return counters

    few = stream.where(F.pmod(F.xxhash64("product_id"), F.lit(1000)) == 0)  # of each partition
    joined(few, 1)
    before = {pid: size for pid, size in resident_sets().items() if pid not in others}
    usual = statistics.median(before.values()) if before else 0
    with ResidentSets() as sets:
        counters = joined(stream, 2)
    grown = [int(peak - before.get(pid, usual)) for pid, peak in sets.peak.items() if pid not in others]
    return Growth(algorithm, len(grown), max(grown), counters["memory_peak"], counters["rows_in"])


def section(results: list[Growth], *, rows: int, command: str) -> Section:
    """The report."""
    most = max(results, key=lambda one: one.growth)
    passed = most.growth < BUDGET + ALLOWED
    check = Check(
        f"growth of a worker's resident set, {format_bytes(BUDGET)} budget",
        f"{format_bytes(most.growth)} ({most.algorithm})",
        f"< {format_bytes(BUDGET + ALLOWED)}",
        passed,
    )
    table = Table(
        f"Growth of the largest worker, budget {format_bytes(BUDGET)}",
        ("operator", "resident set", "booked by the operator"),
        [[one.algorithm, format_bytes(one.growth), format_bytes(one.booked)] for one in results],
    )
    return Section(
        name="memory",
        title="Memory",
        about=f"A left join with {rows:,} products over two tasks. A worker's growth is what its resident set, sampled "
        "from outside, gains over that of the same worker after a join with a master of a thousand rows.",
        checks=[check],
        tables=[table],
        raw={"growth": [asdict(one) for one in results]},
        command=command,
    )
