"""The resident set of a process that joins, as its parent sees it, against the budget that the join was given."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import pyarrow as pa
import pytest

from faults import memory_worker
from millstream import joins
from millstream.master import Master, build_local

KEYS = 1_000_000
BUDGET = 24_000_000
ALLOWED = BUDGET + 64_000_000
STREAM_ROWS = 400_000


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Master, Master]:
    """A small master, and one several times as large as the budget."""
    folder = tmp_path_factory.mktemp("memory")

    def table(rows: int) -> pa.Table:
        numbers = np.arange(rows)
        texts = pa.array(np.char.add("name of product ", numbers.astype("U7")))
        fillers = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(64), rows, [None, pa.py_buffer(np.random.default_rng(0).bytes(64 * rows))]
        )
        return pa.table({"k": numbers, "name": texts, "filler": fillers, "price": numbers * 1.5})

    small = build_local(table(20_000), folder / "small", key="k")
    large = build_local(table(KEYS), folder / "large", key="k")
    assert large.statistics.bytes > 4 * BUDGET
    return small, large


@contextmanager
def highest(pid: int) -> Iterator[list[int]]:
    """Sample the resident set of a process; the list has the highest so far."""
    process, peak, stop = psutil.Process(pid), [0], threading.Event()

    def sample() -> None:
        while not stop.wait(0.003):
            peak[0] = max(peak[0], process.memory_info().rss)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_growth_stays_below_the_budget(algorithm: str, masters: tuple[Master, Master]) -> None:
    small, large = masters
    arguments = [small.path, large.path, algorithm, str(BUDGET), str(STREAM_ROWS)]
    with subprocess.Popen(
        [sys.executable, memory_worker.__file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "warm\n"
        before = psutil.Process(worker.pid).memory_info().rss
        with highest(worker.pid) as peak:
            worker.stdin.write("go\n")
            worker.stdin.flush()
            counters = json.loads(worker.stdout.readline())
        worker.stdin.close()
        assert worker.wait(timeout=60) == 0
    growth = peak[0] - before
    booked = counters["memory_peak"]
    print(f"{algorithm}: grew by {growth / 1e6:.0f} MB of {ALLOWED / 1e6:.0f}, ledger {booked / 1e6:.0f} MB")
    assert counters["rows_in"] == counters["out"] == STREAM_ROWS
    assert counters["unmatched"] == pytest.approx(0.1 * STREAM_ROWS, rel=0.05)
    assert BUDGET // 2 < booked <= BUDGET, "the stream should fill the budget"
    assert growth < ALLOWED
    assert growth > BUDGET // 4, "the memory is in this process and nowhere else"
