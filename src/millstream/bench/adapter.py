"""`ms.join` against a function that does nothing: what of the speed of Spark's way to Python and back is left."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
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
from .report import Check, Table
from .streaming import Batch, file_stream, run_batches

FILES = 2  # of a micro-batch: one for each task slot
BUDGET = 0.1  # of the bytes of R, for each task
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
    """Rows a second of each micro-batch, by turns: `identity` and `ours` have the same number of rounds."""

    rows: int
    batch_rows: int
    identity: list[list[float]]
    ours: list[list[float]]
    counters: dict[str, int]

    @property
    def ratio(self) -> float:
        return _rate(self.ours) / _rate(self.identity)


def compare(
    spark: SparkSession, data: Data, rows: int, *, batches: int, batch_rows: int, rounds: int, warm_up: int = 1
) -> Rates:
    """Run both over the same parts of a stream by turns; our operators are warmed up with the part before them."""
    workload = Workload(keys=rows)
    master = Master.open(data.master(workload))
    memory = int(master.statistics.bytes * BUDGET)

    def part(number: int) -> DataFrame:
        skip = number * batches * batch_rows  # no row comes twice: the cache would know it
        sales = data.sales(workload, batches=batches, batch_rows=batch_rows, files=FILES, skip=skip)
        return file_stream(spark, sales, files=FILES)

    def ours(number: int) -> list[Batch]:
        return run_batches(join(part(number), master, "product_id", how="left", memory=memory))

    data.say("identity and ms.join: warm-up")
    for number in range(warm_up):
        ours(number)
    runs: list[tuple[list[Batch], list[Batch]]] = []
    for number in range(warm_up, warm_up + rounds):
        data.say(f"identity and ms.join: round {number - warm_up + 1} of {rounds}")
        runs.append((run_batches(identity(part(number), master, workload)), ours(number)))
    return Rates(
        rows=rows,
        batch_rows=batch_rows,
        identity=[_rates(pair[0]) for pair in runs],
        ours=[_rates(pair[1]) for pair in runs],
        counters=runs[-1][1][-1].counters,
    )


def _rates(batches: Sequence[Batch]) -> list[float]:
    """Rows a second of each micro-batch but the first, which starts workers."""
    return [batch.rows_in / batch.seconds for batch in batches[1:]]


def _rate(rounds: Sequence[Sequence[float]]) -> float:
    return statistics.median(rate for one in rounds for rate in one)


def check(rates: Rates) -> Check:
    """The target."""
    what = "ms.join against an identity mapInArrow of the same width, rows/s"
    return Check(what, f"{rates.ratio:.0%}", f">= {TARGET:.0%}", rates.ratio >= TARGET)


def table(rates: Rates) -> Table:
    """Rows a second of both, round by round."""
    rows = [
        [str(number + 1), f"{_rate([plain]):,.0f}", f"{_rate([ours]):,.0f}", f"{_rate([ours]) / _rate([plain]):.0%}"]
        for number, (plain, ours) in enumerate(zip(rates.identity, rates.ours, strict=True))
    ]
    rows.append(["all", f"{_rate(rates.identity):,.0f}", f"{_rate(rates.ours):,.0f}", f"{rates.ratio:.0%}"])
    hits = rates.counters.get("cache_hits", 0) / max(1, rates.counters.get("rows_in", 0))
    note = (
        f"Median rows/s over micro-batches of {rates.batch_rows:,} rows, R = {rates.rows:,} rows, int key, left join, "
        f"memory {BUDGET:.0%} of R, Zipf 1; {hits:.0%} cache hits in the last micro-batch. The identity function "
        "passes the stream on beside master rows that it holds from the start, so both send the same bytes back."
    )
    return Table("ms.join against an identity mapInArrow", ("round", "identity", "ms.join", "ratio"), rows, note)


def raw(rates: Rates) -> dict[str, Any]:
    """What was measured."""
    return {**asdict(rates), "ratio": rates.ratio}
