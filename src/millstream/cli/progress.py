"""Progress on a terminal: a bar while the work lasts, nothing at all when stderr is a file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _bars() -> Progress:
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar while the block runs; the block reports (done, total) as often as it likes."""
    with _bars() as bars:
        task = bars.add_task(what, total=None)

        def report(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        yield report


@contextmanager
def spark_tasks(spark: SparkSession, what: str, *, every: float = 0.25) -> Iterator[None]:
    """Shows how many tasks of the running Spark stage are done while the block runs."""
    tracker = spark.sparkContext.statusTracker()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every):
            stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]
            if stages:
                stage = min(stages, key=lambda info: info.stageId)
                report(stage.numCompletedTasks, stage.numTasks)

    with counting(what) as report:
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
