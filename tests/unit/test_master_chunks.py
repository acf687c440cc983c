"""Threads that read ahead: they end with their scan, closed or forgotten, say what went wrong, and write to nobody
else's memory.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from driving import direct
from millstream import joins
from millstream.errors import CorruptMaster
from millstream.kernels import chunk_loop
from millstream.kernels.layout import Layout
from millstream.kernels.pages import PageTable
from millstream.master import Master, build_local
from millstream.master.chunks import scan_readers
from millstream.master.cycle import SegmentCycle
from millstream.master.part_files import HUGE
from millstream.master.reader import IN_FLIGHT, DiskBuffer, SegmentReader

ROWS = 30_000


@pytest.fixture(params=["through the page cache", "direct"])
def master(request: pytest.FixtureRequest, tmp_path: Path) -> Master:
    """One that a thread reads, and one that two threads read in turn."""
    table = pa.table({"k": np.arange(ROWS), "text": [f"row {i}" for i in range(ROWS)]})
    built = build_local(table, tmp_path / "m", key="k", segment_bytes=1024)
    return direct(built) if request.param == "direct" else built


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
    assert len(scans()) == threads + scan_readers(direct=master.direct)
    operator.close()
    assert settled(threads)
    assert descriptors() == files


def test_a_forgotten_scan_ends_its_thread(master: Master) -> None:
    gc.collect()
    threads = len(scans())
    operator = started(master)
    assert len(scans()) == threads + scan_readers(direct=master.direct)
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


@contextlib.contextmanager
def busy(reader: SegmentReader) -> Iterator[threading.Event]:
    """Reads wait for the event; afterwards all are done."""
    held = threading.Event()
    for _ in range(IN_FLIGHT):
        reader.pool.submit(held.wait)
    try:
        yield held
    finally:
        held.set()
        reader.close()


def test_memory_that_is_read_into_outlives_its_buffer(master: Master) -> None:
    reader = master.reader()
    buffer = DiskBuffer(reader, PageTable(Layout.of(master.stored_schema)), 1 << 16)
    with busy(reader):
        buffer.start(np.arange(8), in_flight=2)
        memory = weakref.ref(buffer._memory)
        del buffer
        gc.collect()
        assert memory() is not None  # the reads have not begun
    gc.collect()
    assert memory() is None


def test_reads_of_a_join_that_was_given_up_do_not_spoil_the_next(master: Master) -> None:
    reader = master.reader()
    pages = PageTable(Layout.of(master.stored_schema))
    buffer = DiskBuffer(reader, pages, 1 << 16)
    with busy(reader) as held:
        buffer.start(np.arange(8), in_flight=2)
        threading.Timer(0.2, held.set).start()
        numbers, rows = buffer.load(np.arange(8, 16))
        reader.pool.shutdown()  # whatever was begun is done
        keys = pages.measure(numbers << 32, [0]).columns()[0]
        before = int(reader.index.rows[:8].sum())
        assert keys.to_pylist() == np.cumsum([before, *rows[:-1].tolist()]).tolist()


def test_buffers_that_fill_huge_pages_lie_in_them(tmp_path: Path) -> None:
    """A disk reads to them at twice the rate. They are resident as a whole, so all of them is booked."""
    table = pa.table({"k": np.arange(200_000), "text": [f"row {i} " * 4 for i in range(200_000)]})
    built = direct(build_local(table, tmp_path / "m", key="k"))
    operator = joins.create("ssbj", built, on="k", memory=6_000_000)
    list(operator.process(pa.record_batch({"k": np.arange(100_000) * 2})))
    scan = operator.scan
    addresses = sorted(buffer.memory.address for buffer in scan._buffers)
    assert addresses[0] % HUGE == 0
    assert np.diff(addresses).tolist() == [scan.size] * (scan.buffers - 1)
    assert HUGE - scan.buffers * 4096 < scan.buffers * scan.size <= HUGE
    assert operator.ledger.components["disk buffer"] >= HUGE
    list(operator.flush())
    assert operator.stats.matched == 100_000
    scan.resize(100_000)
    list(operator.process(pa.record_batch({"k": np.arange(150_000)})))
    list(operator.flush())
    assert all(buffer.memory.size == scan.size for buffer in scan._buffers)
    assert operator.stats.matched == 250_000
    operator.close()


@pytest.mark.parametrize("size", [20_000, 200_000])
def test_buffers_go_before_others_come(master: Master, size: int) -> None:
    """In the middle of a chunk, with others read ahead: the scan goes on at the next page."""
    pages = PageTable(Layout.of(master.stored_schema))
    reader = master.scan_reader()
    scan = SegmentCycle(reader, pages, key=master.cluster_column, size=60_000)
    seen = [scan.next(3, 1 << 40).codes.copy() for _ in range(5)]
    memories = [weakref.ref(buffer.memory) for buffer in scan._buffers if buffer.memory.size]
    assert memories
    scan.resize(size)
    gc.collect()
    assert not any(memory() for memory in memories)
    while scan.position:
        seen.append(scan.next(3, 1 << 40).codes.copy())
    assert np.concatenate(seen).tolist() == list(range(ROWS))
    scan.close()


def test_a_buffer_holds_the_largest_segment(tmp_path: Path) -> None:
    """Rows without a key have segments of their own, which may be larger than all others."""
    keys = [*range(2_000), None, None]
    table = pa.table(
        {"k": pa.array(keys, pa.int64()), "text": [*(f"row {i}" for i in range(2_000)), "x" * 300_000, "y"]}
    )
    built = build_local(table, tmp_path / "m", key="k", segment_bytes=1024)
    reader = built.scan_reader(null_keys=True)
    scan = SegmentCycle(reader, PageTable(Layout.of(built.stored_schema)), key=None, size=10_000)
    assert scan.size >= 300_000
    scan.resize(5_000)
    assert scan.size >= 300_000
    pages, rows = 0, 0
    while pages < scan.pages:
        piece = scan.next(scan.pages, 1 << 40)
        pages, rows = pages + piece.pages, rows + piece.rows
    assert rows == len(table)
    scan.close()
