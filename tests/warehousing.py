"""What the tests of the warehouse share: rows to load, and servers in processes of their own that can be killed."""

from __future__ import annotations

import datetime
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from millstream import failpoints
from millstream.warehouse import Client, TableSpec, connect

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("shop", pa.string()),
        ("amount", pa.float64()),
        ("_source", pa.string()),
        ("_sequence", pa.int64()),
        ("_captured", pa.timestamp("us", tz="UTC")),
    ]
)
ORDERS = TableSpec("orders", COLUMNS)


def sales(first: int, count: int, *, age: float = 0.0) -> pa.Table:
    """Numbered rows, captured so many seconds ago."""
    captured = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
    numbers = list(range(first, first + count))
    return pa.table(
        {
            "id": numbers,
            "shop": [f"shop {number % 7}" for number in numbers],
            "amount": [number / 4 for number in numbers],
            "_source": ["till"] * count,
            "_sequence": numbers,
            "_captured": [captured] * count,
        },
        schema=COLUMNS,
    )


def numbers(client: Client, table: str = "orders") -> list[int]:
    """The ids in a table, sorted."""
    return [row[0] for row in rows(client, f"SELECT id FROM {table} ORDER BY id")]


def rows(client: Client, sql: str) -> list[tuple[object, ...]]:
    """The result of a query as tuples."""
    return [tuple(row.values()) for row in client.query(sql).to_pylist()]


class ServerProcess:
    """`millstream serve` in a process of its own; `kill` ends it as a crash would."""

    def __init__(self, database: str | Path, *, parts: Path, fail: str = "", options: Sequence[str] = ()) -> None:
        environment = {**os.environ, failpoints.VARIABLE: fail}
        run = "import sys; from millstream.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", run, "serve", str(database), "--port", "0", "--parts", str(parts)]
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found is None:
            self.process.wait(10)
            raise RuntimeError(f"the server did not start: {line}{self.process.stderr and self.process.stderr.read()}")
        self.port = int(found[1])
        self.url = found[0]

    def client(self, patience: float = 5.0) -> Client:
        return connect(self.url, patience=patience, timeout=10)

    def wait(self) -> int:
        """The exit code of a process that is about to end."""
        return self.process.wait(20)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
