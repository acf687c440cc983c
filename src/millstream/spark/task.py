"""The join as one task runs it: Arrow batches of a partition in, joined batches out, nothing held back at the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext

from .. import joins
from ..errors import InputError
from ..joins import Operator
from ..master import Master
from . import warm
from .metrics import Carriers, task_counters
from .pins import pinned_version
from .types import conform
from .workers import settle

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True)
class JoinTask:
    """A planned join; travels pickled to the workers and is called there with the batches of a partition.

    `version` is the one that was planned with; a join that `follows` takes the version pinned for its micro-batch.
    """

    path: str
    version: int
    follows: bool
    algorithm: str
    on: tuple[tuple[str, str], ...]
    how: str
    memory: int
    columns: tuple[str, ...] | None
    direct: bool
    stream: pa.Schema
    output: pa.Schema
    carriers: Carriers | None

    @property
    def identity(self) -> tuple[object, ...]:
        """Joins that agree in this share a warm operator."""
        return self.path, self.on, self.how, self.columns, self.memory, self.algorithm, self.direct, str(self.stream)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        version = self._version()
        operator = warm.take(self.identity, version, lambda: self._operator(version))
        before = replace(operator.stats)
        row = first.take(pa.array([0]))
        try:
            yield from self._results(operator, first)
            del first
            for batch in batches:
                yield from self._results(operator, batch)
            yield from map(self._finished, operator.flush())
            if self.carriers is not None:
                yield self.carriers.carrier(self._any_row(row), task_counters(before, operator.stats, version))
        except BaseException:
            warm.drop(operator)
            raise
        warm.give_back(self.identity, version, operator)

    def _results(self, operator: Operator, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return map(self._finished, operator.process(conform(batch, self.stream)))

    def _finished(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self.carriers.beside(batch) if self.carriers is not None else batch

    def _any_row(self, stream_row: pa.RecordBatch) -> pa.RecordBatch:
        """A row for counters. Its stream columns, which may not be NULL, are those of any row."""
        row = conform(stream_row, self.stream)
        brought = [pa.nulls(1, entry.type) for entry in list(self.output)[len(self.stream) :]]
        return pa.RecordBatch.from_arrays([*row.columns, *brought], names=self.output.names)

    def _version(self) -> int:
        context = TaskContext.get()
        if not self.follows or context is None:
            return self.version
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not query or not batch:
            return self.version
        return pinned_version(self.path, query, int(batch), otherwise=self.version)

    def _operator(self, version: int) -> Operator:
        master = Master.open(self.path, version=version, direct=self.direct)
        on = dict(self.on)
        if version != self.version:
            self._check_same(
                joins.output_schema(self.stream, master, on=on, how=self.how, columns=self.columns), version
            )
        return joins.create(self.algorithm, master, on=on, how=self.how, memory=self.memory, columns=self.columns)

    def _check_same(self, output: pa.Schema, version: int) -> None:
        for planned, now in zip(self.output, output, strict=True):
            if planned.type != now.type:
                raise InputError(
                    f"column {now.name!r} of the master at {self.path} is {now.type} in version {version}, but the "
                    f"query was planned with {planned.type} (version {self.version}); restart the query"
                )
