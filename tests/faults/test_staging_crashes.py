"""Staging is killed, runs out of disk, or its disk fails: what was acknowledged is there, once, and it goes on."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream import failpoints
from millstream.errors import StagingFull
from millstream.staging import Server, connect
from staging_area import SCHEMA, StagingProcess, expected, free_port, records, send_all, stored

RECORDS = 3_000


@pytest.mark.parametrize(
    "point",
    [
        "staging.received=kill:20",
        "staging.before-write=kill:20",
        "staging.before-fsync=kill:10",
        "staging.after-fsync=kill:10",
        "staging.before-acknowledge=kill:10",
        "staging.new-segment=kill:1",
        "staging.before-rename=kill:4",
    ],
)
def test_killed_at_any_point(tmp_path: Path, point: str) -> None:
    port = free_port()
    limit = ("--limit", "1MiB", "--when-full", "drop")  # small segments, so that some are begun
    done: list[int] = []
    source = threading.Thread(target=lambda: done.append(send_all(f"grpc://127.0.0.1:{port}", RECORDS)))
    with StagingProcess(tmp_path, *limit, port=port, failpoints=point) as staging:
        source.start()
        code, _ = staging.wait()
        assert code == -signal.SIGKILL
    with StagingProcess(tmp_path, *limit, port=port) as staging:
        source.join(40)
        assert done
        with connect(staging.url) as client:
            assert stored(client) == expected(RECORDS)
        assert staging.end() == (0, "")


def test_an_fsync_that_fails_stops_the_server(tmp_path: Path) -> None:
    port = free_port()
    done: list[int] = []
    with StagingProcess(tmp_path, port=port, failpoints="staging.before-fsync=error:10") as staging:
        source = threading.Thread(target=lambda: done.append(send_until_it_stops(staging.url)))
        source.start()
        code, said = staging.wait()
        source.join(20)
    assert code == 1
    assert said.startswith("millstream: stream orders: fsync of ")
    assert said.count("\n") == 1
    with StagingProcess(tmp_path, port=port) as staging, connect(staging.url) as client:
        assert client.stream("orders").end >= done[0]
        send_all(staging.url, RECORDS)
        assert stored(client) == expected(RECORDS)


def send_until_it_stops(url: str) -> int:
    """Send until the session breaks; what was acknowledged by then."""
    with connect(url, timeout=5) as client:
        session = client.open("orders", "till", incarnation="a", schema=SCHEMA)
        with contextlib.suppress(OSError):
            for first in range(0, RECORDS, 5):
                session.send(first, records(first, 5))
                session.wait(first + 5)
        return session.acknowledged


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[bool], None]]]:
    """A directory, and what fills its disk or frees it: a small tmpfs, or failpoints where that is forbidden."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode == 0:

        def fill(full: bool) -> None:
            ballast = place / "ballast"
            ballast.unlink(missing_ok=True)
            if full:
                with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))

        yield place, fill
        subprocess.run(["umount", "--lazy", str(place)], check=True)
    else:
        yield place, lambda full: failpoints.arm("staging.before-write=enospc" if full else "")
        failpoints.arm("")


def test_a_full_disk(small_disk: tuple[Path, Callable[[bool], None]]) -> None:
    place, fill = small_disk
    with Server(place / "staging", http_port=None) as server, connect(server.url, timeout=10) as client:
        send_all(server.url, 500)
        fill(True)
        problem = None
        with client.open("orders", "till", incarnation="a", schema=SCHEMA) as session:
            assert session.next == 500
            try:
                for first in range(500, 3000, 500):
                    session.send(first, records(first, 500))
                session.wait(3000)
            except StagingFull as caught:
                problem = caught
        assert problem is not None
        assert problem.retryable
        assert server.failure is None
        done: list[int] = []
        source = threading.Thread(target=lambda: done.append(send_all(server.url, 3000)))
        source.start()
        time.sleep(0.3)
        assert not done
        fill(False)
        source.join(20)
        assert done
        assert stored(client) == expected(3000)
    with Server(place / "staging", http_port=None) as server, connect(server.url) as client:
        assert stored(client) == expected(3000)


def test_sigterm_does_not_wait_for_a_client_that_sleeps(tmp_path: Path) -> None:
    program = (
        "import sys, pyarrow as pa\nfrom millstream.staging import connect\n"
        "session = connect(sys.argv[1]).open('orders', 'a', incarnation='a', schema=pa.schema([('n', pa.int64())]))\n"
        "session.send(0, pa.record_batch({'n': [1]}))\nsession.wait(1)\nprint('ready', flush=True)\nsys.stdin.read()"
    )
    with StagingProcess(tmp_path) as staging:
        source = subprocess.Popen(
            [sys.executable, "-c", program, staging.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert source.stdout is not None
            assert source.stdout.readline() == b"ready\n"
            source.send_signal(signal.SIGSTOP)
            begun = time.monotonic()
            assert staging.end() == (0, "")
            assert time.monotonic() - begun < 15
        finally:
            source.kill()
            source.communicate()
    with StagingProcess(tmp_path) as staging, connect(staging.url) as client:
        assert client.stream("orders").end == 1
