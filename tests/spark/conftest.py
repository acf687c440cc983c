"""One Spark session for all tests of the adapter, and small things they share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from millstream.spark import local_session, workers
from millstream.spark.types import column


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    workers.POOLS = 2  # starting Python workers takes most of the time here
    session = local_session(
        "millstream-tests",
        **{
            "spark.sql.shuffle.partitions": 2,
            "spark.default.parallelism": 2,
            "spark.sql.session.timeZone": "Europe/Berlin",
            "spark.sql.timeType.enabled": True,
            "spark.sql.warehouse.dir": "/tmp/millstream-tests-warehouse",
        },
    )
    yield session
    session.stop()


@pytest.fixture
def same_rows() -> Callable[[DataFrame, DataFrame], int]:
    """Assert that two DataFrames hold the same bag of rows, columns in any order; the number of rows."""

    def check(ours: DataFrame, theirs: DataFrame) -> int:
        assert sorted(ours.columns) == sorted(theirs.columns)
        names = [column(name) for name in sorted(theirs.columns)]
        left, right = (sorted(repr(tuple(row)) for row in df.select(*names).collect()) for df in (ours, theirs))
        assert left == right
        return len(left)

    return check


@pytest.fixture
def stream_of(spark: SparkSession, tmp_path: Path) -> Callable[[list[DataFrame]], DataFrame]:
    """A streaming DataFrame that gives each of some batch DataFrames as one micro-batch."""
    count = 0

    def make(batches: list[DataFrame], folder: str = "source") -> DataFrame:
        nonlocal count
        place = tmp_path / folder
        for batch in batches:
            count += 1
            batch.coalesce(1).write.parquet(str(tmp_path / "staging" / str(count)))
            (file,) = (tmp_path / "staging" / str(count)).glob("part-*.parquet")
            place.mkdir(exist_ok=True)
            os.utime(file, (count, count))
            file.rename(place / f"{count:05d}.parquet")
        return spark.readStream.schema(batches[0].schema).option("maxFilesPerTrigger", 1).parquet(str(place))

    return make
