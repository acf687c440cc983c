"""Scan joins on Spark: R is split among the tasks, not scanned by each of them.

Every task gets all rows of the micro-batch and one share of the pages of R, so a micro-batch that fits into a task's
memory costs one scan of R in all. An inner join is then complete. For the other kinds a row has matched if it matched
in any share, which one more shuffle, by the number of the row, finds out:

    stream --number rows--> n copies --> task i: join with share i of R --> by number --> settle
                                           matched rows, unmatched rows        unmatched in all n shares: unmatched

What is not settled yet is held in files once it is much (`held.py`).

Output in the order of the stream (`ordered=True`) is made by tasks that each scan all of R for one partition's rows.
Rows are numbered by partition and position, so a source must give the rows of a partition in the same order when a task
is run again, as the sources of Spark that can be replayed do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, IntegerType, LongType, StructField, StructType

from .. import joins
from ..joins.conditions import Condition
from ..joins.scanjoin import ScanJoin
from ..master import Master, ParquetScan
from ..stats import JoinStats
from . import warm
from .held import Held
from .metrics import CARRIER, CARRIER_TYPE, task_counters
from .task import JoinTask
from .types import conform

SHARE, NUMBER, STATE = "__share__", "__number__", "__state__"
ELSEWHERE, HOME, MATCHED = 0, 1, 2  # unmatched in a share, unmatched in the share that sends the row itself, matched
MOST_SHARES = 64

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class ScanTask:
    """A planned scan join; `shares` is 0 if each task scans all of R for its own rows."""

    task: JoinTask
    relation: ParquetScan | None
    condition: Condition | None
    ordered: bool
    shares: int
    token: str  # tells joins apart that differ in their condition or their files alone

    @property
    def identity(self) -> tuple[object, ...]:
        """Joins that agree in this share a warm operator."""
        return (*self.task.identity, self.shares, self.ordered, self.token)

    @property
    def names(self) -> list[str]:
        """Columns of the results; stand-ins where they go to another function, which finds no names with dots."""
        output = self.task.output.names
        return [f"r{number}" for number in range(len(output))] if self.settles else list(output)

    @property
    def settles(self) -> bool:
        """Whether what the shares find must be put together."""
        return self.shares > 1 and self.task.how != "inner"

    def __call__(self, batches: Batches) -> Batches:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        share = first.column(first.num_columns - 1)[0].as_py() if self.shares else 0
        version = self.task._version() if self.relation is None else 0
        operator = warm.take(self.identity, version, lambda: self._operator(version))
        assert isinstance(operator, ScanJoin)
        before = replace(operator.stats)
        carrier = first.take(pa.array([0]))
        try:
            if self.shares:
                operator.restrict(share, self.shares)
            for batch in itertools.chain([first], batches):
                yield from self._finished(operator.process(self._stream(batch)), share)
            del first
            yield from self._finished(operator.flush(), share)
            if self.task.carriers is not None:
                yield self._carrier(carrier, self._counted(before, operator.stats, version, share))
        except BaseException:
            warm.drop(operator)
            raise
        warm.give_back(self.identity, version, operator)

    def _operator(self, version: int) -> joins.Operator:
        task = self.task
        relation = self.relation or Master.open(task.path, version=version, direct=task.direct)
        if self.relation is None and version != task.version:
            output = joins.output_schema(task.stream, relation, on=self._on, how=task.how, columns=task.columns)
            task._check_same(output, version)
        operator = joins.create(
            task.algorithm,
            relation,
            on=self._on,
            how=task.how,
            memory=task.memory,
            columns=task.columns,
            condition=self.condition,
            ordered=self.ordered,
            drained=True,
        )
        if self.settles and task.how == "left":
            assert isinstance(operator, ScanJoin)
            operator.marker = STATE
        return operator

    @property
    def _on(self) -> dict[str, str] | None:
        return dict(self.task.on) or None

    @property
    def _numbered(self) -> pa.Schema:
        stream = self.task.stream
        return stream.append(pa.field(NUMBER, pa.int64())) if self.settles else stream

    def _stream(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the stream, with the number of the row if it is needed."""
        return conform(batch.select(range(len(self._numbered))), self._numbered)

    def _finished(self, results: Batches, share: int) -> Batches:
        """Results in the columns of the output: stream, master, number and state, place for counters."""
        for batch in results:
            columns = list(batch.columns)
            names = self.names
            if self.settles:
                own = len(self.task.stream)
                number = columns.pop(own)
                matched = columns.pop() if self.task.how == "left" else None
                columns += [number, self._states(number, matched, share)]
                names += [NUMBER, STATE]
            if self.task.carriers is not None:
                columns.append(pa.nulls(batch.num_rows, CARRIER_TYPE))
                names.append(CARRIER)
            yield pa.RecordBatch.from_arrays(columns, names=names)

    def _states(self, number: pa.Array, matched: pa.Array | None, share: int) -> pa.Array:
        if self.task.how == "left_semi":
            return pa.repeat(pa.scalar(MATCHED, pa.int8()), len(number))
        home = (number.to_numpy() % self.shares == share).astype(np.int8)
        state = home if matched is None else np.where(matched.to_numpy(zero_copy_only=False), MATCHED, home)
        return pa.array(state.astype(np.int8))

    def _counted(self, before: JoinStats, after: JoinStats, version: int, share: int) -> list[int]:
        """Counters of this task; rows that all shares see are counted by the first."""
        done = replace(after)
        if self.shares:
            rows = after.rows_in - before.rows_in if share == 0 else 0
            found = after.matched - before.matched
            nulls = after.null_keys - before.null_keys if share == 0 else 0
            done.rows_in, done.null_keys = before.rows_in + rows, before.null_keys + nulls
            if self.settles:  # what a row is in the end is counted when that is known
                semi = self.task.how == "left_semi"
                done.matched = before.matched + (0 if semi else rows)
                done.unmatched = before.unmatched + (rows if semi else 0)
                done.rows_out = before.rows_out
            else:
                done.unmatched = before.unmatched + rows - found
        return task_counters(before, done, version)

    def _carrier(self, row: pa.RecordBatch, counters: list[int]) -> pa.RecordBatch:
        own = conform(row.select(range(len(self.task.stream))), self.task.stream)
        brought = [pa.nulls(1, entry.type) for entry in list(self.task.output)[len(self.task.stream) :]]
        columns, names = [*own.columns, *brought], self.names
        if self.settles:
            columns += [pa.array([0], pa.int64()), pa.array([MATCHED], pa.int8())]
            names += [NUMBER, STATE]
        return pa.RecordBatch.from_arrays([*columns, pa.array([counters], CARRIER_TYPE)], names=[*names, CARRIER])


@dataclass(frozen=True)
class Copies:
    """Numbers the rows of a partition and gives each once for every share."""

    shares: int

    def __call__(self, batches: Batches) -> Batches:
        context = TaskContext.get()
        number = (context.partitionId() if context is not None else 0) << 40
        for batch in batches:
            numbers = pa.array(np.arange(number, number + batch.num_rows, dtype=np.int64))
            number += batch.num_rows
            for share in range(self.shares):
                columns = [*batch.columns, numbers, pa.repeat(pa.scalar(share, pa.int32()), batch.num_rows)]
                yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, NUMBER, SHARE])


@dataclass(frozen=True)
class Settle:
    """Puts together what the shares of R say of the rows of a partition, which must all be seen before."""

    scan: ScanTask

    def __call__(self, batches: Batches) -> Batches:
        task = self.scan.task
        semi = task.how == "left_semi"
        passed = settled = 0
        sample = None
        with Held(NUMBER) as held:
            for batch in batches:
                if not batch.num_rows:
                    continue
                sample = batch.slice(0, 1) if sample is None else sample
                state = batch.column(STATE).to_numpy()
                counters = np.zeros(len(state), dtype=np.bool_)
                if task.carriers is not None:
                    counters = batch.column(CARRIER).is_valid().to_numpy(zero_copy_only=False)
                passing = counters if semi else counters | (state == MATCHED)
                passed += int(passing.sum() - counters.sum())
                if passing.any():
                    yield self._named(batch.filter(pa.array(passing)))
                mine = ~passing if semi else state == HOME
                held.add(batch.filter(pa.array(mine)), batch.column(NUMBER).to_numpy()[state == ELSEWHERE])
            for rows, elsewhere in held.parts():
                rows = self._settled(rows, elsewhere)
                settled += len(rows)
                yield from (self._named(batch) for batch in rows.to_batches() if batch.num_rows)
        if sample is not None and task.carriers is not None:
            yield self._named(self._counted(sample, passed, settled))

    def _settled(self, rows: pa.Table, elsewhere: np.ndarray) -> pa.Table:
        """The rows that no share has matched, or for a semi join those that any has, each once."""
        numbers = rows.column(NUMBER).to_numpy()
        if self.scan.task.how == "left_semi":
            return rows.take(pa.array(np.sort(np.unique(numbers, return_index=True)[1])))
        found, counts = np.unique(elsewhere, return_counts=True)
        return rows.filter(pa.array(np.isin(numbers, found[counts == self.scan.shares - 1])))

    def _counted(self, sample: pa.RecordBatch, passed: int, settled: int) -> pa.RecordBatch:
        """A carrier: what a row is in the end, where the shares have counted it as the opposite."""
        matched = settled if self.scan.task.how == "left_semi" else -settled
        after = replace(JoinStats(), rows_out=passed + settled, matched=matched, unmatched=-matched)
        counters = task_counters(JoinStats(), after, 0)
        counters[0] = 0  # this is no task of the join
        at = sample.schema.get_field_index(CARRIER)
        return sample.set_column(at, sample.schema.field(at), pa.array([counters], CARRIER_TYPE))

    def _named(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the result under their own names."""
        output = self.scan.task.output.names
        columns = batch.columns[: len(output)]
        if self.scan.task.carriers is not None:
            return pa.RecordBatch.from_arrays([*columns, batch.column(CARRIER)], names=[*output, CARRIER])
        return pa.RecordBatch.from_arrays(columns, names=output)


def shares_of(spark: SparkSession, pages: int) -> int:
    """In how many shares R is scanned: one for each task that can run at the same time."""
    context = getattr(spark, "_sc", None)
    if context is not None:
        slots = context.defaultParallelism
    else:
        slots = min(8, int(spark.conf.get("spark.sql.shuffle.partitions", "2") or 2))
    return max(1, min(slots, pages, MOST_SHARES))


def joined(df: DataFrame, scan: ScanTask, fields: list[StructField]) -> DataFrame:
    """The results of a scan join, with their carriers; `df` has plain names, `fields` are the columns of the result."""
    counters = scan.task.carriers.fields if scan.task.carriers is not None else []
    if not scan.shares:
        return df.mapInArrow(scan, StructType([*fields, *counters]))
    if not scan.settles:
        copies = df.withColumn(SHARE, F.explode(F.array(*[F.lit(i) for i in range(scan.shares)])))
        return copies.repartitionById(scan.shares, F.col(SHARE)).mapInArrow(scan, StructType([*fields, *counters]))
    numbered = [*df.schema.fields, StructField(NUMBER, LongType(), False), StructField(SHARE, IntegerType(), False)]
    copies = df.mapInArrow(Copies(scan.shares), StructType(numbered)).repartitionById(scan.shares, F.col(SHARE))
    states = [StructField(NUMBER, LongType(), True), StructField(STATE, ByteType(), True)]
    open_ = [StructField(name, field.dataType, True) for name, field in zip(scan.names, fields, strict=True)]
    found = copies.mapInArrow(scan, StructType([*open_, *states, *counters]))
    by_number = found.repartitionById(scan.shares, F.pmod(F.col(NUMBER), F.lit(scan.shares)).cast("int"))
    return by_number.mapInArrow(Settle(scan), StructType([*fields, *counters]))
