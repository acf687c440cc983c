"""Scan joins on Spark: plain Parquet, conditions, order, and R split among the tasks, against Spark's own join."""

from __future__ import annotations

import pytest
from pyspark.sql import Observation
from pyspark.sql import functions as F

import millstream as ms
from millstream import errors
from millstream.spark import join_metrics

HOWS = ("inner", "left", "left_semi", "left_anti")


@pytest.fixture(scope="module")
def table(spark, tmp_path_factory):
    """Parquet with duplicate and NULL keys, in several files."""
    path = str(tmp_path_factory.mktemp("scan") / "r")
    rows = spark.range(3000).selectExpr(
        "case when id % 97 = 0 then null else concat('p', id * 7 % 2000) end as pid",
        "id as row",
        "id % 500 as lo",
        "id % 500 + 3 as hi",
    )
    rows.repartition(3).write.parquet(path)
    return path


@pytest.fixture(scope="module")
def stream(spark):
    """Duplicate, absent and NULL keys; a column whose name has a dot."""
    return spark.range(2000).selectExpr(
        "case when id % 50 = 0 then null else concat('p', id * 3 % 2500) end as pid", "id as event", "id as `x.y`"
    )


@pytest.mark.parametrize("how", HOWS)
def test_plain_parquet(spark, table, stream, same_rows, how):
    scan = ms.Master.scan(table, key="pid")
    watched = Observation(f"scan {how}")
    ours = ms.join(stream, scan, "pid", how=how, memory="8MB", metrics=watched)
    theirs = stream.join(spark.read.parquet(table), "pid", how)
    rows = same_rows(ours, theirs)
    (counted,) = join_metrics(watched).values()
    assert counted["tasks"] == 2, "each takes a share of R"
    assert (counted["rows_in"], counted["rows_out"]) == (2000, rows)
    assert counted["matched"] + counted["unmatched"] == 2000
    assert counted["segments_read"] == scan.pages, "R is read once"
    assert counted["null_keys"] == 40


@pytest.mark.parametrize("algorithm", ms.joins.SCANS)
def test_a_master(spark, tmp_path, table, stream, same_rows, algorithm):
    rows = spark.read.parquet(table)
    master = ms.build_master(rows, tmp_path / "m", "pid")
    ours = ms.join(stream, master, "pid", how="left", memory="4MB", algorithm=algorithm, metrics=False)
    same_rows(ours, stream.join(rows, "pid", "left"))


def test_micro_batches(spark, table, stream, stream_of, same_rows, tmp_path):
    """Each is drained, and rows are matched across the shares of R in each."""
    batches = [stream.where(f"event % 3 = {i}") for i in range(3)]
    found = ms.join(stream_of(batches), ms.Master.scan(table, key="pid"), "pid", how="left", memory="8MB")
    query = (
        found.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    progress = [join_metrics(one) for one in query.recentProgress if one.numInputRows]
    assert [next(iter(one.values()))["rows_in"] for one in progress] == [667, 667, 666]
    same_rows(spark.read.parquet(str(tmp_path / "out")), stream.join(spark.read.parquet(table), "pid", "left"))


@pytest.mark.parametrize("how", ["inner", "left"])
def test_conditions(spark, table, stream, same_rows, how):
    rows = spark.read.parquet(table)
    scan = ms.Master.scan(table, key="pid")
    inside = ms.joins.between("event", lo="lo", hi="hi")
    narrow = stream.select("event", "pid")
    ours = ms.join(narrow, scan, "pid", how=how, condition=inside, memory="8MB", columns=["row"])
    on = F.expr("s.pid = r.pid and event >= lo and event < hi")
    theirs = narrow.alias("s").join(rows.alias("r"), on, how).select("event", "s.pid", "row")
    same_rows(ours, theirs)
    ours = ms.join(narrow.select("event"), scan, how=how, condition=inside, memory="8MB", columns=["row"])
    same_rows(ours, narrow.select("event").join(rows, F.expr("event >= lo and event < hi"), how).select("event", "row"))


def test_a_function_as_condition(spark, table, stream, same_rows):
    import pyarrow.compute as pc

    def near(left, right):
        return pc.less(pc.abs(pc.subtract(left["event"], right["row"])), 2)

    few = stream.where("event < 200").select("event")
    ours = ms.join(few, ms.Master.scan(table), condition=near, memory="8MB", columns=["row"])
    assert same_rows(ours, few.join(spark.read.parquet(table), F.expr("abs(event - row) < 2")).select("event", "row"))


def test_order_of_the_stream(table, stream):
    number = F.spark_partition_id().alias("partition")
    ours = ms.join(stream, ms.Master.scan(table, key="pid"), "pid", how="left", ordered=True, memory="8MB")
    got = ours.select(number, "event").collect()
    want = stream.select(number, "event").collect()
    for partition in {row.partition for row in want}:
        events = dict.fromkeys(row.event for row in got if row.partition == partition)
        assert list(events) == [row.event for row in want if row.partition == partition]


def test_bad_input(table, stream):
    scan = ms.Master.scan(table, key="pid")
    with pytest.raises(errors.InputError, match="build_master"):
        ms.join(stream, scan, "pid", algorithm="moij")
    with pytest.raises(errors.InputError, match="on="):
        ms.join(stream, scan)
    with pytest.raises(errors.UnknownColumn, match="'colour'"):
        ms.join(stream, scan, "pid", condition=ms.joins.compare("event", "<", "colour"))
    with pytest.raises(errors.InputError, match="shuffle"):
        ms.join(stream, scan, "pid", shuffle=True)
    with pytest.raises(errors.BudgetTooSmall):
        ms.join(stream, scan, "pid", memory="10KB")
