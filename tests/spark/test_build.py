"""`millstream.build_master`: what is stored, what is refused, and what happens when a build dies or meets another."""

from __future__ import annotations

import os
import threading

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import millstream as ms
from millstream import errors
from millstream.kernels.keys import KeyCodec
from millstream.spark.types import arrow_schema
from spark.keys import KEYS, key_columns, with_nulls


@pytest.mark.parametrize("kind", [kind for kind in KEYS if kind not in ("tinyint", "smallint", "int", "bigint")])
def test_our_hash_is_sparks_xxhash64(spark, kind):
    """Keys are hashed by the JVM when a master is built and by our kernel when it is looked up."""
    keys = spark.range(5000).selectExpr(*with_nulls(kind))
    hashed = keys.select("*", F.xxhash64(*key_columns(kind)).alias("h")).toArrow()
    codec = KeyCodec.of(arrow_schema(keys.schema), key_columns(kind))
    columns = [hashed.column(name).combine_chunks() for name in key_columns(kind)]
    codes, valid = codec.codes(columns)
    expected = hashed.column("h").to_numpy()
    assert (codes[valid] == expected[valid]).all()
    assert 0 < (~valid).sum() < len(valid)


@pytest.mark.parametrize("kind", KEYS)
def test_every_key_type_is_stored_whole(spark, tmp_path, kind):
    rows = spark.range(500).selectExpr(*with_nulls(kind), "concat('Ünïcode 你好 ', id) as name")
    master = ms.build_master(rows, tmp_path / "m", key_columns(kind), segment_bytes=1024)
    assert master.rows == 500
    assert master.key == key_columns(kind)
    assert master.schema.names == rows.columns
    assert master.statistics.null_key_rows == sum(1 for number in range(500) if number % 13 == 5)
    distinct = rows.selectExpr(f"count(distinct {', '.join(key_columns(kind))})").head()[0]
    assert master.statistics.distinct_keys == distinct
    assert master.verify() == ms.Master.open(tmp_path / "m").verify() > 0


def test_the_columns_keep_their_types_and_zones_become_utc(spark, tmp_path):
    rows = spark.range(3).selectExpr(
        "id", "timestamp_micros(id) as ts", "timestamp_ntz'2024-01-01 00:00:00' as tn", "array(id) as a"
    )
    schema = ms.build_master(rows, tmp_path / "m", "id").schema
    assert schema.field("ts").type == pa.timestamp("us", tz="UTC")
    assert schema.field("tn").type == pa.timestamp("us")
    assert schema.field("a").type.value_type == pa.int64()


def test_names_with_dots_and_an_empty_table(spark, tmp_path):
    rows = spark.range(0).selectExpr("id as `a.b`", "'x' as `c d`")
    master = ms.build_master(rows, tmp_path / "m", "a.b")
    assert (master.rows, master.version) == (0, 1)
    master = ms.build_master(rows.union(spark.range(3).selectExpr("id", "'y'")), tmp_path / "m", "a.b")
    assert (master.rows, master.version, master.key) == (3, 2, ["a.b"])


@pytest.mark.parametrize("key", [["k"], ["k", "text"]])
def test_order_of_frequency(spark, tmp_path, same_rows, key):
    rows = spark.range(3000).selectExpr(
        "id % 1000 as k",
        "concat('t', id % 1000) as text",
        "id as row",
        "case when id % 7 = 0 then null when id % 11 = 0 then double('NaN') else 1000 / (1 + id % 1000) end as often",
    )
    master = ms.build_master(rows, tmp_path / "m", key, layout="frequency", frequency="often", segment_bytes=2048)
    assert master.layout == "frequency"
    assert master.statistics.distinct_keys == 1000
    master.verify()
    stream = spark.range(1500).selectExpr("id as event", "id as k", "concat('t', id) as text")
    for how in ("left", "left_anti"):
        ours = ms.join(stream, master, on=key, how=how, columns=["row", "often"], memory="4MB")
        theirs = stream.join(rows.select(*key, "row", "often"), key, how)
        same_rows(ours, theirs)


def test_parts_follow_the_number_of_partitions(spark, tmp_path):
    rows = spark.range(20_000).selectExpr("id", "repeat('x', 50) as v")
    master = ms.build_master(rows, tmp_path / "m", "id", partitions=5)
    assert len(master.manifest.parts) == 5
    firsts = master.index.first_key
    assert (firsts[1:] > firsts[:-1]).all()


def test_a_build_that_fails_leaves_the_old_version(spark, tmp_path):
    path = tmp_path / "m"
    ms.build_master(spark.range(100).selectExpr("id", "'good' as v"), path, "id")
    before = sorted(os.listdir(path / "data"))
    poisoned = spark.range(10_000).selectExpr("id", "if(id = 9999, raise_error('poisoned row'), 'bad') as v")
    with pytest.raises(Exception, match="poisoned row"):
        ms.build_master(poisoned, path, "id")
    assert ms.Master.open(path).version == 1
    assert sorted(os.listdir(path / "data")) == before
    assert ms.join(spark.range(5), path, on="id", memory="4MB").count() == 5
    assert ms.build_master(spark.range(7), path, "id").version == 2


def test_two_builders_at_once(spark, tmp_path):
    path = tmp_path / "m"

    def slowly(batches):
        import time

        for batch in batches:
            time.sleep(1)
            yield batch

    slow = spark.range(0, 20, 1, 2).mapInArrow(slowly, "id long")
    outcome = {}

    def build(name, rows):
        try:
            outcome[name] = ms.build_master(rows, path, "id").rows
        except errors.BuildConflict as error:
            outcome[name] = error

    first = threading.Thread(target=build, args=("first", slow))
    first.start()
    while not (path / ".builder").exists():
        threading.Event().wait(0.01)
    build("second", spark.range(3))
    first.join()
    assert outcome["first"] == 20
    assert isinstance(outcome["second"], errors.BuildConflict)
    assert outcome["second"].retryable
    assert ms.Master.open(path).rows == 20


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"key": "nothing"}, errors.UnknownColumn, "nothing"),
        ({"key": []}, errors.InputError, "empty"),
        ({"key": ["id", "id"]}, errors.InputError, "twice"),
        ({"key": "a"}, errors.UnsupportedType, "'a'.*list"),
        ({"key": "soft"}, errors.UnsupportedType, "collate"),
        ({"layout": "heap"}, errors.InputError, "heap"),
        ({"layout": "frequency"}, errors.InputError, "frequency="),
        ({"frequency": "id"}, errors.InputError, "layout='frequency'"),
        ({"layout": "frequency", "frequency": "x"}, errors.UnknownColumn, "'x'"),
        ({"segment_bytes": 1}, errors.InputError, "segment_bytes"),
    ],
)
def test_bad_arguments_are_refused_and_leave_nothing(spark, tmp_path, arguments, error, says):
    rows = spark.range(3).selectExpr("id", "array(id) as a", "collate('x', 'UTF8_LCASE') as soft")
    with pytest.raises(error, match=says):
        ms.build_master(rows, tmp_path / "m", **{"key": "id", **arguments})
    with pytest.raises((errors.MasterNotFound, errors.NotAMaster)):
        ms.Master.open(tmp_path / "m")


def test_bad_data_is_refused(spark, tmp_path):
    with pytest.raises(errors.InputError, match="streaming"):
        ms.build_master(spark.readStream.format("rate").load(), tmp_path / "m", "value")
    with pytest.raises(errors.InputError, match="more than one column named id"):
        ms.build_master(spark.range(3).selectExpr("id", "id as x").select("id", "x", "id"), tmp_path / "m", "x")
    with pytest.raises(errors.UnsupportedType, match="interval year"):
        ms.build_master(spark.range(3).selectExpr("id", "interval '1' year as y"), tmp_path / "m", "id")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(errors.InputError, match="not a master"):
        ms.build_master(spark.range(3), tmp_path / "other", "id")
    assert os.listdir(tmp_path / "other") == ["notes.txt"]
