"""A flow in which each activity is a query of its own, with a durable queue in front, as in the paper.

```
 source --> [queue] --> filter --> [queue] --> key --> [queue] --> replicate -+-> [queue] --> target
                          |                     |                             +-> [queue] --> target
                          +-- rejects           +-- rejects
```
Each activity becomes a small flow: from its queue, through itself, to the queues of those behind it. A queue is a
directory of Parquet files, `batch=N` for the N-th micro-batch of the activity that fills it, which shows whole or not
at all. Each has a checkpoint of its own, so each activity resumes where it was. One query for the whole flow gives the
same result with less delay; this form shows where rows wait, and lets an activity catch up on its own.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from ...errors import MillstreamError
from ...flow import Frame, Graph, Node, ParquetFiles
from ...flow.nodes import Source, Target
from .context import Context
from .remembering import MemoryServer
from .rows import arrive
from .run import BatchReport, BatchRunner
from .sets import apply_set
from .start import Start
from .weave import weave

SAMPLED = 0.5  # seconds between two looks at the queues
_SWEPT = 50  # batches of a queue whose empty folders are kept


@dataclass
class Stage:
    """One activity with its queue: `waiting` rows are in the queue, `done` were taken out of it."""

    node: Node
    graph: Graph
    queue: Path | None
    runner: BatchRunner
    rows: DataFrame
    checkpoint: Path
    waiting: int = 0
    done: int = 0
    query: StreamingQuery | None = None


class QueuedFlow:
    """The queries of a flow with queues; to be waited for and stopped like a single one.

    `lengths()` has the rows in front of each activity now, `history` samples of that: (seconds since the start, rows by
    activity). `reports` has the last micro-batches of each activity.
    """

    def __init__(self, stages: list[Stage], start: Start, memory: MemoryServer | None) -> None:
        self.stages = {stage.node.name: stage for stage in stages}
        self.history: deque[tuple[float, dict[str, int]]] = deque(maxlen=20_000)
        self._start, self._memory = start, memory
        self._over = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._problem: BaseException | None = None
        self._begun = time.monotonic()
        threading.Thread(target=self._run, name="flow-queues", daemon=True).start()
        threading.Thread(target=self._sample, name="flow-samples", daemon=True).start()

    @property
    def isActive(self) -> bool:
        return not self._over.is_set()

    @property
    def queries(self) -> list[StreamingQuery]:
        """The queries that were started so far."""
        return [stage.query for stage in self.stages.values() if stage.query is not None]

    @property
    def reports(self) -> dict[str, list[BatchReport]]:
        return {name: list(stage.runner.reports) for name, stage in self.stages.items()}

    @property
    def lastProgress(self) -> Any:
        """The progress of the activity that reported last."""
        seen = [progress for query in self.queries if (progress := query.lastProgress) is not None]
        return max(seen, key=lambda progress: progress.timestamp, default=None)

    def lengths(self) -> dict[str, int]:
        with self._lock:
            return {name: stage.waiting for name, stage in self.stages.items() if stage.queue is not None}

    def exception(self) -> BaseException | None:
        return self._problem

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Return when all activities have ended, or the time is over; raises what ended them."""
        over = self._over.wait(timeout)
        if over and self._problem is not None:
            raise self._problem
        return over

    def stop(self) -> None:
        """Stop all activities; what waits in queues is there when the flow is run again."""
        self._stopping.set()
        for query in self.queries:
            query.stop()
        self._over.wait(60)

    def filled(self, stage: Stage, report: BatchReport) -> None:
        """Note that an activity has done a micro-batch."""
        with self._lock:
            stage.waiting -= report.rows
            stage.done += report.rows
            for branch in report.branches:
                following = self.stages.get(branch.target.removeprefix(_TO))
                if following is not None and branch.target.startswith(_TO):
                    following.waiting += branch.loaded
        if self._start.report is not None:
            self._start.report(report)
        if stage.queue is not None and report.batch % 20 == 0:
            _sweep(stage.queue)

    def _run(self) -> None:
        try:
            for stage in self.stages.values():
                if self._stopping.is_set():
                    return
                stage.query = self._start.write(stage.rows, stage.runner, stage.checkpoint)
                if self._start.once:
                    stage.query.awaitTermination()
            while not self._stopping.is_set() and all(query.isActive for query in self.queries):
                time.sleep(0.1)
            self._problem = next((p for query in self.queries if (p := query.exception()) is not None), None)
        except BaseException as problem:
            self._problem = problem
        finally:
            for query in self.queries:
                query.stop()
            for stage in self.stages.values():
                stage.runner.close()
            if self._memory is not None:
                self._memory.close()
            self._start.checkpoint.release()
            self._over.set()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLED):
            self.history.append((time.monotonic() - self._begun, self.lengths()))


_TO = "to_"


def run_queues(start: Start, rows: DataFrame) -> QueuedFlow:
    """The flow as one query for each activity."""
    spark = rows.sparkSession
    memory = start.memory(spark)
    context = start.context(rows, memory)
    folder = start.checkpoint.path / "queues"
    flow: list[QueuedFlow] = []
    stages: list[Stage] = []
    schemas: dict[str, StructType] = {}
    for node in _in_order(start.graph):
        small = _alone(start.graph, node, folder)
        own = replace(context, graph=small)
        if isinstance(node, Source):
            queue, arriving = None, rows
        else:
            queue = folder / node.name
            queue.mkdir(parents=True, exist_ok=True)
            arriving = _reading(spark, queue, schemas[node.name])
        schemas |= _schemas(small, arriving, own)
        checkpoint = start.checkpoint.of_activity(node.name)
        runner = BatchRunner(
            small,
            own,
            start.checkpoint,
            start.identity,
            state=start.state,
            token=start.token,
            whole=start.graph,
            progress=checkpoint,
        )
        woven = weave(arrive(small.source, arriving, own), small.source, own)
        runner.first(woven)
        stage = Stage(node, small, queue, runner, woven.df, checkpoint)
        stage.waiting = _waiting(queue, checkpoint) if queue is not None else 0
        runner.report = _reporting(flow, stage)
        stages.append(stage)
    flow.append(QueuedFlow(stages, start, memory))
    return flow[0]


def _reporting(flow: list[QueuedFlow], stage: Stage) -> Callable[[BatchReport], None]:
    def report(done: BatchReport) -> None:
        while not flow:
            time.sleep(0.01)
        flow[0].filled(stage, done)

    return report


def _in_order(graph: Graph) -> Iterator[Node]:
    """Activities, each behind the one it gets its rows from."""
    waiting: list[Node] = [graph.source]
    while waiting:
        node = waiting.pop(0)
        yield node
        waiting += [child for output in node.outputs for child in graph.children(node.name, output)]


def _alone(graph: Graph, node: Node, folder: Path) -> Graph:
    """The small flow of one activity: from its queue to the queues of those behind it."""
    head = node if isinstance(node, Source) else Frame(name=f"from_{node.name}")
    ends: list[Node] = []
    for output in node.outputs:
        for child in graph.children(node.name, output):
            after = f"{node.name}.{output}" if output else node.name
            ends.append(ParquetFiles(name=f"{_TO}{child.name}", after=after, path=str(folder / child.name)))
    middle = [] if isinstance(node, Source) else [replace(node, after=head.name)]
    return replace(graph, name=f"{graph.name}.{node.name}", nodes=(head, *middle, *ends), queues="none")


def _schemas(small: Graph, rows: DataFrame, context: Context) -> dict[str, StructType]:
    """The columns that come to each activity behind this one."""
    quiet = replace(context, memory=None)
    empty = rows.sparkSession.createDataFrame([], rows.schema)
    found = {}
    waiting: list[tuple[DataFrame, Node]] = [(arrive(small.source, empty, quiet), small.source)]
    while waiting:
        df, head = waiting.pop()
        woven = weave(df, head, quiet)
        kinds = {entry.name: entry.dataType for entry in woven.df.schema.fields}
        for outlet in woven.outlets:
            if isinstance(outlet.node, Target):
                struct = kinds[outlet.column]
                assert isinstance(struct, StructType)
                found[outlet.node.name.removeprefix(_TO)] = struct
            else:
                rows = woven.df.select(f"{outlet.column}.*")
                waiting.append((apply_set(outlet.node, rows, quiet, batch=0, state=None), outlet.node))
    return found


def _reading(spark: SparkSession, queue: Path, schema: StructType) -> DataFrame:
    """The rows of a queue as they come; files that were consumed are removed."""
    reader = spark.readStream.schema(schema).option("cleanSource", "delete")
    return reader.parquet(f"{queue}/batch=*")


def _waiting(queue: Path, checkpoint: Path) -> int:
    """Rows that a queue holds when a flow is started again: those in files that its activity is not done with."""
    taken = set()
    done = _done(checkpoint)
    for entry in (checkpoint / "sources" / "0").glob("*"):
        if entry.name.partition(".")[0].isdigit():
            for line in entry.read_text().splitlines()[1:]:
                try:
                    file = json.loads(line)
                    if file["batchId"] <= done:
                        taken.add(Path(file["path"].partition(":")[2]).name)
                except (ValueError, KeyError) as problem:
                    raise MillstreamError(f"{entry} cannot be read: {problem}") from None
    return sum(pq.read_metadata(file).num_rows for file in queue.glob("batch=*/*.parquet") if file.name not in taken)


def _done(checkpoint: Path) -> int:
    """The last entry in Spark's list of files whose batch is committed; -1 if there is none."""
    batch = max((int(p.name) for p in (checkpoint / "commits").glob("*") if p.name.isdigit()), default=-1)
    offsets = checkpoint / "offsets" / str(batch)
    if not offsets.exists():
        return -1
    try:
        return int(json.loads(offsets.read_text().splitlines()[-1])["logOffset"])
    except (ValueError, KeyError, TypeError, IndexError) as problem:
        raise MillstreamError(f"{offsets} cannot be read: {problem}") from None


def _sweep(queue: Path) -> None:
    """Remove folders of old batches that are empty, so that looking for new ones stays quick."""
    folders = sorted(queue.glob("batch=*"), key=lambda path: int(path.name.partition("=")[2]))
    for folder in folders[:-_SWEPT]:
        if not any(folder.glob("*.parquet")):
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
