"""`ms.join` against a function that does nothing: what of the speed of Spark's way to Python and back is left."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ..joins import output_schema
from ..master import Master
from ..spark.join import join
from ..spark.types import arrow_schema, spark_fields
from ..workloads import Workload
from .data import Data
from .report import Check, Section, Table
from .streaming import Batch, file_stream, run_batches

FILES = 2  # of a micro-batch: one for each task slot
BUDGETS = (0.1, 0.25, 0.5, 1.6)  # of the bytes of R, for each task; with the last one R is cached whole
TARGET = 0.60


@dataclass(frozen=True)
class Identity:
    """A task that passes rows on beside master rows that it has from the start: the join's output without a join."""

    brought: pa.RecordBatch

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        brought = self.brought
        names: list[str] | None = None
        for batch in batches:
            while brought.num_rows < batch.num_rows:
                brought = pa.concat_batches([brought, brought])
            names = names or [*batch.schema.names, *brought.schema.names]
            beside = brought.slice(0, batch.num_rows)
            yield pa.RecordBatch.from_arrays([*batch.columns, *beside.columns], names=names)


def identity(stream: DataFrame, master: Master, workload: Workload) -> DataFrame:
    """A stream with the columns that a join with the master would bring, filled with any of its rows."""
    output = output_schema(arrow_schema(stream.schema), master, on=workload.on, how="left")
    brought = output.names[len(stream.columns) :]
    sample = next(workload.master_batches(batch_rows=10_000)).select(brought)
    fields = [*stream.schema.fields, *spark_fields(output)[len(stream.columns) :]]
    return stream.mapInArrow(Identity(sample), StructType(fields))


@dataclass(frozen=True)
class Rates:
    """Rows a second of each micro-batch, by turns: the identity function runs before and behind each of our rounds."""

    budget: float
    rows: int
    batch_rows: int
    identity: list[list[float]]
    ours: list[list[float]]
    counters: dict[str, int]


def compare(
    spark: SparkSession, data: Data, rows: int, *, batches: int, batch_rows: int, rounds: int, warm_up: int
) -> list[Rates]:
    """Run both over the same parts of a stream by turns, with each budget; `warm_up` parts before them warm ours up."""
    workload = Workload(keys=rows)
    master = Master.open(data.master(workload))

    def part(number: int) -> DataFrame:
        skip = number * batches * batch_rows  # no row comes twice: the cache would know it
        sales = data.sales(workload, batches=batches, batch_rows=batch_rows, files=FILES, skip=skip)
        return file_stream(spark, sales, files=FILES)

    results: list[Rates] = []
    for budget in BUDGETS:
        memory = int(master.statistics.bytes * budget)

        def ours(number: int, memory: int = memory) -> list[Batch]:
            return run_batches(join(part(number), master, "product_id", how="left", memory=memory))

        data.say(f"identity and ms.join with {budget:.0%} of R: warm-up")
        for number in range(warm_up):
            ours(number)
        plain = [run_batches(identity(part(warm_up), master, workload))]
        mine: list[list[Batch]] = []
        for number in range(warm_up, warm_up + rounds):
            data.say(f"identity and ms.join with {budget:.0%} of R: round {len(mine) + 1} of {rounds}")
            mine.append(ours(number))
            plain.append(run_batches(identity(part(number), master, workload)))
        results.append(
            Rates(
                budget=budget,
                rows=rows,
                batch_rows=batch_rows,
                identity=[_rates(one) for one in plain],
                ours=[_rates(one) for one in mine],
                counters=mine[-1][-1].counters,
            )
        )
    return results


def _rates(batches: Sequence[Batch]) -> list[float]:
    """Rows a second of each micro-batch but the first, which starts workers."""
    return [batch.rows_in / batch.seconds for batch in batches[1:]]


def _rate(rounds: Sequence[Sequence[float]]) -> float:
    return statistics.median(rate for one in rounds for rate in one)


def ratios(rates: Rates) -> list[float]:
    """What is left of the rate of the identity function in each round, by its runs before and behind it."""
    return [_rate([mine]) / _rate(both) for mine, both in zip(rates.ours, pairwise(rates.identity), strict=True)]


def checks(results: Sequence[Rates]) -> list[Check]:
    """The target, for each budget."""
    what = "ms.join against an identity mapInArrow of the same width, rows/s, memory"
    found = [(rates, statistics.median(ratios(rates))) for rates in results]
    return [
        Check(f"{what} {rates.budget:.0%} of R", f"{share:.0%}", f">= {TARGET:.0%}", share >= TARGET)
        for rates, share in found
    ]


def table(results: Sequence[Rates]) -> Table:
    """Rows a second of both, for each budget and round."""
    rows = []
    for rates in results:
        both = list(pairwise(rates.identity))
        shares = ratios(rates)
        for number, (other, mine, share) in enumerate(zip(both, rates.ours, shares, strict=True)):
            told = [f"{_rate(other):,.0f}", f"{_rate([mine]):,.0f}", f"{share:.0%}"]
            rows.append([f"{rates.budget:.0%}, round {number + 1}", *told, ""])
        hits = rates.counters.get("cache_hits", 0) / max(1, rates.counters.get("rows_in", 0))
        told = [f"{_rate(rates.identity):,.0f}", f"{_rate(rates.ours):,.0f}", f"{statistics.median(shares):.0%}"]
        rows.append([f"{rates.budget:.0%}", *told, f"{hits:.0%}"])
    first = results[0]
    note = (
        f"Median rows/s over micro-batches of {first.batch_rows:,} rows, R = {first.rows:,} rows, int key, left join, "
        "Zipf 1; cache hits are those of the last micro-batch. The identity function passes the stream on beside "
        "master rows that it holds from the start, so both send the same bytes back. It runs before and "
        "behind each round of ours, whose ratio is to the median of both; of the rounds the median one counts."
    )
    columns = ("memory of a task, of R", "identity", "ms.join", "ratio", "cache hits")
    return Table("ms.join against an identity mapInArrow", columns, rows, note)


def section(results: Sequence[Rates], *, command: str) -> Section:
    """The report."""
    return Section(
        name="identity",
        title="Against a function that does nothing",
        about="Structured Streaming on a local Spark with two task slots, rows thrown away at the end (`noop`): "
        "`ms.join` beside an identity `mapInArrow` over the same stream, by turns. Times are those that Spark reports "
        "as `addBatch`: planning and running a micro-batch, without the checkpoint.",
        checks=checks(results),
        tables=[table(results)],
        raw={"identity": raw(results)},
        command=command,
    )


def raw(results: Sequence[Rates]) -> list[dict[str, Any]]:
    """What was measured."""
    return [{**asdict(rates), "ratios": ratios(rates)} for rates in results]
