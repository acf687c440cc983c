"""Counters of the join operators on their way to the driver.

Each task ends with one row more than it has results: a carrier, whose column `CARRIER` holds the task's counters (it
is NULL in all other rows). Spark's `observe` adds them up and reports them with the query's progress, in local mode,
on a cluster and through Spark Connect alike; a filter then removes the carriers. One aggregate collects the carriers
and the sums are made of them at the end, because observed aggregates are evaluated for every row.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType, StructField

from ..stats import JoinStats

CARRIER = "__millstream__"
CARRIER_TYPE = pa.list_(pa.int64())
CARRIER_FIELD = StructField(CARRIER, ArrayType(LongType()), True)
PREFIX = "millstream."
RESULT = "join"

_GAUGES = ("cached_rows", "memory_used", "memory_peak", "memory_budget", "version")
NAMES = ["tasks", "version", *JoinStats.names()]

_numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: itertools.count(1))


def observation_name(master_path: str) -> str:
    """A name that no other join of this process has: `millstream.products`, then `millstream.products.2`, ..."""
    name = PREFIX + (master_path.rstrip("/").rpartition("/")[2] or "master")
    number = next(_numbers[name])
    return name if number == 1 else f"{name}.{number}"


def task_counters(before: JoinStats, after: JoinStats, version: int) -> list[int]:
    """What one task has done, in the order of `NAMES`: gauges as they are, counters since the task began."""
    old, new = before.as_dict(), after.as_dict()
    counters = {name: value if name in _GAUGES else value - old[name] for name, value in new.items()}
    return [{"tasks": 1, "version": version, **counters}[name] for name in NAMES]


def observed(results: DataFrame, name: str | Observation) -> DataFrame:
    """Results without carriers, whose counters are reported under `name`."""
    zero = F.struct(*[F.lit(0).cast("long").alias(counter) for counter in NAMES])
    total = F.aggregate(F.collect_list(CARRIER), zero, _merge)
    watched = results.observe(name, total.alias(RESULT))
    return watched.filter(F.col(CARRIER).isNull()).drop(CARRIER)


def _merge(total: Column, task: Column) -> Column:
    merged = []
    for position, name in enumerate(NAMES):
        one = task[position]
        merged.append((F.greatest(total[name], one) if name in _GAUGES else total[name] + one).alias(name))
    return F.struct(*merged)


def is_observation(value: object) -> bool:
    """Whether a value is an `Observation`, of classic Spark or of Spark Connect."""
    return isinstance(value, Observation) or type(value).__name__ == "Observation"


def join_metrics(source: Any) -> dict[str, dict[str, int]]:
    """Counters of every join in a streaming query's progress, or of the one behind an `Observation`.

    Keys are the names given with `metrics=` or `millstream.<master>`; values have the fields of
    `millstream.stats.JoinStats` and `tasks` and `version`. Counters are sums over the tasks of the batch, while
    `version`, `cached_rows` and the memory figures are the largest of any task.
    """
    if is_observation(source):
        return {source._name or PREFIX.rstrip("."): _plain(source.get)}
    if not isinstance(source, Mapping):
        source = json.loads(source.json)
    found = {name: _plain(value) for name, value in source.get("observedMetrics", {}).items()}
    return {name: counters for name, counters in found.items() if counters}


def _plain(value: Any) -> dict[str, int]:
    """The counters in an observed row, whichever way Spark wrapped it; empty if it is not one of ours."""
    if hasattr(value, "asDict"):
        value = value.asDict(recursive=True)
    value = _named(value)
    result = _named(value.get(RESULT)) if isinstance(value, Mapping) else None
    if not isinstance(result, Mapping) or not set(NAMES) <= set(result):
        return {}
    return {name: int(result[name] or 0) for name in NAMES}


def _named(value: Any) -> Any:
    """Spark Connect reports rows as {"values": [...], "schema": {...}}; this is the mapping that is meant."""
    if hasattr(value, "asDict"):
        return value.asDict(recursive=True)
    if isinstance(value, Mapping) and set(value) == {"values", "schema"}:
        names = [entry["name"] for entry in value["schema"]["fields"]]
        return dict(zip(names, value["values"], strict=True))
    return value
