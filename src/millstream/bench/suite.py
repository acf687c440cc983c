"""The benchmarks by name, each with its own Spark session if it needs one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, StructField, StructType

from ..spark.build import build_master
from ..workloads import Workload
from . import (
    adapter,
    building,
    flow,
    memory,
    operators,
    plots,
    report,
    scan,
    source,
    staging,
    static_join,
    tuning,
    tuning_report,
    warehouse,
)
from .data import Data, opened
from .report import Section

FULL_ROWS = 20_000_000
QUICK_ROWS = 1_000_000
FULL_SIZES = (1_000_000, 5_000_000, 20_000_000, 50_000_000)

Sessions = Callable[[], SparkSession]
Counting = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]


@dataclass(frozen=True)
class Suite:
    """What to run with.

    `sizes` are those of R against Spark's own join; `out` is where pages and plots go, if any; `minutes` is how long
    the shop of the demo is open.
    """

    data: Data
    rows: int
    sizes: tuple[int, ...]
    quick: bool
    session: Sessions
    counting: Counting
    command: str
    out: Path | None = None
    minutes: int = 1

    def run(self, name: str) -> Section:
        """Run a benchmark and write its part of the report."""
        section, draw = _BENCHMARKS[name](self)
        if self.out is not None:
            for title, plot in draw.items():
                plot(self.out / report.IMAGES / f"{title}.png")
            report.write(section, self.out)
        return section

    @property
    def full(self) -> bool:
        return self.rows >= FULL_ROWS

    @contextmanager
    def spark(self) -> Iterator[SparkSession]:
        """A new session, so that no worker has seen another benchmark."""
        session = self.session()
        try:
            yield session
        finally:
            session.stop()


Plots = dict[str, Callable[[Path], Any]]


def _operators(suite: Suite) -> tuple[Section, Plots]:
    by_frequency = None if suite.quick else _by_frequency(suite)
    effort = replace(operators.QUICK if suite.quick else operators.Effort(), core=max(os.sched_getaffinity(0)))
    budgets = operators.QUICK_BUDGETS if suite.quick else operators.BUDGETS
    todo = operators.cases(suite.data, suite.rows, effort, budgets=budgets, by_frequency=by_frequency)
    with suite.counting("operators") as counted:

        def progress(done: int, total: int, what: str) -> None:
            counted(done, total)
            if what:
                suite.data.say(f"operators: {done + 1} of {total}: {what}")

        results, races = operators.run(todo, progress, by_frequency=by_frequency)
    section = operators.section(results, races, rows=suite.rows, command=suite.command, full=suite.full)
    return section, {
        "operators": lambda file: plots.operators(results, file),
        "where-the-time-goes": lambda file: plots.where_the_time_goes(results, file),
    }


def _by_frequency(suite: Suite) -> str:
    """A master of the same products in the order in which a Zipf stream asks for them; its path."""
    rows = suite.rows
    path = suite.data.folder / f"master-products-int-{rows}-by-frequency"
    if opened(path) is None:
        table = suite.data.products(rows, key="int")
        suite.data.say(f"building a master of {rows:,} products in the order of access frequency at {path}")
        with suite.spark() as spark:
            products = spark.read.parquet(str(table))
            build_master(
                _with_popularity(products, rows), path, "product_id", layout="frequency", frequency="popularity"
            )
    return str(path)


def _with_popularity(products: DataFrame, rows: int) -> DataFrame:
    workload = Workload(keys=rows)

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column("product_id").to_numpy() // workload.step
            yield batch.append_column("popularity", pa.array(workload.popularity(numbers)))

    fields = [*products.schema.fields, StructField("popularity", DoubleType())]
    return products.mapInArrow(add, StructType(fields))


def _identity(suite: Suite) -> tuple[Section, Plots]:
    with suite.spark() as spark:
        rates = adapter.compare(
            spark,
            suite.data,
            suite.rows,
            batches=4 if suite.quick else 6,
            batch_rows=200_000 if suite.quick else 1_000_000,
            rounds=2 if suite.quick else 5,
            warm_up=1 if suite.quick else 10,
        )
    return adapter.section(rates, command=suite.command), {}


def _spark(suite: Suite) -> tuple[Section, Plots]:
    effort = static_join.QUICK if suite.quick else static_join.Effort()
    compared = []
    for how in static_join.HOWS:
        with suite.spark() as spark:
            compared += static_join.compare(spark, suite.data, suite.sizes, how, effort)
    section = Section(
        name="spark",
        title="Against Spark's own join",
        about="Structured Streaming on a local Spark with two task slots, rows thrown away at the end (`noop`). Times "
        "are those that Spark reports as `addBatch`: planning and running a micro-batch, without the checkpoint.",
        checks=static_join.checks(compared),
        tables=[static_join.table(compared)],
        raw={"static_join": static_join.raw(compared)},
        command=suite.command,
        images=("batch-time",),
    )
    return section, {"batch-time": lambda file: plots.batch_time(compared, file)}


def _build(suite: Suite) -> tuple[Section, Plots]:
    with suite.spark() as spark:
        results = building.run(spark, suite.data, suite.rows)
    return building.section(results, command=suite.command, full=suite.full), {}


def _memory(suite: Suite) -> tuple[Section, Plots]:
    rows = min(suite.rows, 5_000_000)
    results = memory.run(suite.spark, suite.data, rows, 300_000 if suite.quick else 2_000_000)
    return memory.section(results, rows=rows, command=suite.command), {}


def _staging(suite: Suite) -> tuple[Section, Plots]:
    effort = staging.QUICK if suite.quick else staging.Effort()
    results = []
    for case in staging.CASES:
        suite.data.say(f"staging: {case}")
        results.append(staging.measure(case, suite.data.folder, effort))
    return staging.section(results, command=suite.command, full=not suite.quick), {}


def _source(suite: Suite) -> tuple[Section, Plots]:
    with suite.counting("blocks at the source") as counted:
        results = source.run(slices=24 if suite.quick else 200, orders=1_000, progress=counted)
    return source.section(results, command=suite.command), {
        "source-overhead": lambda file: plots.source_overhead(results, file)
    }


def _warehouse(suite: Suite) -> tuple[Section, Plots]:
    todo = warehouse.cases(warehouse.databases(), quick=suite.quick)
    results = warehouse.run(todo, suite.data.folder, suite.data.say)
    return warehouse.section(results, command=suite.command, full=not suite.quick), {}


def _flow(suite: Suite) -> tuple[Section, Plots]:
    seconds, overload = (20, 20) if suite.quick else (60 * suite.minutes, 40)
    steady, crowded = flow.run(suite.data.folder, seconds=seconds, overload=overload, say=suite.data.say)
    return flow.section(steady, crowded, command=suite.command, full=not suite.quick), {}


def _tuning(suite: Suite) -> tuple[Section, Plots]:
    rows = QUICK_ROWS if suite.quick else tuning.ROWS
    results = tuning.run(suite.data, rows=rows, quick=suite.quick)
    section = tuning_report.section(results, rows=rows, command=suite.command, full=not suite.quick)
    return section, {
        "cost-models": lambda file: plots.cost_models(results, file),
        "default-buffer": lambda file: plots.default_buffer(results, file),
    }


def _scan(suite: Suite) -> tuple[Section, Plots]:
    effort = scan.QUICK if suite.quick else scan.Effort()
    rows = scan.QUICK_ROWS if suite.quick else scan.ROWS
    results = scan.run_operators(suite.data, rows, effort)
    with suite.spark() as spark:
        compared = scan.run_spark(spark, suite.data, suite.rows, effort)
    return scan.section(results, compared, rows=rows, command=suite.command, full=not suite.quick), {}


_BENCHMARKS: dict[str, Callable[[Suite], tuple[Section, Plots]]] = {
    "operators": _operators,
    "identity": _identity,
    "spark": _spark,
    "build": _build,
    "memory": _memory,
    "scan": _scan,
    "tuning": _tuning,
    "source": _source,
    "staging": _staging,
    "warehouse": _warehouse,
    "flow": _flow,
}
