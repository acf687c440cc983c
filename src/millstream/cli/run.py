"""`millstream run`: run a flow, with a line about it every second and the proof at the end."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import InputError, MillstreamError

from .parser import add_command, positive

if TYPE_CHECKING:
    from millstream.flow import Graph
    from millstream.spark.flow import BatchReport, Flow

    from .parser import Commands

EVERY = 1  # seconds between two lines
SILENCE = 10  # seconds without a batch after which to look whether staging and warehouse are there
RESTARTS = 5  # in a row without a batch in between


def register(commands: Commands) -> None:
    """Add `run`."""
    parser = add_command(
        commands,
        "run",
        summary="run a flow: read its source, do its activities on Spark, load its targets",
        about="Goes on from the checkpoint directory; waits for staging and warehouse if they are not there yet.\n"
        "Ctrl-C or SIGTERM ends it; nothing is lost or doubled however it ends.",
        example="millstream run examples/shop.yaml --checkpoint /data/checkpoints/shop",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the flow file")
    parser.add_argument("--checkpoint", metavar="DIR", type=Path, required=True, help="where progress is kept")
    parser.add_argument("--once", action="store_true", help="process what is there now, then end")
    parser.add_argument("--every", metavar="SECONDS", type=float, default=0.0, help="from one micro-batch to the next")
    parser.add_argument("--repair", action="store_true", help="remove checkpoint files that a crash has damaged")
    parser.add_argument("--fresh", action="store_true", help="begin with a new checkpoint, though the flow ran before")
    parser.add_argument("--take-over", action="store_true", help="replace a run that hangs; it stops at its next batch")
    parser.add_argument("--cores", metavar="N", type=positive, default=2, help="task slots of Spark (default: 2)")
    parser.add_argument("--memory", metavar="SIZE", default="1g", help="memory of Spark's JVM (default: 1g)")
    parser.add_argument("--token", help="token of staging and warehouse (default: MILLSTREAM_TOKEN)")
    parser.add_argument("--patience", metavar="SECONDS", type=float, help="longest wait for services (default: no end)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run until the end, a signal, or an error that trying again does not cure."""
    from millstream.flow.checkpoint import Checkpoint

    from .plan import read_flow, telling_mistakes
    from .session import ending, quiet_session

    if arguments.every < 0:
        raise InputError("--every must not be negative")
    graph = read_flow(arguments.file)
    checkpoint = Checkpoint(arguments.checkpoint)
    if arguments.repair:
        checkpoint.hold()
        try:
            _tell("\n".join(checkpoint.repair()) or "the checkpoint is whole, nothing to repair")
        finally:
            checkpoint.release()
    checkpoint.check_whole()
    _tell(f"flow {graph.name}: starting Spark")
    spark = quiet_session(
        f"millstream {graph.name}",
        cores=arguments.cores,
        memory=arguments.memory,
        **{"spark.sql.shuffle.partitions": arguments.cores},
    )
    with ending(spark):
        from millstream.spark.flow import Flow

        with _until_signal() as stopped, telling_mistakes():
            _run(Flow(graph.name, graph=graph), spark, arguments, stopped)
        _prove(graph, arguments.token, drained=arguments.once and not stopped)


def _run(flow: Flow, spark: Any, arguments: argparse.Namespace, stopped: list[int]) -> None:
    """Run the flow, starting it again from its checkpoint after failures that may pass."""
    from millstream.spark.flow.complaints import cause

    failures = 0
    while True:
        watch = Watch(flow.graph, token=arguments.token)
        query = flow.run(
            spark,
            arguments.checkpoint,
            once=arguments.once,
            every=arguments.every,
            fresh=arguments.fresh,
            take_over=arguments.take_over,
            token=arguments.token,
            patience=arguments.patience,
            say=_tell,
            report=watch.note,
        )
        _tell(f"flow {flow.name}: running on {arguments.checkpoint}")
        try:
            while not stopped and not query.awaitTermination(EVERY):
                watch.line(query)
            watch.line(query)
            query.stop()
            return
        except ConnectionError:
            raise
        except Exception as problem:
            said = cause(problem)
            failures = 1 if watch.batches else failures + 1
            if stopped or failures > RESTARTS or not _may_pass(problem):
                raise MillstreamError(f"the flow has stopped: {said}") from problem
            _tell(f"a batch failed: {said}; going on from the checkpoint")
            arguments.take_over = arguments.fresh = False
            time.sleep(min(10.0, 2.0**failures / 2))
            _await_release(arguments.checkpoint)


class Watch:
    """Adds up what a running flow reports, and says it in a line."""

    def __init__(self, graph: Graph, *, token: str | None = None) -> None:
        self.graph, self._token = graph, token
        self._looked, self._missing = time.monotonic(), list[str]()
        self.batches = self.rows = self.rejected = 0
        self._since, self._rows_then = time.monotonic(), 0
        self._seconds = 0.0
        self._fresh: tuple[float | None, float | None] = (None, None)
        self._said = -1

    def note(self, report: BatchReport) -> None:
        self.batches += 1
        self.rows += report.rows
        self.rejected += report.rejected
        self._seconds = report.seconds
        known = [receipt for receipt in report.receipts.values() if receipt.p50 is not None]
        if known:
            self._fresh = max(r.p50 or 0.0 for r in known), max(r.p99 or 0.0 for r in known)

    def line(self, query: Any) -> None:
        """One line; if nothing has happened since the last, only whether something is not there."""
        now = time.monotonic()
        if self._said == self.batches:
            if now - self._looked > SILENCE:
                self._look()
            return
        self._said, self._looked, self._missing = self.batches, now, []
        rate = (self.rows - self._rows_then) / max(1e-9, now - self._since)
        self._since, self._rows_then = now, self.rows
        parts = [
            time.strftime("%H:%M:%S"),
            f"{self.batches:,} batches",
            f"{self.rows:,} rows",
            f"{rate:,.0f} rows/s",
            f"{self._seconds:.2f} s a batch",
        ]
        parts += _waiting(query)
        if self._fresh[0] is not None:
            parts.append(f"fresh p50 {self._fresh[0]:.2f} s p99 {self._fresh[1]:.2f} s")
        parts += _hits(query)
        parts.append(f"{self.rejected:,} rejects")
        _tell(" | ".join(parts))

    def _look(self) -> None:
        """Say which services are away, once."""
        from millstream.flow.services import absent

        missing = []
        with contextlib.suppress(MillstreamError):
            missing = absent(self.graph, token=self._token)
        if missing and missing != self._missing:
            _tell(f"waiting for {' and '.join(missing)}")
        self._looked, self._missing = time.monotonic(), missing


def _waiting(query: Any) -> list[str]:
    """What waits: in the queues of the flow, or in staging."""
    if hasattr(query, "lengths"):
        shown = [f"{name} {rows:,}" for name, rows in query.lengths().items()]
        return [f"queues: {', '.join(shown)}"]
    progress = query.lastProgress
    if progress is None or not progress.sources:
        return []
    source = progress.sources[0]
    with contextlib.suppress(ValueError, TypeError, KeyError):
        import json

        latest, end = (json.loads(offset)["position"] for offset in (source.latestOffset, source.endOffset))
        return [f"backlog {max(0, latest - end):,}"]
    return []


def _hits(query: Any) -> list[str]:
    """The share of join keys that were found in the cache."""
    from millstream.spark import join_metrics

    progress = query.lastProgress
    counters = list(join_metrics(progress).values()) if progress is not None else []
    asked = sum(one["rows_in"] for one in counters)
    return [f"hits {sum(one['cache_hits'] for one in counters) / asked:.0%}"] if asked else []


def _prove(graph: Graph, token: str | None, *, drained: bool) -> None:
    from millstream.flow import Staging, Table

    from .reconcile import reconcile

    if any(isinstance(node, Table) for node in graph.nodes):
        staging = graph.source.url if isinstance(graph.source, Staging) else None
        reconcile(graph.warehouse, staging=staging, flow=graph.name, token=token, drained=drained, may_be_empty=True)


@contextlib.contextmanager
def _until_signal() -> Iterator[list[int]]:
    """A list that a signal puts its number into; a second Ctrl-C interrupts at once."""
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _await_release(path: Path) -> None:
    """Wait until the run that has just failed has let go of the checkpoint."""
    from millstream.errors import CheckpointRefused
    from millstream.flow.checkpoint import Checkpoint

    for _ in range(50):
        with contextlib.suppress(CheckpointRefused):
            checkpoint = Checkpoint(path)
            checkpoint.hold()
            checkpoint.release()
            return
        time.sleep(0.2)


def _may_pass(problem: BaseException) -> bool:
    """Whether a failure is none of those that come back whenever the flow is started."""
    if isinstance(problem, MillstreamError):
        return problem.retryable
    text = str(problem)
    return not any(f"millstream.errors.{name}" in text for name in ("Fenced", "BatchConflict", "TableMismatch"))


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
