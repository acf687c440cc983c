"""A flow from source to warehouse whose tasks die, whose target stands still, and whose network cannot be trusted."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import psutil
import pyarrow as pa
import pytest

import millstream as ms
from millstream.source import FlowRegulator
from millstream.spark.flow import Flow
from millstream.spark.flow import run as running
from millstream.warehouse import Client, Server, connect
from proxy import Proxy
from staging_area import StagingProcess
from warehousing import ServerProcess

SCHEMA = pa.schema([("id", pa.int64()), ("quantity", pa.int32()), ("note", pa.string())])

FLOW = """
flow: faults
warehouse: {warehouse}
nodes:
  - source: staging
    stream: orders
    url: {staging}
    max_rows: 20_000
  - select: quantity > 0
  - surrogate_key: key
    key: quantity
  - replicate: [facts, view]
    name: both
  - target: facts
    after: both.facts
  - target: totals
    mode: aggregate
    key: key
    aggregates: {{quantity: sum(quantity), orders: count(*)}}
    after: both.view
"""


def send(source: FlowRegulator, numbers: range) -> None:
    for number in numbers:
        source.send((number, number % 10, "x" * 100))


def check(client: Client, count: int) -> None:
    """Orders 0 to `count` are in both targets and in the rejects, each once."""
    facts = "SELECT count(*), count(DISTINCT id), min(id), max(id), sum(id), sum(quantity) FROM facts"
    good = [number for number in range(count) if number % 10]
    expected = (len(good), len(good), min(good), max(good), sum(good), sum(number % 10 for number in good))
    assert rows(client, facts) == [expected]
    assert rows(client, "SELECT sum(orders), sum(quantity), count(*) FROM totals") == [(expected[0], expected[5], 9)]
    rejects = "SELECT count(*), count(DISTINCT _sequence), sum(_sequence) FROM rejects"
    bad = range(0, count, 10)
    assert rows(client, rejects) == [(len(bad), len(bad), sum(bad))]
    assert rows(client, "SELECT count(*) FROM millstream.balance WHERE NOT balanced") == [(0,)]


def rows(client: Client, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in client.query(sql).to_pylist()]


def wait_for(done: Callable[[], bool], *, seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, what
        time.sleep(0.2)


@pytest.mark.slow
def test_a_task_that_dies_when_all_its_parts_are_sent(spark, tmp_path, stream_of, monkeypatch):
    """Spark tries it again; what the first attempt has left in the warehouse never shows, and is thrown away."""
    marker = tmp_path / "killed"
    real = running.FanOut

    class Dying(real):  # type: ignore[misc, valid-type]
        def __call__(self, batches):
            report = list(real.__call__(self, batches))  # by now everything is sent
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return iter(report)

    monkeypatch.setattr(running, "FanOut", Dying)
    orders = spark.range(1000).selectExpr("id", "cast(id % 10 as int) quantity")
    with Server(tmp_path / "warehouse.duckdb", port=0) as server, connect(server.url) as client:
        nodes = [ms.flow.Frame(), ms.flow.Select(condition="quantity > 0"), ms.flow.Table(table="facts")]
        flow = Flow("faults", nodes, warehouse=server.url)
        query = flow.run(spark, tmp_path / "checkpoint", once=True, source=stream_of([orders]))
        query.awaitTermination()
        assert marker.exists()
        assert rows(client, "SELECT count(*), count(DISTINCT id), sum(id) FROM facts") == [(900, 900, 450_000)]
        assert rows(client, "SELECT count(*) FROM rejects") == [(100,)]
        assert client.health()["staged_bytes"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_target_that_stands_still_for_a_minute(spark, tmp_path):
    """Staging fills up to its limit, then the spool of the source; memory does not grow, and then it catches up."""
    with (
        StagingProcess(tmp_path / "staging", "--limit", "4MiB") as staging,
        ServerProcess(tmp_path / "warehouse.duckdb", parts=tmp_path / "parts") as warehouse,
    ):
        source = FlowRegulator(staging.url, "orders", source="till", spool=tmp_path / "spool", schema=SCHEMA)
        send(source, range(1_000))
        assert source.flush(30)
        (tmp_path / "flow.yaml").write_text(FLOW.format(warehouse=warehouse.url, staging=staging.url))
        query = Flow.load(tmp_path / "flow.yaml").run(spark, tmp_path / "checkpoint")
        client = warehouse.client(patience=100)
        try:
            wait_for(lambda: query.reports != [], seconds=60, what="no batch was loaded")
            warehouse.process.send_signal(signal.SIGSTOP)
            stopped, count = time.monotonic(), 1_000
            parts = [psutil.Process(), psutil.Process(staging.process.pid)]
            before = [part.memory_info().rss for part in parts]
            while time.monotonic() < stopped + 60:
                begun = time.monotonic()
                send(source, range(count, count + 500))
                assert time.monotonic() - begun < 5, "the source was held up"
                count += 500
                time.sleep(0.3)
            assert query.isActive
            assert source.stats.spooled > 10_000
            assert "has reached its limit" in source.stats.problem
            log = sum(file.stat().st_size for file in (tmp_path / "staging").rglob("*") if file.is_file())
            assert log < 8 << 20
            grown = [part.memory_info().rss - rss for part, rss in zip(parts, before, strict=True)]
            assert max(grown) < 200_000_000, grown
            warehouse.process.send_signal(signal.SIGCONT)
            assert source.flush(240), source.stats  # a request that came to nothing is given up after 60 s
            wait_for(
                lambda: rows(client, "SELECT count(*) FROM facts") == [(count * 9 // 10,)],
                seconds=120,
                what="it does not catch up",
            )
            query.processAllAvailable()
            assert source.close()
            assert source.stats.dropped == 0
        finally:
            warehouse.process.send_signal(signal.SIGCONT)
            query.stop()
        check(client, count)


TROUBLE: list[Callable[[Proxy], None]] = [Proxy.cut, Proxy.close, Proxy.half_open, Proxy.drop_answers, Proxy.reset]


@pytest.mark.slow
def test_a_network_that_fails_everywhere_at_random(spark, tmp_path):
    """Between source and staging, staging and flow, flow and warehouse."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with (
        StagingProcess(tmp_path / "staging") as staging,
        Server(tmp_path / "warehouse.duckdb", port=0) as warehouse,
        connect(warehouse.url) as client,
        Proxy("127.0.0.1", int(staging.url.rpartition(":")[2])) as sending,
        Proxy("127.0.0.1", int(staging.url.rpartition(":")[2])) as reading,
        Proxy("127.0.0.1", warehouse.port) as loading,
    ):
        source = FlowRegulator(
            sending.url, "orders", source="till", spool=tmp_path / "spool", schema=SCHEMA, timeout=1.0
        )
        send(source, range(1_000))
        assert source.flush(30)
        url = f"http://127.0.0.1:{loading.port}"
        (tmp_path / "flow.yaml").write_text(FLOW.format(warehouse=url, staging=reading.url))
        query = Flow.load(tmp_path / "flow.yaml").run(spark, tmp_path / "checkpoint")
        try:
            count = 1_000
            for _ in range(15):
                proxy, trouble = chance.choice((sending, reading, loading)), chance.choice(TROUBLE)
                trouble(proxy)
                until = time.monotonic() + chance.uniform(0.2, 2.5)
                while time.monotonic() < until:
                    send(source, range(count, count + 100))
                    count += 100
                    time.sleep(0.05)
                proxy.heal()
                time.sleep(chance.uniform(0.0, 1.0))
            assert source.flush(60), f"seed {seed}: {source.stats}"
            assert source.close()
            enough = [(count * 9 // 10,)]
            wait_for(
                lambda: rows(client, "SELECT count(*) FROM facts") == enough,
                seconds=120,
                what=f"seed {seed}: rows lack",
            )
            query.processAllAvailable()
        finally:
            query.stop()
        check(client, count)
