"""How many records staging takes with durable acknowledgement, and how long an acknowledgement takes."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from ..staging import connect
from ..units import format_bytes
from .report import Check, Section, Table

RATE_TARGET = 500_000  # records a second
DELAY_TARGET = 0.050  # seconds, 99 of 100 acknowledgements, at DELAY_RATE records a second
DELAY_RATE = 50_000
SOURCES = 2
STREAM = "orders"


@dataclass(frozen=True)
class Effort:
    """How long to measure, in seconds."""

    seconds: float = 15.0


QUICK = Effort(seconds=4.0)


@dataclass(frozen=True)
class Case:
    """Sources that send blocks of so many records, as fast as they can or at a rate of all together."""

    block: int
    sources: int = SOURCES
    rate: int | None = None
    compression: str = "none"


CASES = (
    Case(block=4_000),
    Case(block=4_000, compression="lz4"),
    Case(block=1_000),
    Case(block=100),
    Case(block=100, rate=DELAY_RATE),
    Case(block=1_000, rate=DELAY_RATE),
)


@dataclass(frozen=True)
class Result:
    """What came of a case; delays from the hand-over of a block until it was acknowledged, in seconds."""

    case: Case
    records: int
    seconds: float
    bytes: int
    p50: float
    p99: float
    longest: float
    memory: int

    @property
    def rate(self) -> float:
        return self.records / self.seconds


def orders(rows: int, *, seed: int) -> pa.RecordBatch:
    """Records of about 100 bytes each."""
    random = np.random.default_rng(seed)
    letters = random.integers(97, 123, size=(rows, 56), dtype=np.uint8)
    return pa.record_batch(
        {
            "order_id": np.arange(rows),
            "product_id": random.integers(0, 1_000_000, rows),
            "quantity": random.integers(1, 10, rows, dtype=np.int32),
            "amount": random.random(rows),
            "note": pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(56), rows, [None, pa.py_buffer(letters.tobytes())]
            ).cast(pa.string()),
            "_captured": pa.array(np.full(rows, time.time_ns() // 1000), pa.timestamp("us", tz="UTC")),
        }
    )


@contextmanager
def serving(directory: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A staging server in a process of its own: its url, and the process."""
    program = "from millstream.cli import main; raise SystemExit(main())"
    command = [sys.executable, "-c", program, "stage", str(directory), "--port", "0", "--http-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if "grpc://" not in line:
            raise RuntimeError(f"staging did not start: {line}")
        yield line.split()[2].rstrip(","), psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def send(url: str, number: int, case: Case, seconds: float, begin: Barrier, results: Any) -> None:
    """One source: send for so long, and note when each block was sent and acknowledged."""
    batch = orders(case.block, seed=number)
    pause = case.block * case.sources / case.rate if case.rate else 0.0
    sent: list[float] = []
    delays: list[float] = []
    changed, over = threading.Condition(), False
    client = connect(url, compression=case.compression)  # type: ignore[arg-type]
    with client, client.open(STREAM, f"source-{number}", incarnation="bench", schema=batch.schema) as session:

        def watch() -> None:
            while True:
                with changed:
                    changed.wait_for(lambda: len(sent) > len(delays) or over)
                    if len(sent) == len(delays):
                        return
                session.wait((len(delays) + 1) * case.block)
                now = time.perf_counter()
                while len(delays) < len(sent) and session.acknowledged >= (len(delays) + 1) * case.block:
                    delays.append(now - sent[len(delays)])

        watcher = threading.Thread(target=watch)
        watcher.start()
        begin.wait()
        begun = time.perf_counter()
        # sources do not all send at the same moment
        due = begun + pause * number / case.sources
        while time.perf_counter() - begun < seconds:
            if pause:
                time.sleep(max(0.0, due - time.perf_counter()))
                due += pause
            now = time.perf_counter()
            session.send(len(sent) * case.block, batch)
            with changed:
                sent.append(now)
                changed.notify()
        with changed:
            over = True
            changed.notify()
        watcher.join()
        results.put((len(sent) * case.block, time.perf_counter() - begun, delays))


def measure(case: Case, folder: Path, effort: Effort) -> Result:
    """Run a case against a new staging area."""
    directory = folder / "staging-bench"
    shutil.rmtree(directory, ignore_errors=True)
    context = multiprocessing.get_context("spawn")
    begin, results = context.Barrier(case.sources), context.Queue()
    try:
        with serving(directory) as (url, server):
            arguments = [(url, number, case, effort.seconds, begin, results) for number in range(case.sources)]
            sources = [context.Process(target=send, args=one, daemon=True) for one in arguments]
            for source in sources:
                source.start()
            found = [results.get(timeout=effort.seconds + 120) for _ in sources]
            for source in sources:
                source.join()
            memory = server.memory_info().rss
            with connect(url) as client:
                stream = client.stream(STREAM)
        records = sum(one[0] for one in found)
        if stream.records != records:
            raise RuntimeError(f"sent {records} records, stored {stream.records}")
        delays = np.concatenate([one[2] for one in found])
        p50, p99 = np.quantile(delays, [0.5, 0.99])
        seconds = max(one[1] for one in found)
        return Result(case, records, seconds, stream.bytes, float(p50), float(p99), float(delays.max()), memory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def section(results: list[Result], *, command: str, full: bool) -> Section:
    """The report."""
    fastest = max(
        (one for one in results if one.case.rate is None and one.case.block >= 1000), key=lambda one: one.rate
    )
    checks = [
        Check(
            f"records of {fastest.bytes / fastest.records:.0f} B with durable acknowledgement, blocks of "
            f"{fastest.case.block:,}",
            f"{fastest.rate:,.0f}/s",
            f">= {RATE_TARGET:,}/s",
            fastest.rate >= RATE_TARGET if full else None,
        )
    ]
    for one in results:
        if one.case.rate is not None:
            what = f"acknowledgement p99 at {one.case.rate:,} records/s, blocks of {one.case.block:,}"
            passed = one.p99 <= DELAY_TARGET if full else None
            checks.append(Check(what, f"{one.p99 * 1e3:.1f} ms", f"<= {DELAY_TARGET * 1e3:.0f} ms", passed))
    rows = [
        [
            f"{one.case.block:,}, {one.case.compression}, {f'{one.case.rate:,}/s' if one.case.rate else 'most'}",
            f"{one.rate:,.0f}",
            f"{format_bytes(one.bytes / one.seconds)}/s",
            f"{one.p50 * 1e3:.1f} ms",
            f"{one.p99 * 1e3:.1f} ms",
            f"{one.longest * 1e3:.1f} ms",
            format_bytes(one.memory),
        ]
        for one in results
    ]
    head = ("block, compression, rate", "records/s", "log", "p50", "p99", "longest", "server's memory")
    return Section(
        name="staging",
        title="Staging",
        about=f"`millstream stage` in a process of its own and {SOURCES} sources in theirs, all on one machine; a "
        "record counts when it is durable and acknowledged. Delays are from sending a block to its acknowledgement.",
        checks=checks,
        tables=[Table("Sending", head, rows)],
        raw={"cases": [{**asdict(one), "rate": one.rate} for one in results]},
        command=command,
    )
