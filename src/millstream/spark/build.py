"""`millstream.build_master`: a Spark job that sorts any batch DataFrame into the segments of a master.

```
rows --> hash of the key --> ranges of keys --> sorted --> one part file per task --> manifest, by the driver
         (not for one integer)    (shuffle)                (only its summary comes back)
```
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from ..errors import InputError
from ..master import Build, BuildSpec, Master, write_part
from ..master.build import SEGMENT_BYTES, check_frequency
from ..master.manifest import Layout
from ..master.parts import DENSE_SCHEMA, dense_spec, read_entries
from .types import arrow_schema, check_collation, column, plain_names, spark_fields

_SUMMARY = "summary string"
TASK_BYTES = 24 << 20  # of the input, for each task that sorts and writes
_FREQUENCY = "__frequency__"


def build_master(
    df: DataFrame,
    path: str | Path,
    key: str | Sequence[str],
    *,
    layout: Layout = "key",
    frequency: str | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    partitions: int | None = None,
) -> Master:
    """Build a master from a batch DataFrame, or the next version of the master that is at `path`.

    key: a column or a list of columns, of any type that Spark can join on.
    layout: "key" clusters the rows by key; "frequency" puts the rows that are asked for most often first, with an
        index on disk; `frequency` is then the column that says how often (its highest value counts for a key).
    segment_bytes: size of the pieces that are read from disk; a key with many rows makes a larger one.
    partitions: how many tasks sort and write; by default Spark's own choice.

    Nothing is seen of the new version before it is complete, and a build that fails leaves what was there. Rows with
    a NULL in the key are kept, though they match nothing. With a single integer as key the DataFrame is computed twice,
    the first time to find ranges of keys of about equal size: cache one that is expensive.
    """
    if df.isStreaming:
        raise InputError("a master is built from a batch DataFrame, and this one is streaming")
    schema = arrow_schema(df.schema)
    check_frequency(schema, layout, frequency)
    with Build.begin(path, schema, key=key, layout=layout, segment_bytes=segment_bytes) as build:
        spec = build.spec
        check_collation(df.schema, spec.key)
        rows = _hashed(df, spec)
        if frequency is None:
            return build.commit(_write(_by_key(rows, spec, partitions), spec))
        ordered = _by_frequency(rows, spec, frequency, partitions)
        summaries = _write(ordered, spec)
        return build.commit(summaries, _write_dense(df, spec, summaries))


def _hashed(df: DataFrame, spec: BuildSpec) -> DataFrame:
    """The rows behind the hash by which they are clustered, if the key is not one integer."""
    if spec.hash_column is None:
        return df
    return df.withColumn(spec.hash_column, F.xxhash64(*[column(name) for name in spec.key]))


def _by_key(df: DataFrame, spec: BuildSpec, partitions: int | None) -> DataFrame:
    """Sorted partitions, a range of the clustering key each, so that a key is never cut apart.

    Hashes are spread evenly, so their ranges are known; Spark samples integers to find ranges of about equal size.
    """
    cluster = column(spec.cluster_column)
    if spec.hash_column is None:
        return _ranges(df, cluster, partitions)
    count = partitions or _tasks(df)
    upper = F.shiftright(cluster, 32) + F.lit(1 << 31)  # 0 .. 2 ** 32 - 1
    return df.repartitionById(count, F.shiftright(upper * F.lit(count), 32).cast("int")).sortWithinPartitions(cluster)


def _tasks(df: DataFrame) -> int:
    """How many tasks sort and write a DataFrame, by its size as far as Spark knows it."""
    most = int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
    plan = getattr(df, "_jdf", None)
    if plan is None:  # Spark Connect does not tell
        return most
    size = int(plan.queryExecution().optimizedPlan().stats().sizeInBytes())
    return max(1, min(most, max(2 * df.sparkSession.sparkContext.defaultParallelism, size // TASK_BYTES)))


def _ranges(df: DataFrame, order: Column, partitions: int | None) -> DataFrame:
    """Sorted partitions, one range of a column each."""
    ranges = df.repartitionByRange(partitions, order) if partitions else df.repartitionByRange(order)
    return ranges.sortWithinPartitions(order)


def _by_frequency(df: DataFrame, spec: BuildSpec, frequency: str, partitions: int | None) -> DataFrame:
    """Rows by falling frequency of their key, the rows of a key together."""
    cluster = column(spec.cluster_column)
    weight = F.coalesce(F.nanvl(column(frequency).cast("double"), F.lit(0.0)), F.lit(0.0))
    rows = df.withColumn(_FREQUENCY, F.max(weight).over(Window.partitionBy(cluster)))
    order = [F.col(_FREQUENCY).desc(), cluster.asc()]
    ranges = rows.repartitionByRange(partitions, *order) if partitions else rows.repartitionByRange(*order)
    return ranges.sortWithinPartitions(*order).drop(_FREQUENCY)


def _write(ordered: DataFrame, spec: BuildSpec) -> list[dict[str, Any]]:
    """Write each partition as a part; their summaries, which are all that comes to the driver."""
    plain = ordered.toDF(*plain_names(ordered))
    written = plain.mapInArrow(WritePart(spec, tuple(ordered.columns)), _SUMMARY)
    return [json.loads(row.summary) for row in written.collect()]


def _write_dense(df: DataFrame, spec: BuildSpec, summaries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort the index entries that the parts left behind by key, and write them as parts of their own."""
    if not summaries:
        return []
    files = df.sparkSession.createDataFrame([(json.dumps(summary),) for summary in summaries], "summary string")
    entries = files.repartition(len(summaries)).mapInArrow(ReadEntries(spec), _struct(DENSE_SCHEMA))
    return _write(_ranges(entries, F.col("key"), None), dense_spec(spec))


def _struct(schema: pa.Schema) -> Any:
    from pyspark.sql.types import StructType

    return StructType(spark_fields(schema))


@dataclass(frozen=True)
class WritePart:
    """A task that writes its sorted rows as one part; an attempt that fails leaves a file that nobody refers to."""

    spec: BuildSpec
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        context = TaskContext.get()
        assert context is not None
        named = (batch.rename_columns(self.names) for batch in _chain(first, batches))
        summary = write_part(self.spec, named, context.partitionId())
        yield pa.RecordBatch.from_pydict({"summary": [json.dumps(summary)]})


@dataclass(frozen=True)
class ReadEntries:
    """A task that reads the index entries of parts whose summaries it gets."""

    spec: BuildSpec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch.column("summary").to_pylist():
                yield from read_entries(self.spec, json.loads(text))


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    del first
    yield from rest
