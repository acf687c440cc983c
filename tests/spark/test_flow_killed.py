"""A driver that is killed around its commits: the batch is repeated as it was, nothing is lost, nothing is doubled."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.cli import main
from millstream.errors import CheckpointRefused
from millstream.failpoints import VARIABLE
from millstream.spark.flow import Flow
from millstream.warehouse import Server, connect

FLOW = """
flow: killed
warehouse: {url}
nodes:
  - source: files
    path: orders
    max_files: 1
    columns: id bigint, quantity int, product bigint
  - select: quantity > 0
  - surrogate_key: product_key
    key: product
  - replicate: [facts, view]
    name: both
  - target: facts
    after: both.facts
  - target: totals
    mode: aggregate
    key: product_key
    aggregates: {{quantity: sum(quantity), orders: count(*)}}
    after: both.view
"""


RUN = [sys.executable, "-c", "import sys; from millstream.cli import main; sys.exit(main())", "run"]


def run(folder: Path, failpoints: str = "", *options: str) -> subprocess.CompletedProcess[str]:
    command = [*RUN, str(folder / "flow.yaml"), "--once", "--checkpoint", str(folder / "checkpoint"), *options]
    environment = os.environ | {VARIABLE: failpoints}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders").mkdir()
    for batch in range(2):
        ids = range(batch * 1000, batch * 1000 + 1000)
        rows = {
            "id": list(ids),
            "quantity": pa.array([i % 5 for i in ids], pa.int32()),
            "product": [i % 9 for i in ids],
        }
        pq.write_table(pa.table(rows), tmp_path / "orders" / f"{batch}.parquet")
        os.utime(tmp_path / "orders" / f"{batch}.parquet", (batch + 1, batch + 1))
    return tmp_path


@pytest.mark.slow
def test_killed_before_between_and_after_the_commits(spark, folder, capsys):
    with Server(folder / "warehouse.duckdb", port=0) as server, connect(server.url) as client:
        (folder / "flow.yaml").write_text(FLOW.format(url=server.url))
        # the first batch, when one target has it and the other has not
        assert run(folder, "flow.commit-totals=sleep:20,flow.committed-facts=kill").returncode == -signal.SIGKILL
        assert client.query("SELECT count(*) AS n FROM facts").to_pylist() == [{"n": 800}]
        assert client.query("SELECT count(*) AS n FROM totals").to_pylist() == [{"n": 0}]
        # the second batch, before any target has it
        assert run(folder, "flow.before-commit=kill:2").returncode == -signal.SIGKILL
        assert client.query("SELECT count(*) AS n FROM facts").to_pylist() == [{"n": 800}]
        assert client.query("SELECT sum(orders) AS n FROM totals").to_pylist() == [{"n": 800}]
        # the second batch again, when both have it and Spark does not know
        assert run(folder, "flow.after-commit=kill").returncode == -signal.SIGKILL
        assert client.query("SELECT sum(orders) AS n FROM totals").to_pylist() == [{"n": 1600}]

        flow = Flow.load(folder / "flow.yaml")
        query = flow.run(spark, folder / "checkpoint", once=True)
        query.awaitTermination()
        assert all(receipt.duplicate for receipt in query.reports[0].receipts.values())
        expected = {"n": 1600, "ids": 1600, "low": 1, "high": 1999, "total": 4000}
        sql = "SELECT count(*) n, count(DISTINCT id) ids, min(id) low, max(id) high, sum(quantity) total FROM facts"
        assert client.query(sql).to_pylist() == [expected]
        sql = "SELECT sum(orders) n, sum(quantity) total, count(*) products, max(product_key) high FROM totals"
        assert client.query(sql).to_pylist() == [{"n": 1600, "total": 4000, "products": 9, "high": 9}]
        sql = "SELECT product, count(DISTINCT product_key) n FROM facts GROUP BY product HAVING n > 1"
        assert client.query(sql).num_rows == 0
        assert client.query("SELECT count(*) AS n FROM rejects").to_pylist() == [{"n": 400}]
        assert client.query("SELECT count(*) AS n FROM millstream.balance WHERE NOT balanced").to_pylist() == [{"n": 0}]
        assert main(["reconcile", server.url, "--flow", "killed"]) == 0
        assert "2,000" in capsys.readouterr().out

        # a new checkpoint for a flow that the warehouse knows is refused, unless it is meant
        with pytest.raises(CheckpointRefused, match="was it lost"):
            flow.run(spark, folder / "other", once=True)
        flow.run(spark, folder / "other", once=True, fresh=True).awaitTermination()
        assert client.query("SELECT count(*) AS n FROM facts").to_pylist() == [{"n": 3200}]


@pytest.mark.slow
def test_killed_with_rows_in_queues(folder, capsys):
    """Each activity is a query of its own, and goes on where it was."""
    with Server(folder / "warehouse.duckdb", port=0) as server, connect(server.url) as client:
        (folder / "flow.yaml").write_text(f"queues: all\n{FLOW.format(url=server.url)}")
        # batches in turn: two of the source, two of the filter, two of the key, ...
        for point in ("flow.after-commit=kill:4", "flow.before-commit=kill:2", "flow.after-commit=kill:3"):
            done = run(folder, point)
            assert done.returncode == -signal.SIGKILL, point
            assert not re.search(r"\w -\d", done.stdout), "a queue is shorter than nothing"
        done = run(folder)
        assert (done.returncode, re.findall(r"\w -\d", done.stdout)) == (0, [])
        sql = "SELECT count(*) n, count(DISTINCT id) ids, min(id) low, max(id) high, sum(quantity) total FROM facts"
        assert client.query(sql).to_pylist() == [{"n": 1600, "ids": 1600, "low": 1, "high": 1999, "total": 4000}]
        sql = "SELECT sum(orders) n, sum(quantity) total, count(*) products, max(product_key) high FROM totals"
        assert client.query(sql).to_pylist() == [{"n": 1600, "total": 4000, "products": 9, "high": 9}]
        assert client.query("SELECT count(*) AS n FROM rejects").to_pylist() == [{"n": 400}]
        assert main(["reconcile", server.url, "--flow", "killed"]) == 0
        assert "every row is accounted for" in capsys.readouterr().out


@pytest.mark.slow
def test_the_jvm_is_killed_and_all_processes_are_told_to_end(folder):
    with Server(folder / "warehouse.duckdb", port=0) as server, connect(server.url) as client:
        (folder / "flow.yaml").write_text(FLOW.format(url=server.url))
        command = [*RUN, str(folder / "flow.yaml"), "--checkpoint", str(folder / "checkpoint")]
        environment = os.environ | {VARIABLE: "flow.before-commit=sleep:2"}
        for number, signed in enumerate((signal.SIGKILL, signal.SIGTERM)):
            flow = subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            try:
                assert flow.stdout is not None
                while "running on" not in (line := flow.stdout.readline()):
                    assert line
                if signed == signal.SIGKILL:
                    (jvm,) = [one for one in psutil.Process(flow.pid).children(recursive=True) if one.name() == "java"]
                    jvm.kill()
                else:  # as a service is ended, in the middle of a batch
                    os.killpg(flow.pid, signed)
                out, errors = flow.communicate(timeout=120)
            finally:
                flow.kill()
            if number == 0:
                assert flow.returncode == 1
                assert errors.splitlines()[-1].startswith("millstream: the JVM of Spark has ended")
            else:
                assert (flow.returncode, errors) == (0, ""), errors
                assert "every row is accounted for" in out or "no row has come yet" in out
        assert run(folder).returncode == 0
        sql = "SELECT count(*) n, count(DISTINCT id) ids, sum(quantity) total FROM facts"
        assert client.query(sql).to_pylist() == [{"n": 1600, "ids": 1600, "total": 4000}]
