"""The sources of the shop: killed and started again, they go on in their files, and their orders are counted there."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from millstream.cli.demo import sources
from millstream.cli.demo.counting import Sources
from millstream.staging import Server, connect


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("legacy", "till", "capture"):
        (tmp_path / name).mkdir()
    return tmp_path


@contextmanager
def open_shop(folder: Path, rate: int = 2000) -> Iterator[None]:
    """The till takes orders while the block runs."""
    rates = folder / "rates"
    rates.write_text(str(rate))
    told = {"share": 0.5, "products": 1000}
    thread = threading.Thread(target=sources.till, args=(folder / "till", rates), kwargs=told)
    thread.start()
    try:
        yield
    finally:
        rates.write_text(sources.CLOSED)
        thread.join(10)


def test_the_till_goes_on_behind_its_last_whole_line(folder: Path) -> None:
    counted = Sources(folder)
    assert counted.sent() == {"legacy": 0, "till": 0}
    with open_shop(folder):
        time.sleep(0.3)
    first = counted.sent()["till"]
    file = folder / "till" / "till.csv"
    whole = file.read_bytes()
    file.write_bytes(whole + b"1000000999,17,3")  # killed in the middle of a line
    with open_shop(folder):
        time.sleep(0.3)
    lines = file.read_text().splitlines()
    assert file.read_bytes().startswith(whole)
    assert lines[0] == ",".join(sources.COLUMNS)
    numbers = [int(line.split(",")[0]) for line in lines[1:]]
    assert numbers == list(range(1_000_000_001, 1_000_000_001 + len(numbers)))
    assert 0 < first < len(numbers) == Sources(folder).sent()["till"]


def test_rates_are_kept(folder: Path) -> None:
    rates, taken = folder / "rates", []
    rates.write_text("1000")

    def take(count: int) -> None:
        taken.append(count)
        if sum(taken) >= 100:
            rates.write_text(sources.CLOSED)

    begun = time.monotonic()
    sources.keep_rate(rates, 0.5, take)
    assert sum(taken) <= 500 * (time.monotonic() - begun) + 1


def test_unreadable_lines_are_counted_once(folder: Path) -> None:
    line = '{"record": 7, "reason": "x", "value": "y"}\n'
    (folder / "capture" / "rejects.jsonl").write_text(line + '{"rec\n' + line + line.replace("7", "9"))
    assert Sources(folder).unreadable() == 2


def test_a_killed_legacy_application_sends_each_order_once(folder: Path) -> None:
    rates = folder / "rates"
    with Server(folder / "staging", http_port=None) as server, connect(server.url) as client:
        port = server.url.rpartition(":")[2]
        settings = f"[capture]\nblock = 100\nhost = 127.0.0.1\nport = {port}\nstream = orders\nsource = legacy\n"
        (folder / "legacy" / "capture.ini").write_text(settings)
        rates.write_text("977")
        command = [sys.executable, "-m", "millstream.cli.demo.sources", "legacy", str(folder / "legacy"), str(rates)]
        command += ["--share", "1", "--products", "1000"]
        counted, until = Sources(folder), time.monotonic() + 30
        with subprocess.Popen(command) as killed:
            while counted.sent()["legacy"] < 500 and time.monotonic() < until:
                time.sleep(0.02)
            killed.kill()
        before = counted.sent()["legacy"]
        assert before >= 500
        rates.write_text(sources.CLOSED)
        subprocess.run(command, check=True, timeout=30)
        rows = pa.Table.from_batches(list(client.read("orders", 0, end=client.stream("orders").end)))
    assert rows["order_id"].to_pylist() == list(range(1, before + 1))
