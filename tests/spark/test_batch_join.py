"""`millstream.join` on batch DataFrames against Spark's own join."""

from __future__ import annotations

import pytest
from pyspark.sql import Observation
from pyspark.sql import functions as F

import millstream as ms
from millstream import errors
from millstream.spark import join_metrics
from millstream.spark.metrics import CARRIER
from spark.keys import KEYS, key_columns, with_nulls

HOWS = ("inner", "left", "left_semi", "left_anti")


def sides(spark, kind):
    """A master with duplicate and NULL keys, and a stream with duplicate, absent and NULL keys."""
    keys = with_nulls(kind)
    master = (
        spark.range(400).selectExpr("id % 300 as id", "id as row").selectExpr(*keys, "row", "concat('n', row) as name")
    )
    stream = spark.range(600).selectExpr("(id * 7) % 450 as id", "id as event").selectExpr("event", *keys)
    return stream, master


@pytest.mark.parametrize("kind", KEYS)
def test_every_key_type_and_how_equals_sparks_join(spark, tmp_path, same_rows, kind):
    stream, rows = sides(spark, kind)
    master = ms.build_master(rows, tmp_path / "m", key_columns(kind))
    assert master.rows == 400
    for how in HOWS:
        ours = ms.join(stream, master, on=key_columns(kind), how=how, memory="4MB")
        theirs = stream.join(rows, key_columns(kind), how)
        assert same_rows(ours, theirs) > 0 or (kind == "boolean" and how == "left_anti")


@pytest.mark.parametrize("algorithm", [name for name in ms.joins.ALGORITHMS if name != "auto"])
def test_every_algorithm_runs_in_a_task(spark, tmp_path, same_rows, algorithm):
    rows = spark.range(3000).selectExpr("id % 2000 as k", "concat('n', id) as name", "1 / (1 + id) as often")
    stream = spark.range(2500).selectExpr("(id * id) % 2700 as k", "id as event")
    layout = {"layout": "frequency", "frequency": "often"} if algorithm == "xhybridjoin" else {}
    master = ms.build_master(rows, tmp_path / "m", "k", **layout)
    for how in ("left", "left_semi"):
        ours = ms.join(stream, master, on="k", how=how, memory="2MB", algorithm=algorithm)
        assert same_rows(ours, stream.join(rows, "k", how)) >= 2400 or how == "left_semi"


def test_payload_types_survive(spark, tmp_path, same_rows):
    payload = [
        "cast(id as tinyint) as b",
        "cast(id as smallint) as s",
        "1.5F as f",
        "2.5D as d",
        "cast(id / 7 as decimal(38,18)) as dec",
        "unhex(hex(id)) as bin",
        "id % 2 = 0 as bo",
        "date_add(date'1600-01-01', cast(id as int)) as da",
        "timestamp_micros(id * 1000003) as ts",
        "timestamp_ntz'2024-03-31 02:30:00.123456' as tn",
        "make_dt_interval(1, 2, 3, id) as day",
        "time'12:34:56.789' as ti",
        "array(cast(id as int), null) as a",
        "cast(array() as array<string>) as empty",
        "map('k', array(id), 'l', null) as m",
        "named_struct('x', id, 'y', array(named_struct('t', timestamp_micros(id)))) as st",
        "if(id % 3 = 0, null, concat('Zürich ', chr(0), id)) as name",
    ]
    stream = spark.range(40).selectExpr("cast(id % 25 as int) as k", *payload)
    rows = spark.range(20).selectExpr("cast(id as int) as k", *payload)
    rows = rows.select("k", *[F.col(name).alias(f"m_{name}") for name in rows.columns[1:]])
    master = ms.build_master(rows, tmp_path / "m", "k")
    for how in ("inner", "left"):
        ours, theirs = ms.join(stream, master, on="k", how=how, memory="4MB"), stream.join(rows, "k", how)
        assert same_rows(ours, theirs)
        assert [entry.dataType for entry in ours.schema] == [
            entry.dataType for entry in theirs.select(*ours.columns).schema
        ]
    assert [entry.nullable for entry in ours.schema][: len(stream.columns)] == [
        entry.nullable for entry in stream.schema
    ]


def test_large_strings_of_arrow(spark, tmp_path, same_rows):
    rows = spark.range(50).selectExpr("concat('k', id) as k", "array(concat('n', id)) as names")
    stream = spark.range(80).selectExpr("concat('k', id) as k", "unhex(hex(id)) as raw")
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        master = ms.build_master(rows, tmp_path / "m", "k")
        assert (
            same_rows(ms.join(stream, master, on="k", how="left", memory="4MB"), stream.join(rows, "k", "left")) == 80
        )
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_on_as_mapping_and_columns(spark, tmp_path, same_rows):
    rows = spark.range(50).selectExpr("id as pid", "concat('n', id) as name", "id * 2 as price")
    stream = spark.range(80).selectExpr("id as event", "cast(id % 60 as int) as `product.id`")
    master = ms.build_master(rows, tmp_path / "m", "pid")
    ours = ms.join(
        stream, master, on={"product.id": "pid"}, how="left", columns=["price", "pid"], memory="4MB", shuffle=True
    )
    assert ours.columns == ["event", "product.id", "price", "pid"]
    theirs = stream.join(rows.drop("name"), F.col("`product.id`") == F.col("pid"), "left")
    assert same_rows(ours, theirs) == 80


def test_no_columns_at_all(spark, tmp_path):
    rows = spark.range(10).selectExpr("id % 5 as id", "'x' as v")
    master = ms.build_master(rows, tmp_path / "m", "id")
    ours = ms.join(spark.range(7), master, on="id", how="left", columns=[], memory="4MB")
    assert ours.columns == ["id"]
    assert ours.count() == 12


def test_names_are_found_as_spark_finds_them(spark, tmp_path):
    rows = spark.range(5).selectExpr("id as Pid", "id as Price")
    master = ms.build_master(rows, tmp_path / "m", "Pid")
    stream = spark.range(5).selectExpr("id as PID")
    assert ms.join(stream, master, on="pid", columns=["price"], memory="4MB").columns == ["PID", "Price"]
    with pytest.raises(errors.ColumnClash, match="price"):
        ms.join(stream.selectExpr("PID", "1 as pRice"), master, on="pid", memory="4MB")


@pytest.mark.parametrize("case", ["empty stream", "empty master", "one row", "one key on all rows"])
def test_small_and_extreme_inputs(spark, tmp_path, same_rows, case):
    rows = spark.range(0 if case == "empty master" else 1 if case == "one row" else 200).selectExpr("id", "'x' as v")
    stream = spark.range(0 if case == "empty stream" else 1 if case == "one row" else 3000).selectExpr(
        "id as event", "id"
    )
    if case == "one key on all rows":
        rows, stream = rows.selectExpr("7L as id", "v"), stream.selectExpr("event", "7L as id").limit(30)
    master = ms.build_master(rows, tmp_path / "m", "id")
    for how in HOWS:
        same_rows(ms.join(stream, master, on="id", how=how, memory="4MB"), stream.join(rows, "id", how))


@pytest.mark.parametrize("kind", ["text", "number"])
def test_metrics_of_a_batch_reach_an_observation(spark, tmp_path, kind):
    rows = spark.range(1000).selectExpr("id", "concat('n', id) as v" if kind == "text" else "2 * id as v")
    stream = spark.range(0, 2000, 1, 2).selectExpr("if(id % 100 = 0, null, id) as id", "id as event")
    master = ms.build_master(rows, tmp_path / "m", "id")
    for narrowed in (lambda df: df, lambda df: df.select("event"), lambda df: df.filter("id > 10").groupBy().count()):
        seen = Observation()
        narrowed(ms.join(stream, master, on="id", memory="4MB", metrics=seen)).collect()
        (counters,) = join_metrics(seen).values()
        assert counters["rows_in"] == 2000 == counters["matched"] + counters["unmatched"]
        assert counters["rows_out"] == counters["matched"] == 990
        assert counters["null_keys"] == 20
        assert counters["tasks"] == 2
        assert counters["version"] == 1
        assert 0 < counters["memory_used"] <= counters["memory_peak"] <= counters["memory_budget"] == 4_000_000
    plain = ms.join(stream, master, on="id", memory="4MB", metrics=False)
    assert plain.count() == 990
    assert plain.columns == ["id", "event", "v"]


def test_no_text_is_taken_for_a_carrier(spark, tmp_path, same_rows):
    values = ["null", "''", f"'{CARRIER}'", f"'{CARRIER}0123:1,2'", "'{\"nothing\": 1}'", "'ключ'", "repeat('x', 5000)"]
    texts = f"array({', '.join(values)})"
    rows = spark.range(700).selectExpr("id", f"{texts}[id % 7] as `a.text`")
    stream = spark.range(0, 900, 1, 3).selectExpr(f"{texts}[id % 7] as `b``text`", "id")
    master = ms.build_master(rows, tmp_path / "m", "id")
    for how in HOWS:
        same_rows(ms.join(stream, master, on="id", how=how, memory="4MB"), stream.join(rows, "id", how))


def test_counters_cost_results_with_a_text_no_copy(spark, tmp_path):
    """Compiled, a filter copies the rows that it hands on; Spark marks what it compiles with a star."""
    master = ms.build_master(spark.range(10).selectExpr("id", "'x' as v"), tmp_path / "m", "id")
    joined = ms.join(spark.range(10), master, on="id", memory="4MB")
    plan = joined._jdf.queryExecution().executedPlan().toString().splitlines()
    assert plan[0].startswith("Filter")
    assert "CollectMetrics" in plan[1]
    assert "MapInArrow" in plan[2]


def test_two_joins_with_one_master_in_one_query(spark, tmp_path, same_rows):
    rows = spark.range(30).selectExpr("concat('c', id) as code", "id as population")
    master = ms.build_master(rows, tmp_path / "countries", "code")
    stream = spark.range(100).selectExpr("id", "concat('c', id % 40) as origin", "concat('c', id % 7) as target")
    once = ms.join(stream, master, on={"origin": "code"}, how="left", memory="4MB")
    ours = ms.join(once.withColumnRenamed("population", "p1"), master, on={"target": "code"}, memory="4MB")
    right = rows.withColumnRenamed("code", "origin")
    theirs = stream.join(right, "origin", "left").withColumnRenamed("population", "p1")
    theirs = theirs.join(rows.withColumnRenamed("code", "target"), "target")
    assert same_rows(ours, theirs) == 100
    assert ours.unionByName(ours).count() == 200


def test_a_batch_sees_the_version_of_its_master(spark, tmp_path):
    first = ms.build_master(spark.range(10).selectExpr("id", "'old' as v"), tmp_path / "m", "id")
    second = ms.build_master(spark.range(10).selectExpr("id", "'new' as v"), tmp_path / "m", "id")
    assert (first.version, second.version) == (1, 2)
    for master, expected in ((first, "old"), (second, "new"), (str(tmp_path / "m"), "new")):
        assert {row.v for row in ms.join(spark.range(10), master, on="id", memory="4MB").collect()} == {expected}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"on": "nothing"}, errors.UnknownColumn, "nothing"),
        ({"on": "event"}, errors.UnknownColumn, "event"),
        ({"on": {"event": "name"}}, errors.InputError, "key of the master"),
        ({"on": {"label": "id"}}, errors.KeyTypeMismatch, "string.*int64"),
        ({"how": "right"}, errors.InputError, "unknown how 'right'"),
        ({"algorithm": "magic"}, errors.InputError, "unknown algorithm 'magic'"),
        ({"memory": "1kB"}, errors.BudgetTooSmall, "at least"),
        ({"memory": "lots"}, errors.InputError, "lots"),
        ({"columns": ["colour"]}, errors.UnknownColumn, "colour"),
        ({"columns": "name"}, errors.InputError, "list"),
        ({"metrics": 3}, errors.InputError, "metrics"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(spark, small_master, change, error, says):
    stream = spark.range(5).selectExpr("id", "id as event", "'x' as label")
    with pytest.raises(error, match=says):
        ms.join(stream, small_master, **{"on": "id", "memory": "4MB", **change})


def test_bad_streams_are_refused(spark, small_master):
    with pytest.raises(errors.ColumnClash, match=r"name.*columns="):
        ms.join(spark.range(5).selectExpr("id", "1 as name"), small_master, on="id")
    with pytest.raises(errors.InputError, match="more than one column named id"):
        ms.join(spark.range(5).selectExpr("id", "id as x").select("id", "x", "id"), small_master, on="id")
    with pytest.raises(errors.UnsupportedType, match="interval year"):
        ms.join(spark.range(5).selectExpr("id", "interval '1' year as y"), small_master, on="id")
    with pytest.raises(errors.MasterNotFound, match="nowhere"):
        ms.join(spark.range(5), "/nowhere/at/all", on="id")


@pytest.fixture(scope="module")
def small_master(spark, tmp_path_factory):
    rows = spark.range(20).selectExpr("id", "concat('n', id) as name")
    return ms.build_master(rows, tmp_path_factory.mktemp("small") / "m", "id")
