"""Loading into the warehouse from Spark: parts from the tasks, the commit from the driver, once for each batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from millstream.errors import BatchConflict, InputError, UnknownColumn
from millstream.spark import load as loading
from millstream.spark.load import SendParts, load
from millstream.warehouse import Client, Server, TableSpec, connect

SPEC = TableSpec(
    "orders",
    pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.decimal128(12, 2)),
            ("_captured", pa.timestamp("us", tz="UTC")),
        ]
    ),
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "warehouse.duckdb", token="secret") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Client:
    return connect(server.url, token="secret", patience=5)


def orders(spark, first, count, partitions=2):
    numbers = spark.range(first, first + count, 1, partitions)
    return numbers.select(
        F.concat(F.lit("name "), "id").alias("name"),
        "id",
        F.timestamp_seconds(F.col("id")).alias("at"),
        (F.col("id") / 4).cast("decimal(12,2)").alias("price"),
        F.current_timestamp().alias("_captured"),
        F.lit("left out").alias("other"),
    )


def ids(client):
    return [row["id"] for row in client.query("SELECT id FROM orders ORDER BY id").to_pylist()]


def test_batches_are_loaded_once(spark, server, client):
    for batch in range(2):
        receipt = load(orders(spark, 1000 * batch, 1000), server.url, SPEC, flow="f", batch=batch, token="secret")
        assert (receipt.rows, receipt.duplicate) == (1000, False)
    assert load(orders(spark, 0, 5), server.url, SPEC, flow="f", batch=0, token="secret").duplicate
    assert ids(client) == list(range(2000))
    row = client.query("SELECT * FROM orders WHERE id = 7").to_pylist()[0]
    assert (row["name"], row["at"].timestamp(), str(row["price"])) == ("name 7", 7.0, "1.75")
    empty = load(orders(spark, 0, 10).where("id < 0"), server.url, SPEC, flow="f", batch=2, token="secret")
    assert empty.rows == 0
    later = load(
        orders(spark, 2000, 10), server.url, SPEC, flow="f", batch=3, token="secret", wait=False, counts={"in": 12}
    )
    assert later.state in ("accepted", "committed")
    assert client.wait("orders", flow="f", batch=3).counts == {"in": 12}
    assert len(ids(client)) == 2010


def test_a_small_batch_costs_little_more_than_its_job(spark, server):
    """Next to the same rows through a task that sends nothing, in turns, so that both see the same machine."""
    rows = orders(spark, 0, 100, 1).select(*SPEC.schema.names).localCheckpoint()
    loads, bare = [], []
    for batch in range(10):
        begun = time.perf_counter()
        load(rows, server.url, SPEC, flow="f", batch=batch, token="secret")
        between = time.perf_counter()
        rows.mapInArrow(lambda batches: batches, rows.schema).collect()
        loads.append(between - begun)
        bare.append(time.perf_counter() - between)
    print(f"load {min(loads):.3f} s, bare job {min(bare):.3f} s")
    assert min(loads) < 5 * min(bare)


def test_a_stream_that_is_replayed_and_one_with_another_checkpoint(spark, server, client, stream_of, tmp_path):
    source = stream_of([orders(spark, 100 * number, 100) for number in range(3)])
    receipts = []

    def each(df, batch):
        receipts.append(load(df, server.url, SPEC, flow="f", batch=batch, token="secret"))

    def run(checkpoint):
        query = source.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
        query = query.trigger(availableNow=True).start()
        query.awaitTermination()

    checkpoint = tmp_path / "checkpoint"
    run(checkpoint)
    assert [(one.batch, one.rows, one.duplicate) for one in receipts] == [(n, 100, False) for n in range(3)]
    # as if the driver had died after the target's commit and before its own
    for file in (checkpoint / "commits").glob("*2*"):
        file.unlink()
    run(checkpoint)
    assert (receipts[-1].batch, receipts[-1].duplicate) == (2, True)
    assert ids(client) == list(range(300))
    with pytest.raises(Exception) as caught:
        run(tmp_path / "another")
    assert BatchConflict.__name__ in str(caught.value) or "another query" in str(caught.value)
    assert ids(client) == list(range(300))


def test_parts_of_attempts_that_spark_did_not_count_never_show(spark, server, client, monkeypatch):
    """A task sends its parts, dies, and is tried again: here its first attempt is made by hand."""
    client.create(SPEC)
    rows = orders(spark, 0, 50, 1).select(*SPEC.schema.names).toArrow().cast(SPEC.schema)
    task = SendParts(server.url, "secret", SPEC, "f", 0)
    (died,) = [batch.to_pylist() for batch in task(iter(rows.to_batches()))]
    assert died[0]["rows"] == 50
    assert ids(client) == []
    assert load(orders(spark, 0, 50, 1), server.url, SPEC, flow="f", batch=0, token="secret").rows == 50
    (zombie,) = [batch.to_pylist() for batch in task(iter(rows.to_batches()))]
    assert zombie[0]["part"] != died[0]["part"]
    assert ids(client) == list(range(50))
    assert client.health()["staged_bytes"] == 0


def test_parts_are_cut_to_size(spark, server, client, monkeypatch):
    monkeypatch.setattr(loading, "_PART_BYTES", 2_000)
    task = SendParts(server.url, "secret", SPEC, "f", 0)
    client.create(SPEC)
    rows = orders(spark, 0, 1000, 1).select(*SPEC.schema.names).toArrow().cast(SPEC.schema)
    (sent,) = [batch.to_pylist() for batch in task(iter(rows.to_batches(max_chunksize=100)))]
    assert len(sent) == 10
    client.commit("orders", flow="f", batch=0, parts=[one["part"] for one in sent])
    assert ids(client) == list(range(1000))


def test_bad_input(spark, server):
    with pytest.raises(UnknownColumn, match="price"):
        load(orders(spark, 0, 1).drop("price"), server.url, SPEC, flow="f", batch=0, token="secret")
    with pytest.raises(InputError, match="foreachBatch"):
        load(spark.readStream.format("rate").load(), server.url, SPEC, flow="f", batch=0, token="secret")
    with pytest.raises(InputError):
        load(orders(spark, 0, 1), server.url, SPEC, flow="f", batch=-1, token="secret")


def test_the_warehouse_is_replaced_between_batches(spark, tmp_path):
    """The table is made anew although this process remembers that it has made it."""
    rows = orders(spark, 0, 10, 1)
    with Server(tmp_path / "one.duckdb", token="secret") as one:
        port, url = one.port, one.url
        load(rows, url, SPEC, flow="f", batch=0, token="secret")
    with Server(tmp_path / "two.duckdb", token="secret", port=port):
        assert load(rows, url, SPEC, flow="f", batch=1, token="secret").rows == 10
