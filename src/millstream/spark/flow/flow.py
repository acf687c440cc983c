"""`millstream.Flow`: a flow that Spark runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from ...errors import CheckpointRefused, InputError
from ...flow import Frame, Graph, Node, draw
from ...flow.checkpoint import Checkpoint
from ...flow.services import await_services
from ...warehouse import TableSpec
from ..load import client_of
from .analysis import analyse
from .context import Context
from .queues import QueuedFlow, run_queues
from .run import BatchReport
from .sources import open_source
from .start import Start, flow_settings, run_single, task_slots


class Flow:
    """A graph of activities from one source to one or more targets; checked as a whole when it is made."""

    def __init__(self, name: str, nodes: Sequence[Node] = (), *, graph: Graph | None = None, **settings: Any) -> None:
        """A flow of activities built in Python; `settings` are those of a flow file: warehouse, rejects, queues, state.

        Raises `FlowInvalid` with every mistake in its structure.
        """
        self.graph = graph if graph is not None else Graph.build(name, nodes, **settings)

    @classmethod
    def load(cls, path: str | Path) -> Flow:
        """The flow of a YAML file; raises `FlowInvalid` with every mistake and its line."""
        graph = Graph.load(path)
        return cls(graph.name, graph=graph)

    @property
    def name(self) -> str:
        return self.graph.name

    def explain(self) -> str:
        """The flow drawn as text."""
        return draw(self.graph)

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, {len(self.graph.nodes)} activities)"

    def analyse(self, spark: SparkSession, *, source: DataFrame | None = None) -> dict[str, TableSpec]:
        """Check expressions and types; the tables that the targets need. Raises `FlowInvalid` with every mistake."""
        with flow_settings(spark):
            rows = open_source(spark, self.graph, given=source)
            return analyse(self.graph, rows, Context(self.graph))

    def run(
        self,
        spark: SparkSession,
        checkpoint: str | Path,
        *,
        source: DataFrame | None = None,
        once: bool = False,
        every: float = 0.0,
        fresh: bool = False,
        take_over: bool = False,
        token: str | None = None,
        patience: float | None = 60.0,
        say: Callable[[str], None] = lambda line: None,
        report: Callable[[BatchReport], None] | None = None,
    ) -> StreamingQuery | QueuedFlow:
        """Start the flow from its checkpoint, a directory on a local disk; the running query.

        source: the streaming DataFrame of a flow whose source is `frame`.
        once: process what is there now, then end.
        every: seconds from the start of one micro-batch to the next; 0 for as soon as possible.
        fresh: begin with a new checkpoint although the warehouse has batches of this flow.
        take_over: replace a run on the same checkpoint that hangs; it stops before its next commit.
        token: for staging and warehouse, by default the environment variable MILLSTREAM_TOKEN.
        patience: seconds to wait for staging and warehouse to be there, None for ever; `say` is told what is awaited.
        report: called with a `BatchReport` after each micro-batch.

        Raises `FlowInvalid` for mistakes in the flow, `TableMismatch` if a target is another table than the flow
        wants, and `CheckpointRefused` if the flow cannot go on from this checkpoint.
        """
        if isinstance(self.graph.source, Frame) and source is None:
            raise InputError(f"the source of flow {self.name!r} is a DataFrame: give it with source=...")
        place = Checkpoint(checkpoint)
        place.hold(take_over=take_over)
        try:
            place.check_whole()
            identity = place.adopt(self.graph)
            await_services(self.graph, token=token, patience=patience, say=say)
            with flow_settings(spark):
                slots = task_slots(spark)
                rows = open_source(spark, self.graph, given=source, token=token, slots=slots)
                specs = analyse(self.graph, rows, Context(self.graph))
                identity = identity or place.begin(self.graph, first=self._first(specs, token, fresh))
                for spec in specs.values():
                    client_of(self.graph.warehouse, token).create(spec)
                start = Start(self.graph, place, identity, token, slots, once, every, report)
                return run_queues(start, rows) if self.graph.queues == "all" else run_single(start, rows)
        except BaseException:
            place.release()
            raise

    def _first(self, specs: dict[str, TableSpec], token: str | None, fresh: bool) -> int:
        """What a new checkpoint's batches count from; refuses one if the warehouse knows the flow already."""
        if not specs:
            return 0
        labels = [self.name]
        if self.graph.queues == "all":
            labels = [f"{self.name}.{node.name}" for node in self.graph.nodes]
        client = client_of(self.graph.warehouse, token)
        known = [line for label in labels for line in client.ledger(label, last=1)]
        if not known:
            return 0
        last = max(int(line["batch"]) for line in known)
        if not fresh:
            raise CheckpointRefused(
                f"the warehouse has batches up to {last} of flow {self.name!r}, but the checkpoint is new: was it lost?"
                " Go on from the old one, or say --fresh to begin anew (rows that are read again are loaded again)"
            )
        return last + 1
