"""`millstream.join`: a DataFrame joined with a master on disk, inside a memory budget."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql.types import StructType

from .. import joins
from ..errors import BudgetTooSmall, ColumnClash, InputError
from ..joins.conditions import Condition, as_condition
from ..master import Master, ParquetScan
from ..units import format_bytes, parse_bytes
from .metrics import CARRIER, Carriers, is_observation, observation_name, observed
from .scan import ScanTask, joined, shares_of
from .task import JoinTask
from .types import arrow_schema, check_collation, column, plain_names, spark_fields
from .workers import own_workers

if TYPE_CHECKING:
    from ..joins.plan import On, Relation


def join(
    stream_df: DataFrame,
    master: Master | ParquetScan | str | Path,
    on: On | None = None,
    *,
    how: str = "inner",
    memory: int | str = "256MB",
    algorithm: str = "auto",
    columns: Sequence[str] | None = None,
    shuffle: bool = False,
    condition: Condition | Callable[..., Any] | None = None,
    ordered: bool = False,
    metrics: str | Observation | bool | None = None,
) -> DataFrame:
    """The rows of `stream_df`, a streaming or batch DataFrame, joined with a master; nothing is run.

    master: a `Master` or its path, or plain Parquet as `Master.scan` gives it (scan joins alone).
    on: a column, a list of columns, or {stream column: master column}; names the key of the master. May be left out
        if there is a condition.
    how: inner, left, left_semi or left_anti.
    memory: bytes, or a text like "64MB" or "1GiB", for one task slot, all components of the operator together.
    algorithm: one of `millstream.joins.ALGORITHMS`; "auto" chooses by itself while it runs.
    columns: master columns to bring, by default all but the key.
    shuffle: bring equal keys into the same task first; worth it for flat key distributions only.
    condition: what a pair of rows must fulfil beside the equality of keys: `joins.between`, `joins.compare`, or a
        function over two Arrow batches (scan joins alone).
    ordered: keep the order of the rows inside each partition of the stream (scan joins alone).
    metrics: the name under which the operator's counters appear in the query's progress (see `join_metrics`), by
        default `millstream.<last part of the master's path>`; an `Observation` for a batch DataFrame; False for none.

    A streaming DataFrame follows the master: each micro-batch sees the version that was the newest when it first ran,
    also when it is replayed. A batch DataFrame sees the version of the given `Master`, or for a path the newest.
    """
    opened = master if isinstance(master, Master | ParquetScan) else Master.open(master)
    algorithm = joins.chosen(algorithm, opened, condition=condition, ordered=ordered, on=on)
    scans = algorithm in joins.SCANS
    case_sensitive = stream_df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    stream = arrow_schema(stream_df.schema)
    pairs = _pairs(on, stream.names, opened, case_sensitive=case_sensitive) if on is not None else None
    if pairs is None and condition is None:
        raise InputError("give on=, the key of the master, or condition=, or both")
    if columns is not None and not isinstance(columns, str):
        columns = [_resolved(name, opened.schema.names, case_sensitive) for name in columns]
    output = joins.output_schema(stream, opened, on=pairs, how=how, columns=columns)
    brought = output.names[len(stream) :]
    _check_names(stream.names, brought, case_sensitive=case_sensitive)
    check_collation(stream_df.schema, pairs or ())
    known = as_condition(condition) if condition is not None else None
    if known is not None:
        known.columns(stream, opened.schema)
    if not (metrics is None or isinstance(metrics, bool | str) or is_observation(metrics)):
        raise InputError(f"metrics must be a name, an Observation, or False for none, not {metrics!r}")
    budget = parse_bytes(memory)
    _check_budget(opened, budget, algorithm, pairs, how, brought)
    if shuffle and scans:
        raise InputError(
            f"shuffle=True brings equal keys together, which is of no use to {algorithm}: it scans all of R"
        )
    if shuffle and pairs:
        stream_df = stream_df.repartition(*[column(name) for name in pairs])
    fields = [*stream_df.schema.fields, *spark_fields(output)[len(stream) :]]
    carriers = (Carriers() if scans else Carriers.among(fields)) if metrics is not False else None
    task = JoinTask(
        path=opened.path,
        version=opened.version,
        follows=stream_df.isStreaming or not isinstance(master, Master),
        algorithm=algorithm,
        on=tuple((pairs or {}).items()),
        how=how,
        memory=budget,
        columns=tuple(brought) if how in ("inner", "left") else None,
        direct=opened.direct,
        stream=stream,
        output=output,
        carriers=carriers,
    )
    stream_df = stream_df.toDF(*plain_names(stream_df))
    with own_workers(stream_df.sparkSession, task.identity):
        if scans:
            results = joined(stream_df, _scan_task(stream_df, task, opened, known, ordered=ordered), fields)
        else:
            results = stream_df.mapInArrow(task, StructType([*fields, *(carriers.fields if carriers else [])]))
    if carriers is None:
        return results
    name = observation_name(opened.path) if metrics is None or isinstance(metrics, bool) else metrics
    return observed(results, name, carriers)


def _scan_task(
    stream_df: DataFrame, task: JoinTask, opened: Master | ParquetScan, condition: Condition | None, *, ordered: bool
) -> ScanTask:
    """The task of a scan join: R is split among the tasks, unless the order of the stream is to be kept."""
    scan = opened if isinstance(opened, ParquetScan) else None
    pages = scan.pages if scan is not None else opened.statistics.segments
    token = repr(condition) if condition is None or " at 0x" not in repr(condition) else uuid.uuid4().hex
    return ScanTask(
        task=task,
        relation=scan,
        condition=condition,
        ordered=ordered,
        shares=0 if ordered else shares_of(stream_df.sparkSession, pages),
        token=token if scan is None else f"{token} {len(scan.files)} {scan.rows} {scan.encoded_bytes}",
    )


def _pairs(on: On, stream: Sequence[str], master: Relation, *, case_sensitive: bool) -> dict[str, str]:
    """`on` as {stream column: master column}, with names as both sides spell them."""
    if isinstance(on, str):
        given = {on: on}
    elif isinstance(on, Mapping):
        given = dict(on)
    else:
        given = {name: name for name in on}
        if len(given) != len(list(on)):
            raise InputError(f"on names a column twice: {list(on)}")
    pairs = {
        _resolved(left, stream, case_sensitive): _resolved(right, master.schema.names, case_sensitive)
        for left, right in given.items()
    }
    if len(pairs) != len(given):
        raise InputError(f"on names a column twice: {list(given)}")
    return pairs


def _resolved(name: str, names: Sequence[str], case_sensitive: bool) -> str:
    """A column's name as it is spelt among `names`, the way Spark would find it; as given if it is not there."""
    if name in names or case_sensitive or not isinstance(name, str):
        return name
    alike = [other for other in names if other.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else name


def _check_names(stream: Sequence[str], brought: Sequence[str], *, case_sensitive: bool) -> None:
    if CARRIER in (*stream, *brought):
        raise ColumnClash(f"the column name {CARRIER} is taken by Millstream; rename it first")
    if not case_sensitive:
        alike = sorted({name.lower() for name in stream} & {name.lower() for name in brought})
        if alike:
            raise ColumnClash(
                f"stream and master both have a column {', '.join(map(repr, alike))} but for upper and lower case; "
                "choose what to bring with columns=[...] or rename it in the stream"
            )


def _check_budget(
    master: Relation, budget: int, algorithm: str, pairs: Mapping[str, str] | None, how: str, brought: Sequence[str]
) -> None:
    least = joins.least_memory(algorithm, master, on=pairs, how=how, columns=list(brought))
    if budget < least:
        raise BudgetTooSmall(
            f"memory of {format_bytes(budget)} is too small for {algorithm} on {master.path}: "
            f"give at least {format_bytes(least)} ({least} bytes)",
            least=least,
        )
