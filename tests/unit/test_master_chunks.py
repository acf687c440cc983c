"""The thread that reads chunks ahead: it ends with its scan, closed or forgotten, and says what went wrong."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millstream import joins
from millstream.errors import CorruptMaster
from millstream.kernels import chunk_loop
from millstream.master import Master, build_local

ROWS = 30_000


@pytest.fixture
def master(tmp_path: Path) -> Master:
    table = pa.table({"k": np.arange(ROWS), "text": [f"row {i}" for i in range(ROWS)]})
    return build_local(table, tmp_path / "m", key="k", segment_bytes=1024)


def started(master: Master) -> joins.Operator:
    """A scan join with a window that has begun to read."""
    operator = joins.create("meshjoin", master, on="k", memory=400_000)
    list(operator.process(pa.record_batch({"k": np.arange(20_000)})))
    return operator


def whole(operator: joins.Operator) -> None:
    """Join with a stream that has every key."""
    list(operator.process(pa.record_batch({"k": np.arange(ROWS)})))
    list(operator.flush())


def scans() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "millstream-scan"]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def settled(count: int) -> bool:
    end = time.monotonic() + 10
    while len(scans()) > count and time.monotonic() < end:
        time.sleep(0.01)
    return len(scans()) == count


def test_a_closed_scan_leaves_no_thread_and_no_open_file(master: Master) -> None:
    gc.collect()
    threads, files = len(scans()), descriptors()
    operator = started(master)
    assert len(scans()) == threads + 1
    operator.close()
    assert settled(threads)
    assert descriptors() == files


def test_a_forgotten_scan_ends_its_thread(master: Master) -> None:
    gc.collect()
    threads = len(scans())
    operator = started(master)
    assert len(scans()) == threads + 1
    del operator
    gc.collect()
    assert settled(threads)


def test_results_are_complete_when_the_reader_sleeps(master: Master) -> None:
    """The reader is made to wait for requests for longer than it has patience, so that it sleeps and is woken."""
    operator = started(master)
    for first in range(0, ROWS, 5_000):
        for _ in operator.process(pa.record_batch({"k": np.arange(first, first + 5_000)})):
            time.sleep(5 * chunk_loop.READER_PATIENCE / 1e9)
    list(operator.flush())
    assert operator.stats.matched == operator.stats.rows_out == ROWS + 20_000
    operator.close()


def test_damage_is_named_and_the_scan_can_be_closed(master: Master) -> None:
    part = Path(master.path) / master.manifest.parts[0].file
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    gc.collect()
    threads = len(scans())
    operator = joins.create("meshjoin", master, on="k", memory=400_000)
    with pytest.raises(CorruptMaster, match="segment"):
        whole(operator)
    operator.close()
    assert settled(threads)


def test_a_thread_that_fails_does_not_leave_the_scan_waiting(master: Master, monkeypatch) -> None:
    def failing(*arguments: object) -> None:
        raise MemoryError("no room to compile")

    monkeypatch.setattr(chunk_loop, "serve_chunks", failing)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    operator = joins.create("meshjoin", master, on="k", memory=400_000)
    with pytest.raises(RuntimeError, match="thread that reads segments has failed"):
        whole(operator)
    operator.close()
