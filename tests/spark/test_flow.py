"""Flows on Spark: what comes out equals SQL over what went in, however the flow was run; every row is accounted for."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream.errors import CheckpointRefused, FlowInvalid
from millstream.flow.checkpoint import Checkpoint
from millstream.spark.flow import Flow

ROWS, BATCHES = 900, 2

GOLDEN = """
flow: shop
queues: {queues}
nodes:
  - source: files
    name: orders
    path: orders
    max_files: 1
  - select: quantity > 0
  - cast: {{price: double}}
  - deduplicate: order_id
  - derive: {{amount: quantity * price}}
  - enrich: products
    on: product_id
    memory: 4MB
  - surrogate_key: code_key
    key: code
  - replicate: [facts, sizes, groups, changes]
    name: both
  - parquet: facts
    name: facts
    after: both.facts
  - route: {{cheap: amount < 20}}
    otherwise: dear
    name: split
    after: both.sizes
  - parquet: cheap
    name: cheap
    after: split.cheap
  - foreign_key: labels
    on: {{product_id: k}}
    memory: 4MB
    after: split.dear
  - parquet: dear
    name: dear
  - aggregate: {{total: sum(quantity), n: count(*)}}
    by: code_key
    after: both.groups
  - select: n > 15
    name: having
  - parquet: codes
    name: codes
  - detect_updates: product_id
    columns: quantity
    after: both.changes
  - parquet: changed
    name: changed
"""


def orders(batch: int, rows: int = ROWS) -> pa.Table:
    """Orders of which each id comes in two batches, some twice in one; with prices that are none."""
    rng = np.random.default_rng(batch)
    price = [f"{value:.2f}" if value < 9.9 else "free" for value in rng.random(rows) * 10]
    return pa.table(
        {
            "order_id": (np.arange(rows) + batch * rows // 2) % (rows * 3 // 2),
            "quantity": pa.array(rng.integers(-1, 10, rows), pa.int32()),
            "price": price,
            "product_id": rng.integers(0, 60, rows),
            "code": [f"c{number}" for number in rng.integers(0, 30, rows)],
        }
    )


@pytest.fixture(scope="module")
def masters(spark, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("masters")
    ms.build_master(
        spark.range(50).selectExpr("id as product_id", "concat('p', id) as name"), folder / "products", "product_id"
    )
    ms.build_master(spark.range(40).selectExpr("id as k", "id as x"), folder / "labels", "k")
    return folder


def prepared(folder: Path, masters: Path, *, queues: str = "none") -> Flow:
    (folder / "orders").mkdir(parents=True)
    for batch in range(BATCHES):
        pq.write_table(orders(batch), folder / "orders" / f"{batch}.parquet", row_group_size=300)
        os.utime(folder / "orders" / f"{batch}.parquet", (batch + 1, batch + 1))
    for name in ("products", "labels"):
        (folder / name).symlink_to(masters / name)
    (folder / "flow.yaml").write_text(GOLDEN.format(queues=queues))
    return Flow.load(folder / "flow.yaml")


def loaded(folder: Path, columns: str, name: str) -> list[tuple]:
    return duckdb.sql(
        f"SELECT {columns} FROM read_parquet('{folder}/{name}/batch=*/*.parquet') ORDER BY ALL"
    ).fetchall()


def outcome(folder: Path) -> dict[str, list[tuple]]:
    """What must be the same however the flow was run."""
    columns = "order_id, quantity, amount, name, code"
    return {name: loaded(folder, columns, name) for name in ("facts", "cheap", "dear")}


def test_results_equal_sql_and_do_not_depend_on_how_the_flow_runs(spark, tmp_path, masters):
    straight = prepared(tmp_path / "straight", masters)
    query = straight.run(spark, tmp_path / "straight" / "checkpoint", once=True)
    query.awaitTermination()
    assert [report.rows for report in query.reports] == [ROWS] * BATCHES
    for report in query.reports:
        assert all(branch.complete for branch in report.branches)
        assert report.activities["select"].rows_in == ROWS
    check_against_sql(tmp_path / "straight")

    # stopped when the first batch is in the targets and Spark does not know, then gone on
    resumed = prepared(tmp_path / "resumed", masters)
    seen = []

    def fail_once(report):
        seen.append(report.batch)
        if len(seen) == 1:
            raise ms.MillstreamError("the process ends here")

    query = resumed.run(spark, tmp_path / "resumed" / "checkpoint", once=True, report=fail_once)
    with pytest.raises(Exception, match="the process ends here"):
        query.awaitTermination()
    released(tmp_path / "resumed" / "checkpoint")
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "4096")  # and in more, smaller tasks
    resumed.run(spark, tmp_path / "resumed" / "checkpoint", once=True).awaitTermination()
    spark.conf.set("spark.sql.files.maxPartitionBytes", before)
    check_against_sql(tmp_path / "resumed")
    assert outcome(tmp_path / "resumed") == outcome(tmp_path / "straight")


def test_queues_give_the_same_result(spark, tmp_path, masters):
    flow = prepared(tmp_path / "queued", masters, queues="all")
    query = flow.run(spark, tmp_path / "queued" / "checkpoint", once=True)
    assert query.awaitTermination(240)
    check_against_sql(tmp_path / "queued", batch="")
    assert set(query.lengths().values()) == {0}
    assert max(length for _, lengths in query.history for length in lengths.values()) > 0
    assert query.stages["select"].done == ROWS * BATCHES


def check_against_sql(folder: Path, batch: str = "batch,") -> None:
    """The targets against DuckDB over the same files; groups are those of a micro-batch."""
    con = duckdb.connect()
    con.execute(
        f"""
        CREATE TABLE source AS SELECT * FROM read_parquet('{folder}/orders/*.parquet');
        CREATE TABLE sound AS SELECT order_id, quantity, try_cast(price AS DOUBLE) AS price, product_id, code,
            quantity * try_cast(price AS DOUBLE) AS amount
            FROM source WHERE quantity > 0 AND try_cast(price AS DOUBLE) IS NOT NULL;
        CREATE VIEW facts AS SELECT * FROM read_parquet('{folder}/facts/batch=*/*.parquet', hive_partitioning = true);
        """
    )
    # one row of each order id, out of those that are sound, if its product is known
    rows, ids, strangers = con.execute(
        "SELECT count(*), count(DISTINCT order_id), count(*) FILTER (NOT EXISTS (SELECT 1 FROM sound s WHERE "
        "s.order_id = f.order_id AND s.amount = f.amount AND s.code = f.code AND 'p' || s.product_id = f.name)) "
        "FROM facts f"
    ).fetchone()
    assert rows == ids > 0
    assert strangers == 0
    rejects = dict(
        con.execute(
            "SELECT activity, count(*) FROM "
            f"read_parquet('{folder}/checkpoint/state/rejects/**/batch=*/*.parquet') GROUP BY 1"
        ).fetchall()
    )
    assert rejects["select"] == con.execute("SELECT count(*) FROM source WHERE NOT quantity > 0").fetchone()[0]
    wrong = "SELECT count(*) FROM source WHERE quantity > 0 AND try_cast(price AS DOUBLE) IS NULL"
    assert rejects["cast"] == con.execute(wrong).fetchone()[0]
    assert rejects["deduplicate"] == con.execute("SELECT count(*) - count(DISTINCT order_id) FROM sound").fetchone()[0]
    assert rows + rejects["enrich"] == con.execute("SELECT count(DISTINCT order_id) FROM sound").fetchone()[0]
    # a code has one number, and numbers begin at 1 without a gap
    numbers = con.execute("SELECT code, min(code_key), max(code_key) FROM facts GROUP BY code").fetchall()
    assert all(low == high for _, low, high in numbers)
    assert sorted(low for _, low, _ in numbers) == list(range(1, len(numbers) + 1))
    # routing, foreign key and aggregation, from the facts
    cheap, dear = (
        con.execute(f"SELECT order_id FROM read_parquet('{folder}/{name}/batch=*/*.parquet') ORDER BY 1").fetchall()
        for name in ("cheap", "dear")
    )
    assert cheap == con.execute("SELECT order_id FROM facts WHERE amount < 20 ORDER BY 1").fetchall()
    assert (
        dear == con.execute("SELECT order_id FROM facts WHERE amount >= 20 AND product_id < 40 ORDER BY 1").fetchall()
    )
    groups = con.execute(
        f"SELECT {batch} code_key, total, n FROM "
        f"read_parquet('{folder}/codes/batch=*/*.parquet', hive_partitioning = true) "
        "ORDER BY ALL"
    ).fetchall()
    expected = con.execute(
        f"SELECT {batch} code_key, sum(quantity), count(*) FROM facts GROUP BY ALL HAVING count(*) > 15 ORDER BY ALL"
    ).fetchall()
    assert groups == expected
    assert not batch or rejects["having"] > 0
    # a row of a product was written if its quantity is another one than that of the row before
    changes = con.execute(
        f"SELECT change, count(*) FROM read_parquet('{folder}/changed/batch=*/*.parquet') GROUP BY 1"
    ).fetchall()
    assert dict(changes)["insert"] == con.execute("SELECT count(DISTINCT product_id) FROM facts").fetchone()[0]


def released(checkpoint: Path) -> None:
    """Wait until an ended run has let go of its checkpoint."""
    for _ in range(100):
        place = Checkpoint(checkpoint)
        try:
            place.hold()
        except CheckpointRefused:
            time.sleep(0.05)
            continue
        place.release()
        return
    raise AssertionError("the checkpoint is still held")


def test_poison_rows_are_rejected_and_the_batch_goes_on(spark, tmp_path, stream_of):
    rows = spark.createDataFrame(
        [
            (1, "12", 1.0, "a"),
            (2, "many", 1.0, "a"),
            (3, "12", float("nan"), "a"),
            (4, None, 2.0, "a"),
            (5, "12", None, "a"),
            (6, "12", 2.0, "x" * 50_000),
            (7, "0", 3.0, "a"),
            (8, "99999999999999999999", 3.0, "a"),
        ],
        "id int, amount string, k double, note string",
    )
    nodes = [
        ms.flow.Frame(max_text=10_000),
        ms.flow.Cast(columns={"amount": "int"}),
        ms.flow.SurrogateKey(column="key", key="k"),
        ms.flow.Derive(
            columns={
                "share": "100 / amount",
                "bad": "CAST(note AS INT)",
                "large": "try_multiply(CAST(id AS BIGINT), 9223372036854775807)",
            }
        ),
        ms.flow.ParquetFiles(path=str(tmp_path / "out")),
    ]
    flow = Flow("poison", nodes)
    query = flow.run(spark, tmp_path / "checkpoint", once=True, source=stream_of([rows]))
    query.awaitTermination()
    assert loaded(tmp_path, "id, large", "out") == [(1, 9223372036854775807), (4, None), (7, None)]
    reasons = dict(
        duckdb.sql(
            f"SELECT json_extract(row, 'id')::INT, activity || ': ' || reason FROM "
            f"read_parquet('{tmp_path}/checkpoint/state/rejects/batch=*/*.parquet')"
        ).fetchall()
    )
    assert reasons == {
        2: "cast: amount: many is no int",
        3: "surrogate_key: key column k is NaN",
        5: "surrogate_key: key column k is NULL",
        6: "source: note is longer than 10,000",
        8: "cast: amount: 99999999999999999999 is no int",
    }


def test_a_killed_worker_costs_a_retry(spark, tmp_path, stream_of):
    marker = tmp_path / "killed"

    def die_once(batches):
        for batch in batches:
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    rows = spark.range(1000).selectExpr("id", "id % 7 AS k")
    source = stream_of([rows]).mapInArrow(die_once, "id long, k long")
    nodes = [
        ms.flow.Frame(),
        ms.flow.SurrogateKey(column="key", key="k"),
        ms.flow.ParquetFiles(path=str(tmp_path / "out")),
    ]
    query = Flow("killed", nodes).run(spark, tmp_path / "checkpoint", once=True, source=source)
    query.awaitTermination()
    assert marker.exists()
    assert loaded(tmp_path, "count(*), count(DISTINCT id), count(DISTINCT key), max(key)", "out") == [
        (1000, 1000, 7, 7)
    ]


def test_difference_of_snapshots(spark, tmp_path, stream_of):
    snapshots = [[(1, "a"), (2, "b"), (3, "c")], [(1, "a"), (2, "x"), (4, "d"), (4, "e")], [(1, None), (4, "d")]]
    frames = [spark.createDataFrame(rows, "k int, v string") for rows in snapshots]
    nodes = [ms.flow.Frame(), ms.flow.Difference(key="k"), ms.flow.ParquetFiles(path=str(tmp_path / "out"))]
    query = Flow("snapshots", nodes).run(spark, tmp_path / "checkpoint", once=True, source=stream_of(frames))
    query.awaitTermination()
    found = duckdb.sql(
        "SELECT batch, k, v, change FROM "
        f"read_parquet('{tmp_path}/out/batch=*/*.parquet', hive_partitioning = true) ORDER BY ALL"
    ).fetchall()
    second = [row for row in found if row[0] == 1]
    assert [row for row in found if row[0] == 0] == [
        (0, 1, "a", "insert"),
        (0, 2, "b", "insert"),
        (0, 3, "c", "insert"),
    ]
    assert second[:2] == [(1, 2, "x", "update"), (1, 3, "c", "delete")]
    assert second[2][1::2] == (4, "insert")  # one of the two rows with this key; the other is a reject
    assert found[6:8] == [(2, 1, None, "update"), (2, 2, "x", "delete")]
    assert query.reports[1].activities["difference"].rejected == 1


def test_mistakes_in_expressions_are_found_all_at_once(spark, tmp_path, masters):
    (tmp_path / "products").symlink_to(masters / "products")
    (tmp_path / "orders").mkdir()
    (tmp_path / "flow.yaml").write_text(
        """flow: wrong
nodes:
  - source: files
    path: orders
    columns: order_id bigint, quantity int, product_id date, code string
  - select: quantty > 0
  - derive:
      amount: quantity * prize
      half: quantity / 2
  - cast: {code: intt}
  - enrich: products
    on: product_id
  - route: {some: half > 1, others: lenght(code) = 1}
    name: split
  - target: facts
    after: split.some
  - target: others
    mode: aggregate
    key: code
    aggregates: {total: median(half)}
    after: split.others
"""
    )
    with pytest.raises(FlowInvalid) as caught:
        Flow.load(tmp_path / "flow.yaml").analyse(spark)
    said = {problem.line: problem.message for problem in caught.value.problems}
    assert list(said) == [6, 8, 10, 12, 13, 17]
    for line, word in ((6, "quantty"), (8, "prize"), (10, "intt"), (12, "product_id"), (13, "lenght"), (17, "median")):
        assert word in said[line].lower()


def test_torn_checkpoint_files_stop_the_flow_and_can_be_repaired(spark, tmp_path, stream_of):
    nodes = [ms.flow.Frame(), ms.flow.ParquetFiles(path=str(tmp_path / "out"))]
    flow = Flow("torn", nodes)
    checkpoint = tmp_path / "checkpoint"
    frames = [spark.range(n * 10, n * 10 + 10).toDF("id") for n in range(3)]
    flow.run(spark, checkpoint, once=True, source=stream_of(frames[:2])).awaitTermination()
    released(checkpoint)
    (checkpoint / "commits" / "1").write_bytes(b"")
    source = stream_of(frames[2:])
    with pytest.raises(CheckpointRefused, match=r"commits/1.*--repair"):
        flow.run(spark, checkpoint, once=True, source=source)
    assert Checkpoint(checkpoint).repair() == ["removed commits/1: its batch is repeated, and targets know it"]
    flow.run(spark, checkpoint, once=True, source=source).awaitTermination()
    assert loaded(tmp_path, "count(*), count(DISTINCT id), max(id)", "out") == [(30, 30, 29)]
    released(checkpoint)
    (checkpoint / "commits" / "2").unlink()
    (checkpoint / "offsets" / "2").write_bytes(b"v1\n{")
    shutil.rmtree(tmp_path / "out" / "batch=2")  # as if the crash had come before anything was committed
    Checkpoint(checkpoint).repair()
    flow.run(spark, checkpoint, once=True, source=source).awaitTermination()
    assert loaded(tmp_path, "count(*), count(DISTINCT id), max(id)", "out") == [(30, 30, 29)]


def test_a_checkpoint_belongs_to_one_flow_and_one_run(spark, tmp_path, stream_of):
    source = stream_of([spark.range(10).toDF("id")])
    nodes = [ms.flow.Frame(), ms.flow.ParquetFiles(path=str(tmp_path / "out"))]
    query = Flow("mine", nodes).run(spark, tmp_path / "checkpoint", source=source)
    try:
        query.processAllAvailable()
        with pytest.raises(CheckpointRefused, match="take over"):
            Flow("mine", nodes).run(spark, tmp_path / "checkpoint", source=source)
        Checkpoint(tmp_path / "checkpoint").hold(take_over=True)
        pq.write_table(pa.table({"id": [99]}), tmp_path / "source" / "more.parquet")
        with pytest.raises(Exception, match="taken over"):
            query.awaitTermination(60)
    finally:
        query.stop()
    assert loaded(tmp_path, "count(*), max(id)", "out") == [(10, 9)]
    released(tmp_path / "checkpoint")
    with pytest.raises(CheckpointRefused, match="flow 'mine'"):
        Flow("other", nodes).run(spark, tmp_path / "checkpoint", source=source)
