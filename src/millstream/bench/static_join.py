"""`ms.join` against Spark's own stream-static join, over masters of growing size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from ..master import Master
from ..spark.build import build_master
from ..spark.join import join
from ..workloads import Workload
from .data import Data, opened
from .report import Check, Table
from .streaming import Batch, file_stream, median_seconds, run_batches, watched

FILES = 2  # of a micro-batch: one for each task slot
BATCH_ROWS = 20_000
MEMORY = "256MB"
HOWS = ("left", "inner")
SPEED_UP = {"left": 40.0, "inner": 10.0}  # at R = 20 M
SPEED_UP_AT = 20_000_000
GROWTH = 1.3


@dataclass(frozen=True)
class Effort:
    """How many micro-batches run, for each size of R; the first `skipped` of each query do not count.

    Ours run by turns over the sizes: `warm_up_parts` of the stream that warm them up, then `rounds` that are measured.
    """

    warm_up_parts: int = 4
    warm_up_batches: int = 5
    warm_up_rows: int = 1_000_000
    rounds: int = 5
    ours: int = 12
    theirs: int = 4
    skipped: int = 1


QUICK = Effort(warm_up_parts=1, warm_up_batches=4, warm_up_rows=100_000, rounds=2, ours=6, theirs=3)


@dataclass(frozen=True)
class Compared:
    """Seconds in addBatch of each micro-batch that counts, ours and Spark's; `equal`: both gave the same rows."""

    rows: int
    how: str
    ours: list[float]
    theirs: list[float]
    median_ours: float
    median_theirs: float
    equal: bool
    counters: dict[str, int]

    @property
    def speed_up(self) -> float:
        return self.median_theirs / self.median_ours


def string_master(spark: SparkSession, data: Data, rows: int) -> Master:
    """The master of products with a string key, built by Spark."""
    path = data.folder / f"master-products-string-{rows}"
    table = data.products(rows, key="string")
    if opened(path) is None:
        data.say(f"building a master of {rows:,} products with a string key at {path}")
        build_master(spark.read.parquet(str(table)), path, "product_id")
    return Master.open(path)


@dataclass(frozen=True)
class _Size:
    """One size of R: both joins over parts of the same stream."""

    spark: SparkSession
    data: Data
    rows: int
    how: str
    effort: Effort

    def sales(self, part: int) -> Path:
        """A part of the stream: first those of the warm-up, then the rounds that are measured."""
        effort = self.effort
        workload = Workload(keys=self.rows, key="string")
        many, size = effort.warm_up_batches, effort.warm_up_rows
        if part < effort.warm_up_parts:
            return self.data.sales(workload, batches=many, batch_rows=size, files=FILES, skip=part * many * size)
        begin = effort.warm_up_parts * many * size + (part - effort.warm_up_parts) * effort.ours * BATCH_ROWS
        return self.data.sales(workload, batches=effort.ours, batch_rows=BATCH_ROWS, files=FILES, skip=begin)

    def ours(self, part: int) -> list[Batch]:
        master = string_master(self.spark, self.data, self.rows)
        stream = file_stream(self.spark, self.sales(part), files=FILES)
        return run_batches(watched(join(stream, master, "product_id", how=self.how, memory=MEMORY)))

    def theirs(self, part: int) -> list[Batch]:
        table = self.spark.read.parquet(str(self.data.products(self.rows, key="string")))
        stream = file_stream(self.spark, self.sales(part), files=FILES)
        return run_batches(watched(stream.join(table, "product_id", self.how)), limit=self.effort.theirs)


def compare(spark: SparkSession, data: Data, sizes: Sequence[int], how: str, effort: Effort) -> list[Compared]:
    """Join the same micro-batches both ways, for each size of R."""
    todo = [_Size(spark, data, rows, how, effort) for rows in sizes]
    for size in todo:
        string_master(spark, data, size.rows)
        for part in range(effort.warm_up_parts + effort.rounds):
            size.sales(part)
    for part in range(effort.warm_up_parts):  # in parts: a worker that has nothing to do for a minute goes
        data.say(f"{how}: warm-up {part + 1} of {effort.warm_up_parts}")
        for size in todo:
            size.ours(part)
    mine: dict[int, list[list[Batch]]] = {size.rows: [] for size in todo}
    for round_ in range(effort.rounds):
        data.say(f"{how}: ms.join, round {round_ + 1} of {effort.rounds}")
        for size in todo:
            mine[size.rows].append(size.ours(effort.warm_up_parts + round_))
    results = []
    for size in todo:
        data.say(f"R = {size.rows:,}, {how}: Spark's own join")
        other, rounds = size.theirs(effort.warm_up_parts), mine[size.rows]
        counted = [batch for one in rounds for batch in one[effort.skipped :]]
        results.append(
            Compared(
                rows=size.rows,
                how=how,
                ours=[batch.seconds for batch in counted],
                theirs=[batch.seconds for batch in other],
                median_ours=median_seconds(counted),
                median_theirs=median_seconds(other[effort.skipped :]),
                equal=_equal(rounds[0], other),
                counters=counted[-1].counters,
            )
        )
    return results


def _equal(ours: Sequence[Batch], theirs: Sequence[Batch]) -> bool:
    return bool(theirs) and [b.result for b in ours[: len(theirs)]] == [b.result for b in theirs]


def checks(results: Sequence[Compared]) -> list[Check]:
    """The targets: speed-up at 20 M rows, our growth from the smallest to the largest R, equal results."""
    found = []
    for how in HOWS:
        rows = sorted((one for one in results if one.how == how), key=lambda one: one.rows)
        if not rows:
            continue
        at = next((one for one in rows if one.rows == SPEED_UP_AT), rows[-1])
        judged = at.speed_up >= SPEED_UP[how] if at.rows == SPEED_UP_AT else None
        target = f">= {SPEED_UP[how]:.0f}x at {SPEED_UP_AT // 10**6} M"
        found.append(Check(f"{how}: speed-up at R = {_short(at.rows)}", f"{at.speed_up:.1f}x", target, judged))
        small, large = rows[0], rows[-1]
        growth = large.median_ours / small.median_ours
        theirs = large.median_theirs / small.median_theirs
        what = f"{how}: our time per batch, R = {_short(large.rows)} against {_short(small.rows)}"
        passed = growth < GROWTH if large.rows >= 50 * small.rows else None
        found.append(
            Check(what, f"{growth:.2f}x (Spark's own: {theirs:.1f}x)", f"< {GROWTH}x over 1 M to 50 M", passed)
        )
    differing = [f"{one.how} {_short(one.rows)}" for one in results if not one.equal]
    shown = f"different: {', '.join(differing)}" if differing else "equal"
    found.append(Check("results of both joins, batch by batch", shown, "equal", not differing))
    return found


def table(results: Sequence[Compared]) -> Table:
    """Median time of a micro-batch over the size of R."""
    rows = [
        [
            f"{_short(one.rows)}, {one.how}",
            f"{one.median_ours:.3f}",
            f"{one.median_theirs:.2f}",
            f"{one.speed_up:.1f}x",
            f"{one.counters.get('cache_hits', 0) / max(1, one.counters.get('rows_in', 0)):.0%}",
            f"{one.counters.get('disk_reads', 0):,}",
        ]
        for one in sorted(results, key=lambda one: (HOWS.index(one.how), one.rows))
    ]
    note = (
        f"Median seconds in `addBatch` for micro-batches of {BATCH_ROWS:,} rows in two Parquet files, string key, "
        f"Zipf 1. Ours with memory {MEMORY} for a task, warmed up with earlier rows of the stream, by turns over the "
        "sizes; Spark's own join over Parquet, AQE on, its default settings otherwise. Both have the page cache of the "
        "machine."
    )
    head = ("R", "ms.join", "Spark's own join", "speed-up", "cache hits", "disk reads")
    return Table("Time per micro-batch over the size of R", head, rows, note)


def raw(results: Sequence[Compared]) -> list[dict[str, Any]]:
    """What was measured."""
    return [asdict(one) for one in results]


def _short(rows: int) -> str:
    return f"{rows / 1e6:g} M"
