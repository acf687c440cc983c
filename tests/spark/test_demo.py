"""`millstream demo` as a person runs it: a short day in a small shop, and one that is interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import psutil
import pytest

from millstream.cli import main
from millstream.cli.demo import proof
from millstream.cli.demo.counting import Sources
from millstream.errors import MillstreamError
from millstream.spark import session
from millstream.warehouse import Server, connect

COMMAND = [sys.executable, "-c", "import sys; from millstream.cli import main; sys.exit(main())", "demo"]


def processes_of(folder: Path) -> list[list[str]]:
    """The command lines of all processes that work in a folder."""
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [words for words in found if any(str(folder) in word for word in words)]


@pytest.mark.slow
def test_the_books_balance_and_a_missing_order_shows(tmp_path: Path) -> None:
    folder, options = tmp_path / "shop", ["--rate", "400", "--seconds", "3", "--products", "5000"]
    command = [*COMMAND, *options, "--cache", str(tmp_path / "cache"), "--keep", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "every order of flow shop is accounted for, once" in done.stdout
    assert "fresh p50" in done.stdout
    assert "DIFFERENT" not in done.stdout
    assert processes_of(folder) == []

    orders = (folder / "till" / "till.csv").read_text().splitlines()[1:]
    with duckdb.connect(folder / "warehouse.duckdb") as database:
        sql = "SELECT count(*) FROM fact_orders WHERE _source = 'till'"
        (loaded,) = database.execute(sql).fetchone() or (0,)
        (rejected,) = database.execute("SELECT count(*) FROM rejects WHERE _source = 'till'").fetchone() or (0,)
        unreadable = sum("?" in line for line in orders)
        assert 0 < loaded == len(orders) - rejected - unreadable
        database.execute("DELETE FROM fact_orders WHERE order_id = (SELECT min(order_id) FROM fact_orders)")

    with Server(folder / "warehouse.duckdb", port=0) as server, connect(server.url) as client:
        told = {(one.source, one.table): one.balanced for one in proof.lines(Sources(folder), client)}
    expected = {(source, table): True for source in ("legacy", "till") for table in (proof.FACTS, proof.VIEW)}
    assert told == {**expected, ("legacy", proof.FACTS): False}


def test_an_interrupt_ends_everything(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    command = [*COMMAND, "--products", "100", "--cache", str(tmp_path / "cache"), "--keep", str(folder)]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 60
        while not (folder / "logs" / "flow.log").exists():
            assert time.monotonic() < until
            assert demo.poll() is None
            time.sleep(0.1)
        assert len(processes_of(folder)) >= 3
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=60)
    finally:
        demo.kill()
    assert (demo.returncode, errors) == (130, "millstream: interrupted\n")
    assert processes_of(folder) == []


def test_without_java_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nowhere() -> str:
        raise MillstreamError("Spark needs Java 17 or 21")

    monkeypatch.setattr(session, "find_java", nowhere)
    assert main(["demo", "--cache", str(tmp_path / "cache")]) == 1
    assert capsys.readouterr() == ("", "millstream: Spark needs Java 17 or 21\n")
    assert not (tmp_path / "cache").exists()
