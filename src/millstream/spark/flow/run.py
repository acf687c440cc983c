"""A micro-batch of a flow: one pass for each segment, then everything is committed, then it is accounted for."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from ...errors import BatchConflict, Fenced, MillstreamError
from ...failpoints import reach
from ...flow import Graph
from ...flow.checkpoint import Checkpoint, Identity
from ...flow.counts import Activity, Branch, Tally, activities, branches, ledger_counts
from ...flow.nodes import Filter, Node, ParquetFiles, Table
from ...warehouse import Receipt, TableSpec
from ..load import client_of
from ..types import arrow_schema, column
from .complaints import cause
from .context import Context
from .outlets import PARTS, REJECTS, REPORT_DDL, TO_REJECTS, Destination, FanOut, ToFolder, ToTable, commit_folder
from .sets import apply_set
from .weave import REJECTED, Outlet, Woven, weave

log = logging.getLogger(__name__)

ACTIVITIES = "flow_activities"
_ACTIVITY_SCHEMA = pa.schema(
    [
        ("flow", pa.string()),
        ("batch", pa.int64()),
        ("activity", pa.string()),
        ("kind", pa.string()),
        ("rows_in", pa.int64()),
        ("rows_out", pa.int64()),
        ("rejected", pa.int64()),
        ("seconds", pa.float64()),
        ("after", pa.string()),
    ]
)
_ATTEMPTS = 3


@dataclass(frozen=True)
class BatchReport:
    """What a micro-batch was: rows of the source, what each activity did, where rows went, and what was loaded."""

    batch: int
    rows: int
    seconds: float
    activities: dict[str, Activity]
    branches: list[Branch]
    receipts: dict[str, Receipt] = field(default_factory=dict)

    @property
    def rejected(self) -> int:
        return sum(one.rejected for one in self.activities.values())


@dataclass
class Pass:
    """What the passes of a batch have brought about so far."""

    tally: Tally = field(default_factory=Tally)
    parts: dict[str, list[str]] = field(default_factory=dict)  # by activity; "" for the rejects
    destinations: dict[str, Destination] = field(default_factory=dict)


class BatchRunner:
    """Called by Spark with each micro-batch: the wide rows of the first segment."""

    def __init__(
        self,
        graph: Graph,
        context: Context,
        checkpoint: Checkpoint,
        identity: Identity,
        *,
        state: Path,
        token: str | None,
        whole: Graph | None = None,
        progress: Path | None = None,
        report: Callable[[BatchReport], None] | None = None,
    ) -> None:
        self.graph, self.context = graph, context
        self.whole = whole or graph  # the flow that this graph is a part of
        self._progress = progress  # where Spark keeps its files, if not in the checkpoint itself
        self.checkpoint, self.identity = checkpoint, identity
        self.state, self.token = state, token
        self.reports: deque[BatchReport] = deque(maxlen=1000)
        self.running = threading.Lock()  # held while a batch is
        self.report = report
        self._woven: Woven | None = None
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="commit")
        self._created: set[TableSpec] = set()
        names = {node.name: number for number, node in enumerate(graph.nodes)}
        self._counted = frozenset(
            names[node.name] for node in graph.nodes if isinstance(node, Filter) and node.rejects == "count"
        )

    @property
    def uses_warehouse(self) -> bool:
        return any(isinstance(node, Table) for node in self.whole.targets)

    def first(self, woven: Woven) -> None:
        """Set the segment whose rows the query brings."""
        self._woven = woven

    def __call__(self, df: DataFrame, number: int) -> None:
        """Run a batch; one that fails for a passing reason is tried again."""
        with self.running:
            self.checkpoint.check_held()
            self.checkpoint.sync_offsets(number, folder=self._progress)
            self._tried(df, number)

    def _tried(self, df: DataFrame, number: int) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._batch(df, number)
                return
            except (Fenced, BatchConflict):
                raise
            except Exception as error:
                lasting = isinstance(error, MillstreamError) and not error.retryable
                if attempt == _ATTEMPTS or lasting or "InterruptedException" in str(error):
                    raise
                log.warning("batch %d failed and is tried again: %s", number, cause(error))
                time.sleep(0.2 * attempt)

    def _batch(self, df: DataFrame, number: int) -> None:
        begun = time.perf_counter()
        batch = self.identity.first + number
        assert self._woven is not None
        done = Pass()
        held: list[DataFrame] = []
        try:
            done.tally.rows = self._segment(Woven(df, self._woven.outlets, self._woven.stretches), batch, done, held)
        finally:
            for one in held:
                one.unpersist()
        reach("flow.before-commit")
        self.checkpoint.check_held()
        spent = time.perf_counter() - begun
        accounts = {branch.target: branch for branch in branches(self.graph, done.tally)}
        sending = sum(done.tally.seconds.values())
        passed = activities(self.graph, done.tally, shared=max(0.0, spent - sending))
        receipts = self._commit(batch, done, accounts, passed)
        reach("flow.after-commit")
        report = BatchReport(
            number, done.tally.rows, time.perf_counter() - begun, passed, list(accounts.values()), receipts
        )
        self.reports.append(report)
        if self.report is not None:
            self.report(report)

    # -- passes --------------------------------------------------------------------------------------------------------

    def _segment(self, woven: Woven, batch: int, done: Pass, held: list[DataFrame]) -> int:
        """One pass over a segment, and those behind it; the number of rows it had."""
        nested = [outlet for outlet in woven.outlets if not outlet.is_target]
        df = woven.df
        if nested:
            df = df.persist()
            held.append(df)
        fan = self._fan_out(woven, df, batch, done)
        flat = [
            column(o.column) if o.is_target else column(o.column).isNotNull().alias(o.column) for o in woven.outlets
        ]
        rejects = [column(f"{REJECTED}{at}") for at in range(woven.stretches)]
        rows = 0
        for line in df.select(*flat, *rejects).mapInArrow(fan, REPORT_DDL).collect():
            if line.what == "rows":
                rows += line.rows
            elif line.what == "rejected":
                _add(done.tally.rejected, fan.activities[line.number], line.rows)
            elif line.what == "end":
                name = woven.outlets[line.number].node.name
                _add(done.tally.arrived, name, line.rows)
                if woven.outlets[line.number].is_target:
                    done.tally.seconds[name] = done.tally.seconds.get(name, 0.0) + line.seconds
            else:
                name = "" if line.number == TO_REJECTS else woven.outlets[line.number].node.name
                done.parts.setdefault(name, []).append(line.part)
        for outlet in woven.outlets:
            done.tally.arrived.setdefault(outlet.node.name, 0)
        for outlet in nested:
            self._behind(outlet, df, batch, done, held)
        return rows

    def _behind(self, outlet: Outlet, df: DataFrame, batch: int, done: Pass, held: list[DataFrame]) -> None:
        """The segment whose head is an outlet of another one."""
        node = outlet.node
        rows = df.where(column(outlet.column).isNotNull()).select(f"{outlet.column}.*")
        made = apply_set(node, rows, self.context, batch=batch, state=self.state)
        woven = weave(made, node, self.context)
        done.tally.behind[node.name] = self._segment(woven, batch, done, held)

    def _fan_out(self, woven: Woven, df: DataFrame, batch: int, done: Pass) -> FanOut:
        types = {entry.name: entry.dataType for entry in df.schema.fields}
        outlets: list[Destination | None] = []
        for outlet in woven.outlets:
            if not outlet.is_target:
                outlets.append(None)
                continue
            schema = arrow_schema(types[outlet.column])  # type: ignore[arg-type]
            to = self._destination(outlet.node, schema, batch)
            done.destinations[outlet.node.name] = to
            outlets.append(to)
        rejects = self._rejects(batch)
        done.destinations[""] = rejects
        return FanOut(
            tuple(outlets),
            rejects,
            woven.stretches,
            tuple(node.name for node in self.graph.nodes),
            self._counted,
            self.whole.name,
            batch,
        )

    def _destination(self, node: Node, schema: pa.Schema, batch: int) -> Destination:
        if isinstance(node, ParquetFiles):
            return self._folder(self.graph.path(node.path), schema, batch)
        assert isinstance(node, Table)
        return self._table(table_spec(node, schema), batch)

    def _rejects(self, batch: int) -> Destination:
        if not self.uses_warehouse:
            folder = self.state / self.graph.rejects
            if self.whole is not self.graph:  # batches of other activities have the same numbers
                folder = folder / f"part={self.graph.name.rpartition('.')[2]}"
            return self._folder(str(folder), REJECTS, batch)
        return self._table(TableSpec(self.graph.rejects, REJECTS, keep_system=True), batch)

    def _table(self, spec: TableSpec, batch: int) -> ToTable:
        if spec not in self._created:
            client_of(self.graph.warehouse, self.token).create(spec)
            self._created.add(spec)
        return ToTable(self.graph.warehouse, self.token, spec, self.graph.name, batch)

    def _folder(self, path: str, schema: pa.Schema, batch: int) -> ToFolder:
        os.makedirs(Path(path) / PARTS, exist_ok=True)
        return ToFolder(path, schema, batch)

    # -- commits -------------------------------------------------------------------------------------------------------

    def _commit(
        self, batch: int, done: Pass, accounts: dict[str, Branch], passed: dict[str, Activity]
    ) -> dict[str, Receipt]:
        """Make the batch show in all targets; those that have it already say so."""
        waiting: dict[str, Any] = {}
        tables: dict[str, tuple[list[str], list[Branch], bool]] = {}
        for name, to in done.destinations.items():
            parts = done.parts.get(name, [])
            if isinstance(to, ToFolder):
                waiting[name] = self._pool.submit(commit_folder, Path(to.path), batch, parts)
            elif name:
                node = self.graph.by_name[name]
                assert isinstance(node, Table)
                known = tables.setdefault(to.spec.name, ([], [], node.wait))
                known[0].extend(parts)
                known[1].append(accounts[name])
            else:
                tables[to.spec.name] = (parts, [], True)
        for table, (parts, owners, wait) in tables.items():
            waiting[table] = self._pool.submit(self._commit_table, table, batch, parts, owners, wait)
        if self.uses_warehouse:
            waiting[ACTIVITIES] = self._pool.submit(self._commit_activities, batch, passed)
        receipts = {}
        for name, future in waiting.items():
            begun = time.perf_counter()
            receipt = future.result()
            reach(f"flow.committed-{name or 'rejects'}")
            if isinstance(receipt, Receipt):
                receipts[name] = receipt
            if name in done.tally.seconds:
                done.tally.seconds[name] += time.perf_counter() - begun
        return receipts

    def _commit_table(self, table: str, batch: int, parts: list[str], owners: list[Branch], wait: bool) -> Receipt:
        counts: dict[str, int] = {}
        for owner in owners:
            for name, value in ledger_counts(owner).items():
                counts[name] = counts.get(name, 0) + value
        reach(f"flow.commit-{table}")
        return client_of(self.graph.warehouse, self.token).commit(
            table,
            flow=self.graph.name,
            batch=batch,
            parts=parts,
            wait=wait,
            counts=counts,
            origin=self.identity.id,
        )

    def _commit_activities(self, batch: int, passed: dict[str, Activity]) -> Receipt:
        spec = TableSpec(ACTIVITIES, _ACTIVITY_SCHEMA)
        self._table(spec, batch)
        lines = [
            (self.whole.name, batch, one.name, self.whole.by_name[one.name].kind, *_figures(one), self._after(one.name))
            for one in passed.values()
            if one.name in self.whole.by_name
        ]
        values = zip(*lines, strict=True)
        columns = [pa.array(one, entry.type) for one, entry in zip(values, spec.schema, strict=True)]
        data = pa.Table.from_arrays(columns, schema=spec.schema)
        client = client_of(self.graph.warehouse, self.token)
        return client.load(ACTIVITIES, flow=self.graph.name, batch=batch, data=data, origin=self.identity.id)

    def _after(self, name: str) -> str | None:
        """The activity, or `activity.branch`, whose rows an activity gets."""
        return ".".join(filter(None, self.whole.inputs[name])) if name in self.whole.inputs else None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def table_spec(node: Table, schema: pa.Schema) -> TableSpec:
    """The table that a target asks the warehouse for, when rows with these columns come."""
    return TableSpec(
        node.table,
        schema,
        mode=node.mode,  # type: ignore[arg-type]
        key=list(node.key or ()),
        aggregates=dict(node.aggregates or {}),
        keep_system=node.keep_system,
    )


def _figures(one: Activity) -> tuple[int, int, int, float]:
    return one.rows_in, one.rows_out, one.rejected, one.seconds


def _add(counts: dict[str, int], name: str, rows: int) -> None:
    counts[name] = counts.get(name, 0) + rows
