"""A table of PostgreSQL as a source: snapshot, changes, restarts on both sides; each row once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millstream.errors import CaptureFailed
from millstream.source import FlowRegulator
from millstream.source.postgres import PostgresCapture, drop
from millstream.staging import Server, connect
from postgres import Postgres

TABLE = """CREATE TABLE {name} (id bigint PRIMARY KEY, name text, amount numeric(10,2), at timestamptz, day date,
           ok boolean, raw bytea, huge text, free numeric)"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as one:
        yield one


class Shop:
    """A table, and a capture of it that can be run, stopped and run again."""

    def __init__(self, postgres: Postgres, server: Server, folder: Path, name: str) -> None:
        self.postgres, self.server, self.folder, self.name = postgres, server, folder, name
        self._over = threading.Event()

    def execute(self, statement: str, *values: Any) -> None:
        with psycopg.connect(self.postgres.dsn, autocommit=True) as connection:
            connection.execute(statement.format(name=self.name), values)

    def run(self, *, once: bool = True) -> PostgresCapture:
        self._over.clear()
        regulator = FlowRegulator(
            self.server.url,
            self.name,
            source="db",
            spool=self.folder / "spool",
            replayed=True,
            sender="thread",
            when_full="wait",
        )
        try:
            capture = PostgresCapture(
                self.postgres.dsn, self.name, regulator, state=self.folder, slot=f"cap_{self.name}"
            )
            capture.run(once=once, over=self._over.is_set)
        finally:
            regulator.close(timeout=10)
        return capture

    def killed(self, failpoints: str) -> None:
        """Run the command until it is killed at a failpoint."""
        program = "from millstream.cli import main; raise SystemExit(main())"
        command = ["capture", "postgres", self.postgres.dsn, "--table", self.name, "--slot", f"cap_{self.name}"]
        options = ["--stream", self.name, "--to", self.server.url, "--state", str(self.folder), "--source", "db"]
        done = subprocess.run(
            [sys.executable, "-c", program, *command, *options, "--once"],
            env={**os.environ, "MILLSTREAM_FAILPOINTS": failpoints},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        deadline = time.monotonic() + 20
        with psycopg.connect(self.postgres.dsn, autocommit=True) as connection:
            while connection.execute(
                "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active", (f"cap_{self.name}",)
            ).fetchone():  # the server has not noticed yet
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self.run, kwargs={"once": False})
        thread.start()
        return thread

    def stop(self) -> None:
        self._over.set()

    def rows(self) -> list[dict[str, Any]]:
        with connect(self.server.url) as client:
            info = client.stream(self.name)
            return [row for batch in client.read(self.name, info.start, end=info.end) for row in batch.to_pylist()]

    def ops(self) -> list[tuple[str, int]]:
        return [(row["_op"], row["id"]) for row in self.rows()]

    def arrives(self, count: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            try:
                if len(self.rows()) >= count:
                    break
            except LookupError:
                pass
            time.sleep(0.05)
        return self.rows()


@pytest.fixture
def shop(postgres: Postgres, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    name = f"orders_{abs(hash(request.node.name)) % 10**8}"
    with Server(tmp_path / "staging", http_port=None) as server:
        one = Shop(postgres, server, tmp_path / "state", name)
        one.folder.mkdir()
        one.execute(TABLE)
        yield one
        one.stop()
        deadline = time.monotonic() + 10
        while True:
            try:
                drop(postgres.dsn, f"cap_{name}")
                break
            except CaptureFailed:  # the server has not noticed yet that the capture is gone
                assert time.monotonic() < deadline
                time.sleep(0.1)


INSERT = "INSERT INTO {name} (id, name) SELECT i, 'n' || i FROM generate_series(%s::int, %s::int) i"


def test_rows_that_are_there_and_every_change_after_them(shop: Shop) -> None:
    shop.execute(
        "INSERT INTO {name} VALUES"
        "(1, 'a, \"b\"\nc', 12.34, '2024-05-01 12:00:00.123456+02', '2024-05-01', true, %s, '', 1.5),"
        "(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        b"\x00\xff",
    )
    shop.run()
    shop.execute("INSERT INTO {name} (id, name, ok) VALUES (3, 'neu', false)")
    shop.execute("UPDATE {name} SET amount = 1 WHERE id = 3")
    shop.execute("DELETE FROM {name} WHERE id = 1")
    shop.execute("TRUNCATE {name}")
    shop.run()
    rows = shop.rows()
    assert [(row["_op"], row["id"]) for row in rows] == [
        ("snapshot", 1),
        ("snapshot", 2),
        ("insert", 3),
        ("update", 3),
        ("delete", 1),
        ("truncate", None),
    ]
    first = rows[0]
    assert (first["name"], first["amount"], first["ok"], first["raw"]) == (
        'a, "b"\nc',
        Decimal("12.34"),
        True,
        b"\x00\xff",
    )
    assert (first["at"].isoformat(), first["day"].isoformat()) == ("2024-05-01T10:00:00.123456+00:00", "2024-05-01")
    assert (first["huge"], first["free"]) == ("", "1.5")
    assert rows[1]["name"] is None
    assert rows[2]["ok"] is False
    assert rows[3]["amount"] == Decimal("1.00")
    assert [row["_sequence"] for row in rows] == list(range(6))


def test_the_snapshot_and_the_slot_leave_no_gap_and_no_overlap(shop: Shop) -> None:
    over = threading.Event()
    written: list[int] = []

    def write() -> None:
        with psycopg.connect(shop.postgres.dsn, autocommit=True) as connection:
            while not over.is_set():
                connection.execute(f"INSERT INTO {shop.name} (id) VALUES ({len(written)})")
                written.append(len(written))

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(0.2)
    capture = shop.start()
    time.sleep(0.7)
    over.set()
    writer.join()
    rows = shop.arrives(len(written))
    shop.stop()
    capture.join()
    assert sorted(row["id"] for row in rows) == written
    kinds = Counter(row["_op"] for row in rows)
    assert kinds["snapshot"] > 0
    assert kinds["insert"] > 0


@pytest.mark.parametrize("point", ["source.after-spool", "source.after-send"])
def test_a_capture_that_is_killed_in_snapshot_or_changes_goes_on_without_repeating(shop: Shop, point: str) -> None:
    shop.execute(INSERT, 1, 60_000)
    shop.killed(f"{point}=kill:2")
    shop.run()
    assert sorted(row["id"] for row in shop.rows()) == list(range(1, 60_001))
    shop.execute(INSERT, 60_001, 82_000)  # one transaction of several blocks
    shop.killed(f"{point}=kill:{2 if 'send' not in point else 1}")
    shop.run()
    ids = [row["id"] for row in shop.rows()]
    assert len(ids) == 82_000
    assert sorted(ids) == list(range(1, 82_001))


def test_postgres_is_told_to_forget_only_what_staging_has(shop: Shop) -> None:
    shop.execute(INSERT, 1, 10)
    shop.run()

    def confirmed() -> int:
        with psycopg.connect(shop.postgres.dsn) as connection:
            row = connection.execute(
                "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s",
                (f"cap_{shop.name}",),
            ).fetchone()
        assert row is not None
        return int(row[0])

    thread = shop.start()
    shop.execute(INSERT, 11, 20)
    rows = shop.arrives(20)
    last = max(row["_lsn"] for row in rows)
    deadline = time.monotonic() + 10
    while confirmed() < last and time.monotonic() < deadline:
        time.sleep(0.1)
    assert confirmed() >= last
    shop.stop()
    thread.join()


def test_a_server_that_crashes_is_taken_up_again(shop: Shop) -> None:
    shop.execute(INSERT, 1, 100)
    shop.run()
    thread_error: list[BaseException] = []

    def run() -> None:
        try:
            shop.run(once=False)
        except CaptureFailed as problem:
            thread_error.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    shop.execute(INSERT, 101, 200)
    shop.arrives(200)
    shop.postgres.kill()
    thread.join(20)
    shop.postgres.start()
    assert thread_error
    assert thread_error[0].retryable  # type: ignore[attr-defined]
    shop.execute(INSERT, 201, 300)
    shop.run()
    assert [row["id"] for row in shop.rows()] == list(range(1, 301))


def test_values_that_have_no_place_are_rejected_with_the_reason(shop: Shop) -> None:
    shop.execute("INSERT INTO {name} (id, at) VALUES (1, 'infinity'), (2, now())")
    capture = shop.run()
    assert [row["id"] for row in shop.rows()] == [2]
    assert capture.rejected == 1
    assert "column at is timestamp" in (shop.folder / "rejects.jsonl").read_text()


def test_a_new_column_flows(shop: Shop) -> None:
    shop.execute(INSERT, 1, 2)
    shop.run()
    shop.execute("ALTER TABLE {name} ADD COLUMN extra int")
    shop.execute("INSERT INTO {name} (id, extra) VALUES (3, 7)")
    shop.run()
    assert [row["extra"] for row in shop.rows()] == [None, None, 7]


def test_what_postgres_lacks_is_named(shop: Shop) -> None:
    shop.name = "nosuchtable"
    with pytest.raises(CaptureFailed, match=r"there is no table public\.nosuchtable"):
        shop.run()
