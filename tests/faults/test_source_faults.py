"""Sources that are killed, cut off, or faced with a staging area that stands still: each record arrives once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from millstream.errors import UnknownStream
from millstream.source import FlowRegulator
from millstream.staging import Server, connect
from proxy import Proxy
from staging_area import StagingProcess, expected, stored

PROGRAM = Path(__file__).with_name("source_program.py")
SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])


def start(
    url: str, spool: Path, count: int, mode: str, *, failpoints: str = "", pause: float = 0.0
) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), url, str(spool), str(count), mode, str(pause)]
    environment = {**os.environ, "MILLSTREAM_FAILPOINTS": failpoints}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(program: subprocess.Popen[str]) -> None:
    output, _ = program.communicate(timeout=60)
    assert output.strip().endswith("done"), output


def senders_of(spool: Path) -> list[int]:
    found = psutil.process_iter(["cmdline"])
    return [one.pid for one in found if (one.info["cmdline"] or [])[-3:] == ["-m", "millstream.source", str(spool)]]


def regulator(url: str, spool: Path, **options: object) -> FlowRegulator:
    options = {"source": "till", "schema": SCHEMA, "sender": "thread", "timeout": 0.5, **options}
    return FlowRegulator(url, "orders", spool=spool, **options)  # type: ignore[arg-type]


def send(one: FlowRegulator, numbers: range) -> None:
    for number in numbers:
        one.send((number, f"record {number}"))


POINTS = [
    "source.before-spool=kill:4",
    "source.after-spool=kill:4",
    "source.before-send=kill:2",
    "source.after-send=kill:2",
    "source.before-checkpoint=kill:2",
    "source.after-checkpoint=kill:2",
]


def test_a_source_killed_anywhere_goes_on_from_its_spool(tmp_path: Path) -> None:
    with Server(tmp_path / "staging", http_port=None) as server, connect(server.url) as client:
        for number, point in enumerate(POINTS, 1):
            killed = start(server.url, tmp_path / "spool", 300 * number, "thread", failpoints=point, pause=0.002)
            output, _ = killed.communicate(timeout=60)
            assert killed.returncode == -signal.SIGKILL, f"{point}: {output}"
            with contextlib.suppress(UnknownStream):  # killed before it has said a word
                found = stored(client)
                assert found == expected(len(found)), point
        finish(start(server.url, tmp_path / "spool", 300 * len(POINTS), "thread"))
        assert stored(client) == expected(300 * len(POINTS))


def test_a_source_killed_at_random_moments(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with Server(tmp_path / "staging", http_port=None) as server:
        for _ in range(3):
            program = start(server.url, tmp_path / "spool", 4_000, "process", pause=0.005)
            time.sleep(chance.uniform(0.4, 1.6))
            program.kill()
            program.communicate()
        finish(start(server.url, tmp_path / "spool", 4_000, "process"))
        with connect(server.url) as client:
            assert stored(client) == expected(4_000)


def test_a_sender_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with Server(tmp_path / "staging", http_port=None) as server:
        one = regulator(server.url, tmp_path / "spool", sender="process")
        send(one, range(500))
        assert one.flush(20)
        (sender,) = senders_of(tmp_path / "spool")
        os.kill(sender, signal.SIGKILL)
        send(one, range(500, 1_000))
        assert one.flush(20)
        assert one.close()
        assert senders_of(tmp_path / "spool") == []
        with connect(server.url) as client:
            assert stored(client) == expected(1_000)


def test_what_a_killed_application_left_is_sent_by_its_sender(tmp_path: Path) -> None:
    with StagingProcess(tmp_path / "staging") as staging:
        program = start(staging.url, tmp_path / "spool", 10**9, "process", pause=0.01)
        with connect(staging.url) as client:
            deadline, there = time.monotonic() + 30, 0
            while there <= 100 and time.monotonic() < deadline:
                time.sleep(0.1)
                with contextlib.suppress(UnknownStream):
                    there = client.stream("orders").records
        staging.process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        program.kill()
        program.communicate()
        staging.process.send_signal(signal.SIGCONT)
        with connect(staging.url) as client:
            deadline, before = time.monotonic() + 10, -1
            while time.monotonic() < deadline and before != (before := client.stream("orders").end):
                time.sleep(0.5)
            found = stored(client)
        assert len(found) > 100
        assert found == expected(len(found))
        deadline = time.monotonic() + 20
        while (left := senders_of(tmp_path / "spool")) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == [], "the sender outlives its application"
        finish(start(staging.url, tmp_path / "spool", len(found) + 50, "thread"))
        with connect(staging.url) as client:
            assert stored(client) == expected(len(found) + 50)


TROUBLE: dict[str, Callable[[Proxy], None]] = {
    "closed": Proxy.close,
    "cut": Proxy.cut,
    "half-open": Proxy.half_open,
    "answers lost": Proxy.drop_answers,
    "slow": lambda proxy: proxy.delay(0.02),
    "a bit flips": lambda proxy: proxy.corrupt(after=5_000),
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_a_network_in_trouble_costs_time_and_no_record(tmp_path: Path, trouble: str) -> None:
    with (
        Server(tmp_path / "staging", http_port=None) as server,
        Proxy("127.0.0.1", int(server.url.rpartition(":")[2])) as proxy,
    ):
        one = regulator(proxy.url, tmp_path / "spool")
        send(one, range(1_000))
        assert one.flush(10)
        TROUBLE[trouble](proxy)
        begun = time.monotonic()
        send(one, range(1_000, 3_000))
        assert time.monotonic() - begun < 1.0, "the application was held up"
        if trouble not in ("slow", "a bit flips"):
            assert not one.flush(1.2)
            assert one.stats.problem
            assert one.stats.spooled == 2_000
        proxy.heal()
        assert one.flush(20)
        assert one.stats.problem == ""
        one.close()
        with connect(server.url) as client:
            assert stored(client) == expected(3_000)


def test_a_peer_that_vanishes_under_a_large_backlog_is_given_up(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "staging", http_port=None) as server,
        Proxy("127.0.0.1", int(server.url.rpartition(":")[2])) as proxy,
    ):
        one = regulator(proxy.url, tmp_path / "spool")
        send(one, range(10))
        assert one.flush(10)
        proxy.half_open()
        # more than any buffer on the way takes, so that a write must block
        for number in range(10, 410):
            one.send((number, "x" * 100_000))
        assert not one.flush(1.5)
        proxy.heal()
        assert one.flush(30)
        one.close()
        with connect(server.url) as client:
            assert client.stream("orders").records == 410


def test_a_staging_area_that_stands_still_fills_the_spool_and_nothing_else(tmp_path: Path) -> None:
    bound = 3_000_000
    with StagingProcess(tmp_path / "staging") as staging:
        one = regulator(staging.url, tmp_path / "spool", spool_bytes=bound, sender="process")
        send(one, range(1_000))
        assert one.flush(20)
        staging.process.send_signal(signal.SIGSTOP)
        process, (sender,) = psutil.Process(), psutil.Process().children()[-1:]
        before = process.memory_info().rss, sender.memory_info().rss
        number = 1_000
        while one.stats.dropped == 0:
            send(one, range(number, number + 10_000))
            number += 10_000
            assert number < 2_000_000
        grown = process.memory_info().rss - before[0], sender.memory_info().rss - before[1]
        used = sum(path.stat().st_size for path in (tmp_path / "spool").glob("*.spool"))
        assert used <= bound * 1.15
        assert max(grown) < 150_000_000
        staging.process.send_signal(signal.SIGCONT)
        assert one.flush(30)
        stats = one.stats
        assert stats.sent == number
        one.close()
        with connect(staging.url) as client:
            found = stored(client)
    assert len(found) + stats.dropped == number
    numbers = [row[2] for row in found]
    assert numbers == sorted(set(numbers))
    assert [row[1] for row in found] == list(range(len(found)))
