"""The legacy application of the examples: its keyed file keeps what it is told, and the hook sends it."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from millstream.staging import Server, connect

FOLDER = Path(__file__).parents[2] / "examples" / "legacy_orders"


@pytest.fixture
def isam(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    import isam  # type: ignore[import-not-found]

    yield isam
    del sys.modules["isam"]


def test_a_keyed_file_keeps_records_in_the_order_of_its_keys(isam: ModuleType, tmp_path: Path) -> None:
    keys = random.Random(5).sample(range(100_000), 3_000)
    with isam.open(tmp_path / "f", "<qqi", keys=(0, 1)) as file:
        for key in keys:
            file.write((key, key % 10, 7))
        with pytest.raises(isam.DuplicateKey):
            file.write((keys[0], 0, 0))
        assert len(file) == 3_000
    with isam.open(tmp_path / "f", "<qqi", keys=(0, 1)) as file:
        assert [record[0] for record in file.scan()] == sorted(keys)
        assert file.read(keys[5]) == (keys[5], keys[5] % 10, 7)
        assert file.read(100_001) is None
        by_second = [record[1] for record in file.scan(key=1)]
        assert by_second == sorted(key % 10 for key in keys)


def test_an_index_keeps_the_pages_it_used_last(
    isam: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isam, "_KEPT", 3)
    keys = random.Random(1).sample(range(1_000_000), 5_000)
    records = [(key, key % 97, number) for number, key in enumerate(keys)]
    with isam.open(tmp_path / "f", "<qqi", keys=(0, 1)) as file:
        for record in records:
            file.write(record)
        assert len(file._indexes[0]._homes) > 20  # pages
        assert all(len(index._pages) <= 3 for index in file._indexes)
        assert list(file.scan()) == sorted(records)
    with isam.open(tmp_path / "f", "<qqi", keys=(0, 1)) as file:
        assert len(file) == 5_000
        assert list(file.scan(50, key=1)) == sorted((r for r in records if r[1] >= 50), key=lambda r: (r[1], r[2]))
        with pytest.raises(isam.DuplicateKey):
            file.write(records[0])


def test_two_programs_share_a_file(isam: ModuleType, tmp_path: Path) -> None:
    with isam.open(tmp_path / "f", "<qi") as one, isam.open(tmp_path / "f", "<qi") as other:
        for number in range(600):
            (one if number % 2 else other).write((number, number))
        with pytest.raises(isam.DuplicateKey):
            other.write((599, 0))
    with isam.open(tmp_path / "f", "<qi") as file:
        assert [record[0] for record in file.scan()] == list(range(600))


def test_the_hook_sends_what_the_application_writes(tmp_path: Path) -> None:
    with Server(tmp_path / "staging", http_port=None) as server:
        port = server.url.rpartition(":")[2]
        settings = tmp_path / "capture.ini"
        settings.write_text(f"[capture]\nblock = 100\nhost = 127.0.0.1\nport = {port}\nstream = orders\n")
        program = "import capture, orders; orders.main()"
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "shop"), "--orders", "1234"],
            cwd=FOLDER,
            env={"CAPTURE_INI": str(settings), "PATH": ""},
            check=True,
            capture_output=True,
        )
        with connect(server.url) as client:
            rows = [row for batch in client.read("orders", 0, end=1234) for row in batch.to_pylist()]
    assert [row["order_id"] for row in rows] == list(range(1, 1235))
    assert all(row["amount"] % row["quantity"] == 0 for row in rows)


def test_orders_that_a_killed_application_left_in_its_block_are_sent_by_the_next_run(tmp_path: Path) -> None:
    with Server(tmp_path / "staging", http_port=None) as server:
        settings = tmp_path / "capture.ini"
        settings.write_text(f"[capture]\nblock = 100\nhost = 127.0.0.1\nport = {server.url.rpartition(':')[2]}\n")
        begin = "import os, pathlib, sys, capture, orders\ntill = orders.Till(pathlib.Path(sys.argv[1]))\n"
        killed = (
            f"{begin}till._file.regulator._linger = 60\n"
            "for number in range(250): till.order(number, number, 1, 5)\n"
            "os.kill(os.getpid(), 9)"
        )
        again = f"{begin}till.order(250, 250, 1, 5)\nassert till._file.regulator.flush(60)\ntill.close()"
        shop = tmp_path / "shop"
        shop.mkdir()
        for program, code in ((killed, -9), (again, 0)):
            done = subprocess.run(
                [sys.executable, "-c", program, str(shop)],
                cwd=FOLDER,
                env={"CAPTURE_INI": str(settings), "PATH": ""},
                check=False,
                capture_output=True,
                text=True,
            )
            assert done.returncode == code, done.stderr
        with connect(server.url) as client:
            end = client.stream("orders").end
            rows = [row for batch in client.read("orders", 0, end=end) for row in batch.to_pylist()]
    assert [row["customer"] for row in rows] == list(range(251))


def test_the_hook_is_small() -> None:
    assert len((FOLDER / "capture.py").read_text().splitlines()) < 100
