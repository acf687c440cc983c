"""Waiting for staging and warehouse: it is said what is awaited, and the wait has an end if one is given."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.cli import main, run
from millstream.errors import MillstreamError
from millstream.flow import Graph, Staging, Table
from millstream.flow.services import absent, await_services
from millstream.staging import Server as StagingServer
from millstream.staging import connect
from millstream.warehouse import Server as WarehouseServer


def graph(staging: str, warehouse: str) -> Graph:
    return Graph.build("f", [Staging(stream="orders", url=staging), Table(table="facts")], warehouse=warehouse)


def test_nothing_is_there():
    said: list[str] = []
    with pytest.raises(MillstreamError, match=r"did not come in 0\.2 s"):
        await_services(graph("grpc://127.0.0.1:9", "http://127.0.0.1:9"), patience=0.2, say=said.append)
    assert said == ["waiting for staging at grpc://127.0.0.1:9 and the warehouse at http://127.0.0.1:9"]


def test_a_stream_that_nobody_has_sent_to_is_awaited(tmp_path):
    with (
        StagingServer(tmp_path / "staging", port=0, http_port=None) as staging,
        WarehouseServer(tmp_path / "warehouse.duckdb", port=0) as warehouse,
    ):
        wanted = graph(staging.url, warehouse.url)
        assert [line.partition(" in ")[0] for line in absent(wanted)] == ["the stream orders"]
        with connect(staging.url) as client:
            client.open("orders", "till", incarnation="a", schema=pa.schema([("id", pa.int64())])).close()
        assert absent(wanted) == []


def test_the_commands_say_what_is_wrong(tmp_path, capsys):
    assert main(["reconcile", "nonsense"]) == 1
    assert "is not the address of a warehouse" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "none.yaml"), "--checkpoint", str(tmp_path / "c")]) == 1
    assert "none.yaml" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", "flow.yaml"])
    assert "--checkpoint" in capsys.readouterr().err


def test_a_torn_checkpoint_is_said_before_spark_starts(tmp_path, capsys):
    (tmp_path / "flow.yaml").write_text("flow: f\nnodes:\n  - source: files\n    path: x\n  - parquet: y\n")
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    (tmp_path / "c" / "offsets" / "0").touch()
    assert main(["run", str(tmp_path / "flow.yaml"), "--checkpoint", str(tmp_path / "c")]) == 1
    assert "Run again with --repair" in capsys.readouterr().err


def test_a_running_flow_says_once_that_a_service_is_away(monkeypatch, capsys):
    monkeypatch.setattr(run, "SILENCE", 0)
    watch = run.Watch(graph("grpc://127.0.0.1:9", "http://127.0.0.1:9"))
    watch._said = 0
    for _ in range(3):
        watch.line(None)
    assert capsys.readouterr().out.count("waiting for") == 1
