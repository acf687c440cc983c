"""`spark.readStream.format("millstream")`: each record once, bounded micro-batches, replay, and what staging hears."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from millstream.errors import InputError
from millstream.spark.staging import Options, ranges, register
from millstream.staging import Client, Retention, Server, connect
from staging_area import SCHEMA, free_port, records

ROWS = 20_000


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("staging"), http_port=None) as server:
        with connect(server.url) as client:
            send(client, "orders", 0, ROWS)
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(server.url) as client:
        yield client


def send(client: Client, stream: str, first: int, count: int, source: str = "till") -> None:
    with client.open(stream, source, incarnation="a", schema=SCHEMA) as session:
        for at in range(first, first + count, 1000):
            session.send(at, records(at, min(1000, first + count - at)))
        session.wait(first + count)


def reading(spark: SparkSession, url: str, stream: str = "orders", flow: str = "sales", **options: Any) -> DataFrame:
    reader = spark.readStream.format("millstream").option("url", url).option("stream", stream).option("flow", flow)
    return reader.options(**options).load()


class Sink:
    """Keeps the records of each micro-batch, in a list by its number."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}

    def __call__(self, df: DataFrame, number: int) -> None:
        self.batches[number] = sorted(row["_sequence"] for row in df.select("_sequence").collect())

    @property
    def rows(self) -> list[int]:
        return sorted(row for batch in self.batches.values() for row in batch)


def run(df: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Path) -> StreamingQuery:
    query = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    started = query.start()
    started.awaitTermination(120)
    return started


def test_everything_that_is_available_now_in_bounded_batches(
    spark: SparkSession, server: Server, client: Client, tmp_path: Path
) -> None:
    df = reading(spark, server.url, flow="bounded", maxRowsPerTrigger=7_000, partitions=3)
    assert df.columns == ["number", "text", "_source", "_sequence", "_captured"]
    assert dict(df.dtypes)["_captured"] == "timestamp"
    sink = Sink()
    query = run(df, sink, tmp_path)
    assert [len(batch) for batch in sink.batches.values()] == [7_000, 7_000, 6_000]
    assert sink.rows == list(range(ROWS))
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    assert '"position": 7000' in str(progress[0]["sources"][0]["endOffset"]).replace("'", '"')
    assert '"position": 20000' in str(progress[0]["sources"][0]["latestOffset"]).replace("'", '"')
    # Spark says so when it begins the next batch, or on the next start
    assert client.backlog("orders", "bounded").position >= 14_000
    run(df, sink, tmp_path)
    assert sink.rows == list(range(ROWS))


def test_a_batch_that_failed_is_replayed_with_the_same_rows(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    df = reading(spark, server.url, flow="replay", maxRowsPerTrigger=6_000)
    first = Sink()

    def failing(batch: DataFrame, number: int) -> None:
        first(batch, number)
        if number == 1:
            raise RuntimeError("the target is away")

    with pytest.raises(StreamingQueryException, match="the target is away"):
        run(df, failing, tmp_path)
    again = Sink()
    run(reading(spark, server.url, flow="replay", maxRowsPerTrigger=9_000), again, tmp_path)
    assert again.batches[1] == first.batches[1]
    assert sorted(first.batches[0] + again.rows) == list(range(ROWS))


def test_a_stream_that_goes_on_while_staging_restarts_and_columns_are_added(
    spark: SparkSession, tmp_path: Path
) -> None:
    port = free_port()
    sink = Sink()
    with Server(tmp_path / "s", port=port, http_port=None) as server, connect(server.url) as client:
        send(client, "live", 0, 3_000)
        df = reading(spark, server.url, "live", "f")
        query = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "c")).start()
        wait_for(lambda: len(sink.rows) == 3_000, query)
    time.sleep(0.3)
    with Server(tmp_path / "s", port=port, http_port=None) as server, connect(server.url) as client:
        wider = records(3_000, 500).append_column("extra", pa.array(range(500)))
        with client.open("live", "till", incarnation="a", schema=wider.schema) as session:
            assert session.next == 3_000
            session.send(3_000, wider)
            session.wait(3_500)
        wait_for(lambda: len(sink.rows) == 3_500, query)
        assert sink.rows == list(range(3_500))
        query.stop()
        again = reading(spark, server.url, "live", "g")
        assert again.columns == ["number", "text", "extra", "_source", "_sequence", "_captured"]


def wait_for(done: Callable[[], bool], query: StreamingQuery) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until
        assert query.exception() is None, query.exception()
        time.sleep(0.05)


def test_a_batch_read(spark: SparkSession, server: Server) -> None:
    df = spark.read.format("millstream").options(url=server.url, stream="orders", flow="look").load()
    (row,) = df.selectExpr("count(*)", "sum(number)", "sum(_sequence)", "count(distinct text)").collect()
    assert tuple(row) == (ROWS, ROWS * (ROWS - 1) // 2, ROWS * (ROWS - 1) // 2, ROWS)


def test_positions_that_are_gone_are_an_error_that_says_so(spark: SparkSession, tmp_path: Path) -> None:
    retention = Retention(limit=1 << 20, when_full="drop")
    checkpoint = tmp_path / "c"
    with Server(tmp_path / "s", http_port=None, retention=retention) as server, connect(server.url) as client:
        send(client, "small", 0, 2_000)
        run(reading(spark, server.url, "small", "f"), Sink(), checkpoint)
        send(client, "small", 2_000, 40_000)
        with pytest.raises(StreamingQueryException, match="is gone"):
            run(reading(spark, server.url, "small", "f"), Sink(), checkpoint)
    with Server(tmp_path / "other", http_port=None) as server, connect(server.url) as client:
        send(client, "small", 0, 2_000)
        with pytest.raises(StreamingQueryException, match="another log"):
            run(reading(spark, server.url, "small", "f"), Sink(), checkpoint)


def test_start_at_the_latest(spark: SparkSession, server: Server, client: Client, tmp_path: Path) -> None:
    sink = Sink()
    df = reading(spark, server.url, flow="late", start="latest")
    run(df, sink, tmp_path)
    assert sink.rows == []
    send(client, "orders", 0, 100, source="web")
    run(df, sink, tmp_path)
    assert sink.rows == list(range(100))


def test_ranges() -> None:
    assert [(one.start, one.end) for one in ranges(0, 10, most=4)] == [(0, 10)]
    assert ranges(5, 5, most=4) == []
    parts = ranges(100, 100_100, most=4)
    assert [one.end - one.start for one in parts] == [25_000] * 4
    assert (parts[0].start, parts[-1].end) == (100, 100_100)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"url": "x", "stream": "y"},
        {"nonsense": "1"},
        {"maxRowsPerTrigger": "0"},
        {"partitions": "x"},
        {"start": "now"},
    ],
)
def test_options_that_are_wrong(options: dict[str, str]) -> None:
    complete = {"url": "grpc://x:1", "stream": "s", "flow": "f"} if "url" not in options and options else {}
    with pytest.raises(InputError):
        Options.parse({**complete, **options})
