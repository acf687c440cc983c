"""Counters of the join operators on their way to the driver.

Each task ends with one row more than it has results: a carrier, which holds the task's counters. Spark's `observe` adds
them up and reports them with the query's progress, in local mode, on a cluster and through Spark Connect alike; a
filter then removes the carriers. One aggregate collects them and the sums are made at the end, because observed
aggregates are evaluated for every row.

Counters travel in a text of the results, behind a token that no text begins with by chance. Spark then hands rows on as
they are. If a number of the results may be NULL it is the guard: a carrier has NULL there, which Spark sees at once,
and it looks at the texts of no other rows. Results without a text get a column for the counters (NULL in all other
rows), and to drop it again Spark copies every row, which takes as long as a fifth of its way to Python and back.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DatetimeType,
    FractionalType,
    IntegralType,
    LongType,
    StringType,
    StructField,
)

from ..stats import JoinStats
from .types import column

CARRIER = "__millstream__"
CARRIER_TYPE = pa.list_(pa.int64())
CARRIER_FIELD = StructField(CARRIER, ArrayType(LongType()), True)
PREFIX = "millstream."
RESULT = "join"

_NUMBERS = (BooleanType, DatetimeType, FractionalType, IntegralType)  # and what is like them
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


@dataclass(frozen=True)
class Carriers:
    """Where counters travel: in a text of the results, behind a token and beside a NULL in the guard, or in a column of
    their own without a token.
    """

    column: str = CARRIER
    token: str | None = None
    guard: str | None = None

    @classmethod
    def among(cls, fields: Sequence[StructField]) -> Carriers:
        """The way for results with these columns."""
        texts = [entry.name for entry in fields if entry.dataType == StringType()]
        if not texts:
            return cls()
        guards = [entry.name for entry in fields if entry.nullable and isinstance(entry.dataType, _NUMBERS)]
        return cls(texts[-1], f"{CARRIER}{uuid.uuid4().hex}:", guards[0] if guards else None)

    @property
    def fields(self) -> list[StructField]:
        """Columns of their own that they need."""
        return [] if self.token else [CARRIER_FIELD]

    def beside(self, results: pa.RecordBatch) -> pa.RecordBatch:
        """Results as they go to Spark."""
        own = [] if self.token else [pa.nulls(results.num_rows, CARRIER_TYPE)]
        return pa.RecordBatch.from_arrays([*results.columns, *own], names=[*results.schema.names, *self._names])

    def carrier(self, row: pa.RecordBatch, counters: list[int]) -> pa.RecordBatch:
        """A row of any content with counters."""
        columns = list(row.columns)
        if self.token:
            at = row.schema.get_field_index(self.column)
            columns[at] = pa.array([self.token + ",".join(map(str, counters))], columns[at].type)
            if self.guard is not None:
                at = row.schema.get_field_index(self.guard)
                columns[at] = pa.nulls(1, columns[at].type)
        else:
            columns.append(pa.array([counters], CARRIER_TYPE))
        return pa.RecordBatch.from_arrays(columns, names=[*row.schema.names, *self._names])

    @property
    def _names(self) -> list[str]:
        return [entry.name for entry in self.fields]

    @property
    def counters(self) -> Column:
        """The counters that a row carries, NULL in a result."""
        if not self.token:
            return F.col(CARRIER)
        text = column(self.column)
        carries = F.startswith(text, F.lit(self.token))
        return F.when(carries if self.guard is None else column(self.guard).isNull() & carries, text)

    def parsed(self, carried: Column) -> Column:
        """The numbers of what was carried."""
        if not self.token:
            return carried
        return F.split(F.substr(carried, F.lit(len(self.token) + 1)), ",").cast(CARRIER_FIELD.dataType)

    def without(self, rows: DataFrame) -> DataFrame:
        """The results among rows."""
        if not self.token:
            return rows.filter(F.col(CARRIER).isNull()).drop(CARRIER)
        text = column(self.column)
        # Results never reach the last condition, and carriers do not fulfil it. As Spark does not compile its function,
        # the filter hands rows on; compiled together with what comes next it would copy them.
        never = F.isnull(F.from_json(text, "nothing int"))
        result = text.isNull() | ~F.startswith(text, F.lit(self.token)) | never
        return rows.filter(result if self.guard is None else column(self.guard).isNotNull() | result)


def observed(results: DataFrame, name: str | Observation, carriers: Carriers) -> DataFrame:
    """Results without carriers, whose counters are reported under `name`."""
    zero = F.struct(*[F.lit(0).cast("long").alias(counter) for counter in NAMES])
    collected = F.transform(F.collect_list(carriers.counters), carriers.parsed)
    watched = results.observe(name, F.aggregate(collected, zero, _merge).alias(RESULT))
    return carriers.without(watched)


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
