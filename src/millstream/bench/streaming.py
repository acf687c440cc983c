"""Streaming queries over files, one micro-batch after the other, and what Spark reports of each."""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ..spark.metrics import join_metrics

RESULT = "bench.result"
_MODULUS = 1_000_000_007  # sums of hashes below it cannot overflow

_query_numbers = itertools.count(1)


@dataclass(frozen=True)
class Batch:
    """A micro-batch that has run.

    `seconds` is what Spark calls addBatch: planning and running the batch, without the checkpoint. `counters` are those
    of the join operator, if there is one. `rows_out` and `checksum` describe the result as a bag of rows.
    """

    number: int
    rows_in: int
    seconds: float
    rows_out: int
    checksum: int
    counters: dict[str, int]

    @property
    def result(self) -> tuple[int, int, int]:
        """What must be the same for whoever joins the same micro-batch."""
        return self.number, self.rows_out, self.checksum


def file_stream(spark: SparkSession, folder: Path, *, files: int = 1) -> DataFrame:
    """A streaming DataFrame that takes `files` Parquet files of a folder for each micro-batch."""
    schema = spark.read.parquet(str(folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(str(folder))


def watched(df: DataFrame) -> DataFrame:
    """The same rows, counted and summed up in the query's progress, whatever their order."""
    row = F.pmod(F.xxhash64(*[F.col(f"`{name}`") for name in sorted(df.columns)]), F.lit(_MODULUS))
    name = f"{RESULT}.{next(_query_numbers)}"
    return df.observe(name, F.count(F.lit(1)).alias("rows"), F.sum(row).alias("checksum"))


def run_batches(
    df: DataFrame,
    *,
    limit: int | None = None,
    patience: float | None = None,
    report: Callable[[Batch], None] | None = None,
) -> list[Batch]:
    """Run a query and throw its rows away.

    It runs on everything that is there, or on the first `limit` micro-batches, or until the end of the first one after
    `patience` seconds.
    """
    done: list[Batch] = []
    begun = time.monotonic()
    watched = limit is not None or patience is not None or report is not None  # asking takes time of the same cores
    with tempfile.TemporaryDirectory(prefix="millstream-checkpoint-", ignore_cleanup_errors=True) as checkpoint:
        query = (
            df.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        )
        try:
            while True:
                active = query.isActive  # asked for first: what it reports after the end is complete
                if watched or not active:
                    for batch in _new(query.recentProgress, done):
                        done.append(batch)
                        if report is not None:
                            report(batch)
                enough = limit is not None and len(done) >= limit
                late = patience is not None and bool(done) and time.monotonic() - begun > patience
                if not active or enough or late:
                    break
                time.sleep(0.05)
            if query.exception() is not None:
                raise query.exception()  # type: ignore[misc]
        finally:
            query.stop()
    return done if limit is None else done[:limit]


def _new(progress: Sequence[Any], done: Sequence[Batch]) -> list[Batch]:
    """Micro-batches with rows that are not yet among those done."""
    last = done[-1].number if done else -1
    found = [_batch(json.loads(one.json)) for one in progress if one.batchId > last and one.numInputRows]
    return sorted(found, key=lambda batch: batch.number)


def _batch(progress: dict[str, Any]) -> Batch:
    observed = progress.get("observedMetrics", {})
    result: dict[str, Any] = next((value for name, value in observed.items() if name.startswith(RESULT)), {})
    return Batch(
        number=progress["batchId"],
        rows_in=progress["numInputRows"],
        seconds=progress["durationMs"]["addBatch"] / 1000,
        rows_out=int(result.get("rows") or 0),
        checksum=int(result.get("checksum") or 0),
        counters=next(iter(join_metrics(progress).values()), {}),
    )


def median_seconds(batches: Sequence[Batch]) -> float:
    """The usual time of a micro-batch."""
    return statistics.median(batch.seconds for batch in batches)
