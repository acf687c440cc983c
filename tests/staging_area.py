"""What the tests of staging share: records that know their number, and a server in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

from millstream.errors import MillstreamError
from millstream.staging import Block, Client, connect
from millstream.staging.block import Compression, join
from millstream.staging.columns import conform, stored_schema

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
STORED = stored_schema(SCHEMA)


def records(first: int, count: int) -> pa.RecordBatch:
    """Records `first` and so on; each says its number twice."""
    numbers = range(first, first + count)
    return pa.record_batch({"number": pa.array(numbers, pa.int64()), "text": [f"record {one}" for one in numbers]})


def raw(
    first: int, count: int, *, source: str = "till", incarnation: str = "a", compression: Compression = "none"
) -> pa.Buffer:
    """The block of such records as it travels."""
    block = Block("orders", source, incarnation, first, conform(records(first, count), STORED))
    return pa.py_buffer(join(*block.encode(compression)))


def stored(client: Client, stream: str = "orders") -> list[tuple[str, int, int, str]]:
    """Source, sequence, number and text of everything in a stream, in order."""
    info = client.stream(stream)
    rows = [row for batch in client.read(stream, info.start, end=info.end) for row in batch.to_pylist()]
    return [(row["_source"], row["_sequence"], row["number"], row["text"]) for row in rows]


def expected(count: int, source: str = "till") -> list[tuple[str, int, int, str]]:
    """What `stored` gives when one source has sent so many records, each once."""
    return [(source, number, number, f"record {number}") for number in range(count)]


def send_all(url: str, count: int, *, block: int = 7, source: str = "till", seconds: float = 30.0) -> int:
    """Send records 0 to `count` as a source does: again from what is due after each loss; how many sessions it took."""
    until, sessions, done = time.monotonic() + seconds, 0, 0
    while time.monotonic() < until:
        try:
            with (
                connect(url, timeout=5.0) as client,
                client.open("orders", source, incarnation="a", schema=SCHEMA) as session,
            ):
                assert session.next >= done, "staging has forgotten what it acknowledged"
                sessions += 1
                for turn, first in enumerate(range(session.next, count, block)):
                    session.send(first, records(first, min(block, count - first)))
                    if turn % 20 == 19:  # so that there are some fsyncs, however many blocks share one
                        session.wait(first + block if first + block < count else count)
                    done = max(done, session.acknowledged)
                session.wait(count)
                return sessions
        except MillstreamError as problem:
            if not problem.retryable:
                raise
            time.sleep(0.05)
    raise AssertionError("the records did not go through in time")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class StagingProcess:
    """`millstream stage` as users run it."""

    def __init__(self, directory: Path, *options: str, port: int = 0, failpoints: str = "") -> None:
        program = "from millstream.cli import main; raise SystemExit(main())"
        command = [sys.executable, "-c", program, "stage", str(directory), "--port", str(port), "--no-http", *options]
        environment = {**os.environ, "MILLSTREAM_FAILPOINTS": failpoints}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.url = next((word.rstrip(",") for word in self.line.split() if word.startswith("grpc")), "")

    def __enter__(self) -> StagingProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, str]:
        """End it as an operator would; exit code and what it wrote to stderr."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Exit code and what it wrote to stderr."""
        _, error = self.process.communicate(timeout=30)
        return self.process.returncode, error
