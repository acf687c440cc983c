"""The same build and joins on a standalone cluster of separate processes, and through Spark Connect."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

import millstream
from millstream.master import build_local
from millstream.source import FlowRegulator
from millstream.spark.session import find_java
from millstream.staging import Server as Staging
from millstream.warehouse import Server as Warehouse
from millstream.warehouse import connect

PROGRAM = Path(__file__).with_name("programs") / "everything.py"
SPARK_CLASS = Path(pyspark.__file__).with_name("bin") / "spark-class"


def environment():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {
        **kept,
        "JAVA_HOME": find_java(),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(millstream.__file__).parents[1]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run(folder, where):
    done = subprocess.run(
        [sys.executable, PROGRAM, folder, where],
        env=environment(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
    )
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert results, done.stderr[-4000:]
    return json.loads(results[0].removeprefix("RESULT "))


def check(found):
    assert found["master"] == [4000, 1]
    for how in ("left", "left_semi"):
        assert found[how]["same"]
        assert found[how]["rows"] > 0
        metrics = found[how]["metrics"]
        assert metrics["rows_in"] == 5000 == metrics["matched"] + metrics["unmatched"]
        assert metrics["rows_out"] == found[how]["rows"]
    assert found["stream"]["rows"] == found["stream"]["expected"]
    assert found["pins"] == [0, 1, 2]
    assert len(found["stream"]["metrics"]) == 3
    for batch in found["stream"]["metrics"]:
        (counters,) = batch.values()
        assert counters["rows_in"] == 5000
        assert counters["version"] == 1
        assert 0 < counters["memory_peak"] <= counters["memory_budget"] == 8_000_000


def test_spark_connect(tmp_path):
    found = run(tmp_path, "connect")
    assert found["kind"] == "pyspark.sql.connect.session"
    check(found)


@pytest.fixture
def cluster(tmp_path):
    """A master and two workers of Spark's own cluster manager, all separate processes."""
    port, web = free_port(), free_port()
    processes = []

    def start(*arguments):
        log = (tmp_path / f"spark-{len(processes)}.log").open("w")
        env = {**environment(), "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_MEMORY": "300m"}
        processes.append(subprocess.Popen([SPARK_CLASS, *arguments], env=env, cwd=tmp_path, stdout=log, stderr=log))

    try:
        start(
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            str(web),
        )
        for number in range(2):
            start(
                "org.apache.spark.deploy.worker.Worker",
                "-c",
                "1",
                "-m",
                "1g",
                "--webui-port",
                str(free_port()),
                "-d",
                str(tmp_path / f"worker-{number}"),
                f"spark://127.0.0.1:{port}",
            )
        wait_for_workers(web, 2)
        yield f"spark://127.0.0.1:{port}"
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_workers(web: int, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=5) as answer:
                if len(re.findall(r'"state"\s*:\s*"ALIVE"', answer.read().decode())) >= count:
                    return
        except OSError:
            pass
        time.sleep(0.3)
    raise TimeoutError("the workers of the cluster did not register")


def test_standalone_cluster(tmp_path, cluster):
    found = run(tmp_path, cluster)
    check(found)
    assert len(found["executors"]) == 2


FLOW = """
flow: orders
warehouse: {warehouse}
nodes:
  - source: staging
    stream: orders
    url: {staging}
  - select: quantity > 0
  - surrogate_key: key
    key: product
  - enrich: {products}
    on: product
    memory: 8MB
  - replicate: [facts, view]
    name: both
  - target: facts
    after: both.facts
  - target: totals
    mode: aggregate
    key: name
    aggregates: {{quantity: sum(quantity)}}
    after: both.view
"""


def test_a_flow_file_on_a_standalone_cluster(tmp_path, cluster):
    """Executors read staging, look products up and send parts to the warehouse; the driver commits."""
    products = pa.table({"product": range(100), "name": [f"p{n % 7}" for n in range(100)]})
    build_local(products, tmp_path / "products", key="product")
    schema = pa.schema([("id", pa.int64()), ("product", pa.int64()), ("quantity", pa.int32())])
    with (
        Staging(tmp_path / "staging", http_port=None) as staging,
        Warehouse(tmp_path / "w.duckdb", port=0) as warehouse,
    ):
        with FlowRegulator(staging.url, "orders", source="till", spool=tmp_path / "spool", schema=schema) as source:
            for number in range(5_000):
                source.send((number, number % 100, number % 5))
            assert source.flush(30)
        places = {"warehouse": warehouse.url, "staging": staging.url, "products": tmp_path / "products"}
        (tmp_path / "flow.yaml").write_text(FLOW.format(**places))
        program = [sys.executable, PROGRAM.with_name("flow_file.py"), tmp_path / "flow.yaml", tmp_path / "checkpoint"]
        done = subprocess.run(
            [*program, cluster],
            env=environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert "RESULT ended" in done.stdout, done.stderr[-4000:]
        with connect(warehouse.url) as client:

            def ask(sql):
                return [tuple(row.values()) for row in client.query(sql).to_pylist()]

            good = [number for number in range(5_000) if number % 5]
            assert ask("SELECT count(*), count(DISTINCT id), sum(id) FROM facts") == [(len(good), len(good), sum(good))]
            assert ask("SELECT count(*) FROM rejects") == [(5_000 - len(good),)]
            assert ask("SELECT count(*), sum(quantity) FROM totals") == [(7, sum(number % 5 for number in good))]
