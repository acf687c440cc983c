"""`millstream demo join`: sales of a million products, joined by Millstream and by Spark itself."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import InputError, MillstreamError
from millstream.units import format_bytes

from ..parser import add_command, positive, size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console
    from rich.table import Table

    from millstream.bench.streaming import Batch
    from millstream.master import Master

    from ..parser import Commands

FILES = 2  # of a micro-batch: one for each task slot
PATIENCE = 60.0  # seconds that Spark's own join gets; what it has not joined by then is not compared


def register(commands: Commands) -> None:
    """Add `demo join`."""
    parser = add_command(
        commands,
        "join",
        summary="stream skewed sales through a join with a million products, next to Spark's own join",
        about="Runs a local Spark with two task slots, in a temporary directory that is removed afterwards.",
        example="millstream demo join --rows 2_000_000 --memory 64MB",
    )
    parser.add_argument("--rows", metavar="N", type=positive, default=1_000_000, help="products (default: 1000000)")
    parser.add_argument("--batches", metavar="N", type=positive, default=20, help="micro-batches (default: 20)")
    parser.add_argument(
        "--batch-rows", metavar="N", type=positive, default=20_000, help="sales in a micro-batch (default: 20000)"
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        type=size,
        default=32_000_000,
        help="budget of the join in each task (default: 32MB)",
    )
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep the data in this new or empty directory")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Make the data, join it both ways, print the comparison."""
    if arguments.keep is None:
        with tempfile.TemporaryDirectory(prefix="millstream-demo-", ignore_cleanup_errors=True) as folder:
            _demo(arguments, Path(folder))
        return
    if arguments.keep.exists() and (not arguments.keep.is_dir() or any(arguments.keep.iterdir())):
        raise InputError(f"{arguments.keep} is not an empty directory; name a new one")
    arguments.keep.mkdir(parents=True, exist_ok=True)
    _demo(arguments, arguments.keep)
    print(f"kept in {arguments.keep}: products.parquet, products (the master) and sales")


def _demo(arguments: argparse.Namespace, folder: Path) -> None:
    from millstream.bench.streaming import watched

    from ..session import quiet_session
    from .view import open_console, step

    console = open_console()
    with step(console, "starting Spark"):
        spark = quiet_session("millstream demo")
    try:
        products, sales = _make(console, spark, arguments, folder)
        ours = _run(
            console,
            f"ms.join(sales, products, how='left', memory='{format_bytes(arguments.memory)}')",
            watched(_millstream(spark, sales, products, arguments.memory)),
            arguments.batches,
            _Counters(),
        )
        theirs = _run(
            console,
            "sales.join(spark.read.parquet(products), how='left')",
            watched(_spark(spark, sales, folder / "products.parquet")),
            arguments.batches,
            _Times(),
            patience=PATIENCE,
        )
    finally:
        spark.stop()
    if len(theirs) < len(ours):
        console.print(f"  stopped after {PATIENCE:.0f} s: the first {len(theirs)} micro-batches are compared")
        ours = ours[: len(theirs)]
    console.print()
    console.print(_comparison(ours, theirs, products, arguments.memory))
    if not _equal(ours, theirs):
        raise MillstreamError("the two joins gave different results; keep the data with --keep and report this")
    console.print(_verdict(ours, theirs))


# -- the data ------------------------------------------------------------------------------------------------------


def _make(console: Console, spark: SparkSession, arguments: argparse.Namespace, folder: Path) -> tuple[Master, Path]:
    from millstream import build_master
    from millstream.bench.data import write_products, write_sales
    from millstream.workloads import Workload

    from ..progress import spark_tasks
    from .view import step

    rows, batches, batch_rows = arguments.rows, arguments.batches, arguments.batch_rows
    workload = Workload(keys=rows, exponent=1.0, key="string")
    with step(console, f"writing {rows:,} products and {batches * batch_rows:,} sales (Zipf 1) as Parquet"):
        table = write_products(folder / "products.parquet", rows, key="string")
        sales = write_sales(folder / "sales", workload, batches=batches, batch_rows=batch_rows, files=FILES)
    with step(console, "building the master"), spark_tasks(spark, "building the master"):
        products = build_master(spark.read.parquet(str(table)), folder / "products", key="product_id")
    told = products.statistics
    console.print(
        f"  {products.rows:,} rows, {format_bytes(told.bytes)} on disk in {told.segments:,} segments; "
        f"the budget of the join is {format_bytes(arguments.memory)}, {arguments.memory / told.bytes:.0%} of that"
    )
    return products, sales


def _millstream(spark: SparkSession, sales: Path, products: Master, memory: int) -> DataFrame:
    from millstream import join
    from millstream.bench.streaming import file_stream

    return join(file_stream(spark, sales, files=FILES), products, on="product_id", how="left", memory=memory)


def _spark(spark: SparkSession, sales: Path, products: Path) -> DataFrame:
    from millstream.bench.streaming import file_stream

    return file_stream(spark, sales, files=FILES).join(spark.read.parquet(str(products)), "product_id", "left")


# -- the two queries -----------------------------------------------------------------------------------------------


class _Times:
    """A line for each micro-batch: its rows and its time."""

    heading = f"{'batch':>5} {'rows':>9} {'seconds':>8} {'rows/s':>11}"

    def line(self, batch: Batch) -> str:
        return f"{batch.number:>5} {batch.rows_in:>9,} {batch.seconds:>8.2f} {batch.rows_in / batch.seconds:>11,.0f}"


class _Counters(_Times):
    """The same with what the operators say of themselves."""

    heading = f"{_Times.heading} {'cache hits':>11} {'disk reads':>11} {'bytes read':>11}  memory of the fuller task"

    def line(self, batch: Batch) -> str:
        told = batch.counters
        hits = told.get("cache_hits", 0) / max(1, told.get("rows_in", 0))
        used, budget = told.get("memory_used", 0), told.get("memory_budget", 0)
        filled = round(10 * used / max(1, budget))
        return (
            f"{super().line(batch)} {hits:>11.1%} {told.get('disk_reads', 0):>11,} "
            f"{format_bytes(told.get('bytes_read', 0)):>11}  {'█' * filled}{'░' * (10 - filled)} "
            f"{format_bytes(used)} of {format_bytes(budget)}"
        )


def _run(
    console: Console, title: str, df: DataFrame, batches: int, lines: _Times, *, patience: float | None = None
) -> list[Batch]:
    """Run a query, one line for each micro-batch as it ends."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from millstream.bench.streaming import run_batches

    console.print()
    console.print(title, style="bold")
    console.print(lines.heading, style="dim")
    bars = Progress(
        TextColumn("micro-batches"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bars:
        task = bars.add_task("", total=batches)

        def report(batch: Batch) -> None:
            console.print(lines.line(batch))
            bars.advance(task)

        return run_batches(df, patience=patience, report=report)


# -- the comparison ------------------------------------------------------------------------------------------------


def _comparison(ours: list[Batch], theirs: list[Batch], products: Master, memory: int) -> Table:
    from rich.table import Table

    from millstream.bench.streaming import median_seconds

    table = Table(
        title=f"{len(ours)} micro-batches, {sum(b.rows_in for b in ours):,} sales, {products.rows:,} products"
    )
    table.add_column("")
    table.add_column("Millstream", justify="right")
    table.add_column("Spark's own join", justify="right")
    table.add_column("", justify="right")

    def times(name: str, mine: float, other: float) -> None:
        table.add_row(name, f"{mine:.2f} s", f"{other:.2f} s", f"{other / mine:.1f}x")

    times("time of a micro-batch (median)", median_seconds(ours), median_seconds(theirs))
    times("first micro-batch, with the start of workers", ours[0].seconds, theirs[0].seconds)
    times("all micro-batches", sum(b.seconds for b in ours), sum(b.seconds for b in theirs))
    table.add_row("rows out", f"{sum(b.rows_out for b in ours):,}", f"{sum(b.rows_out for b in theirs):,}", "")
    peak = max(b.counters.get("memory_peak", 0) for b in ours)
    table.add_row("memory of the join, at most", f"{format_bytes(peak)} of {format_bytes(memory)}", "not limited", "")
    table.add_row("results", "", "", "equal" if _equal(ours, theirs) else "DIFFERENT")
    return table


def _equal(ours: list[Batch], theirs: list[Batch]) -> bool:
    """Whether each micro-batch gave the same rows: their number and a checksum over all columns."""
    return [batch.result for batch in ours] == [batch.result for batch in theirs]


def _verdict(ours: list[Batch], theirs: list[Batch]) -> str:
    from millstream.bench.streaming import median_seconds

    factor = median_seconds(theirs) / median_seconds(ours)
    spent = f"{factor:.1f} times less" if factor > 1 else f"{1 / factor:.1f} times more"
    return (
        f"Millstream took {spent} time for a micro-batch. Spark's own join reads all products for each of "
        "them, so its time grows with the table; try --rows 5_000_000."
    )
