"""Starting the query of a flow: its memory, its first segment, and what is let go when it ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from ...flow import Deduplicate, DetectUpdates, Graph, SurrogateKey
from ...flow.checkpoint import Checkpoint, Identity
from .context import Context
from .remembering import MemoryServer
from .rows import arrive
from .run import BatchReport, BatchRunner
from .sources import is_identified
from .weave import weave

_SETTINGS = {
    # a value that does not fit gives NULL, so that no single row can fail a batch
    "spark.sql.ansi.enabled": "false",
    # the JVM never compiles a method with more bytecode than this; Spark then makes several smaller ones
    "spark.sql.codegen.hugeMethodLimit": "8000",
}
_setting = threading.RLock()


@contextlib.contextmanager
def flow_settings(spark: SparkSession) -> Iterator[None]:
    """What is made and started inside has the settings of a flow; the session keeps its own."""
    with _setting:
        before = {name: spark.conf.get(name) for name in _SETTINGS}
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, known in before.items():
                if known is not None:
                    spark.conf.set(name, known)


@dataclass(frozen=True)
class Start:
    """All that is known when a flow starts."""

    graph: Graph
    checkpoint: Checkpoint
    identity: Identity
    token: str | None
    slots: int
    once: bool
    every: float
    report: Callable[[BatchReport], None] | None

    @property
    def state(self) -> Path:
        """The directory of what activities remember."""
        if self.graph.state is not None:
            return Path(self.graph.path(self.graph.state))
        return self.checkpoint.path / "state"

    def memory(self, spark: SparkSession) -> MemoryServer | None:
        """The memory of the flow, open for its tasks; None if no activity remembers anything."""
        if not any(isinstance(node, SurrogateKey | Deduplicate | DetectUpdates) for node in self.graph.nodes):
            return None
        self.state.mkdir(parents=True, exist_ok=True)
        return MemoryServer(self.state, host=spark.conf.get("spark.driver.host") or "127.0.0.1")

    def context(self, rows: DataFrame, memory: MemoryServer | None) -> Context:
        address = memory.address if memory is not None else None
        return Context(self.graph, address, is_identified(self.graph, rows), self.slots)

    def write(self, df: DataFrame, runner: Callable[[DataFrame, int], None], checkpoint: Path) -> StreamingQuery:
        """Start a query that hands each micro-batch to a function."""
        writer = df.writeStream.foreachBatch(runner).option("checkpointLocation", str(checkpoint))
        if self.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(self.every * 1000)} milliseconds")
        return writer.start()


class FlowQuery(StreamingQuery):
    """The running query of a flow: Spark's, with a report of each of the last micro-batches in `reports`."""

    def __init__(self, query: StreamingQuery, runner: BatchRunner) -> None:
        super().__init__(query._jsq)
        self._runner = runner

    @property
    def reports(self) -> list[BatchReport]:
        return list(self._runner.reports)

    def stop(self) -> None:
        """Stop when the micro-batch that runs now is done, or after a minute without waiting for it."""
        idle = self._runner.running.acquire(timeout=60)
        try:
            super().stop()
        finally:
            if idle:
                self._runner.running.release()


def run_single(start: Start, rows: DataFrame) -> FlowQuery:
    """The flow as one query, whose first segment is planned once for all micro-batches."""
    memory = start.memory(rows.sparkSession)
    context = start.context(rows, memory)
    runner = BatchRunner(
        start.graph,
        context,
        start.checkpoint,
        start.identity,
        state=start.state,
        token=start.token,
        report=start.report,
    )
    source = start.graph.source
    woven = weave(arrive(source, rows, context), source, context)
    runner.first(woven)

    def close() -> None:
        runner.close()
        if memory is not None:
            memory.close()
        start.checkpoint.release()

    try:
        query = start.write(woven.df, runner, start.checkpoint.path)
    except BaseException:
        close()
        raise
    when_over(query, close)
    return FlowQuery(query, runner)


def when_over(query: StreamingQuery, close: Callable[[], None]) -> None:
    """Call `close` when a query has ended, however it did."""

    def wait() -> None:
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            query.awaitTermination()
        close()

    threading.Thread(target=wait, name="flow-end", daemon=True).start()


def task_slots(spark: SparkSession) -> int:
    """How many tasks run at the same time."""
    context = getattr(spark, "_sc", None)
    return int(context.defaultParallelism) if context is not None else 2
