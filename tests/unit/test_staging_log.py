"""The log of a stream: positions, segments, retention, and what a store makes of a directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from millstream import failpoints
from millstream.errors import (
    CorruptLog,
    InputError,
    PositionGone,
    RecordGap,
    StagingFailed,
    StagingFull,
    StagingLocked,
    UnknownStream,
)
from millstream.staging import Limits, Retention
from millstream.staging.log import Log
from millstream.staging.store import Store
from millstream.staging.stream import Stream
from staging_area import SCHEMA, records


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def put(stream: Stream, first: int, count: int, source: str = "till") -> int:
    """Store records durably; the number that is due next."""
    stored = stream.put(source, incarnation="a", first=first, batch=records(first, count))
    stream.log.sync(stored.mark)
    return stored.next


def positions(stream: Stream, start: int, end: int) -> list[tuple[int, int]]:
    return [(header.position, header.rows) for header, _ in stream.read(start, end)]


def small_segments(stream: Stream, size: int = 2000) -> None:
    stream.log._segment_bytes = size


def test_positions_go_through_all_sources(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        stream = store.open("orders", SCHEMA)
        put(stream, 0, 3, "a")
        put(stream, 0, 5, "b")
        put(stream, 3, 2, "a")
        assert positions(stream, 0, 10) == [(0, 3), (3, 5), (8, 2)]
        assert positions(stream, 4, 9) == [(3, 5), (8, 2)]
        assert positions(stream, 3, 3) == []
        assert (stream.next("a", "a"), stream.next("b", "a"), stream.next("a", "other")) == (5, 5, 0)


def test_only_durable_records_can_be_read(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        stream = store.open("orders", SCHEMA)
        put(stream, 0, 3)
        stored = stream.put("till", incarnation="a", first=3, batch=records(3, 4))
        assert stream.log.durable == 3
        with pytest.raises(PositionGone):
            positions(stream, 0, 4)
        stream.log.sync(stored.mark)
        assert positions(stream, 0, 7) == [(0, 3), (3, 4)]


def test_everything_is_found_again(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        stream = store.open("orders", SCHEMA)
        small_segments(stream)
        for first in range(0, 100, 5):
            put(stream, first, 5)
        store.open("empty", SCHEMA)
        stream.register("sales")
        stream.consumed("sales", 42)
        before = stream.describe()
        assert len(stream.log.segments()) > 3
    with Store(tmp_path) as store:
        stream = store.stream("orders")
        assert stream.describe() == before
        assert positions(stream, 0, 100) == [(first, 5) for first in range(0, 100, 5)]
        assert positions(stream, 51, 52) == [(50, 5)]
        assert stream.next("till", "a") == 100
        assert put(stream, 100, 1) == 101
        assert [one.name for one in store.streams()] == ["empty", "orders"]
        with pytest.raises(UnknownStream):
            store.stream("nothing")


def test_repeats_overlaps_and_gaps(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        stream = store.open("orders", SCHEMA)
        assert put(stream, 0, 5) == 5
        assert put(stream, 0, 5) == 5
        assert put(stream, 2, 2) == 5
        assert put(stream, 3, 4) == 7
        with pytest.raises(RecordGap) as caught:
            put(stream, 8, 1)
        assert caught.value.expected == 7
        assert positions(stream, 0, 7) == [(0, 5), (5, 2)]


def test_retention_drops_what_every_flow_has_consumed(tmp_path: Path) -> None:
    with Store(tmp_path, retention=Retention(keep=0)) as store:
        stream = store.open("orders", SCHEMA)
        small_segments(stream)
        stream.register("a")
        stream.register("b")
        for first in range(0, 100, 5):
            put(stream, first, 5)
        stream.consumed("a", 80)
        assert stream.log.start == 0
        stream.consumed("b", 60)
        assert 0 < stream.log.start <= 60
        kept = stream.log.start
        assert positions(stream, 60, 100)[0][0] == 60
        with pytest.raises(PositionGone, match=r"position 0 .* is gone"):
            positions(stream, 0, 100)
        stream.forget("b")
        assert kept < stream.log.start <= 80
        assert stream.backlog("a") == (80, 100)
        with pytest.raises(PositionGone):
            stream.consumed("a", 101)
        stream.consumed("a", 5)  # late news change nothing
        assert stream.backlog("a") == (80, 100)
    with Store(tmp_path, retention=Retention(keep=0)) as store:
        assert put(store.stream("orders"), 100, 1) == 101


def test_keep_holds_consumed_segments(tmp_path: Path) -> None:
    with Store(tmp_path, retention=Retention(keep=10_000)) as store:
        stream = store.open("orders", SCHEMA)
        small_segments(stream)
        for first in range(0, 500, 5):
            put(stream, first, 5)
        stream.consumed("a", 500)
        assert 7_000 < stream.log.size <= 10_000


def fill(stream: Stream) -> int:
    """Send until it is full; how many records are in."""
    due = 0
    for _ in range(5000):
        try:
            due = put(stream, due, 200)
        except StagingFull:
            return due
    return due


def test_the_limit_holds_sources_back_until_flows_have_consumed(tmp_path: Path) -> None:
    with Store(tmp_path, retention=Retention(limit=1 << 20)) as store:
        stream = store.open("orders", SCHEMA)
        stream.register("sales")
        due = fill(stream)
        assert due > 10_000
        assert (1 << 20) * 0.9 < stream.log.size <= 1 << 20
        stream.consumed("sales", due // 2)
        assert put(stream, due, 200) == due + 200


def test_the_limit_drops_when_told(tmp_path: Path) -> None:
    with Store(tmp_path, retention=Retention(limit=1 << 20, when_full="drop")) as store:
        stream = store.open("orders", SCHEMA)
        stream.register("sales")
        for first in range(0, 40_000, 200):
            put(stream, first, 200)
        assert stream.log.size <= 1 << 20
        assert stream.log.start > 0
        assert stream.backlog("sales") == (stream.log.start, 40_000)


def test_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        stream = store.open("orders", SCHEMA)
        put(stream, 0, 3)
        failpoints.arm("staging.before-write=enospc")
        with pytest.raises(StagingFull) as caught:
            put(stream, 3, 3)
        assert caught.value.retryable
        failpoints.arm("")
        assert put(stream, 3, 3) == 6
        assert positions(stream, 0, 6) == [(0, 3), (3, 3)]


def test_an_fsync_that_fails_ends_the_log(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        stream = store.open("orders", SCHEMA)
        heard: list[StagingFailed] = []
        store.on_failure = heard.append
        put(stream, 0, 3)
        failpoints.arm("staging.before-fsync=error:1")
        with pytest.raises(StagingFailed, match="fsync"):
            put(stream, 3, 3)
        with pytest.raises(StagingFailed):  # though fsync would work again
            put(stream, 3, 3)
        assert heard == [store.failure]
        assert stream.log.durable == 3
    with Store(tmp_path) as store:
        assert put(store.stream("orders"), 3, 3) == 6


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Store(tmp_path), pytest.raises(StagingLocked, match="another process"):
        Store(tmp_path)
    Store(tmp_path).close()


def test_directories_that_hold_something_else(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(InputError, match="something else"):
        Store(tmp_path)
    with pytest.raises(InputError, match="not a directory"):
        Store(tmp_path / "holiday.jpg")


def test_names_are_no_paths(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        put(store.open("CON.log", SCHEMA), 0, 1)
        names = {path.name for path in tmp_path.rglob("*")}
        assert not any("CON" in name for name in names)


def test_a_missing_segment_is_noticed(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        stream = store.open("orders", SCHEMA)
        small_segments(stream)
        for first in range(0, 100, 5):
            put(stream, first, 5)
        segments = sorted(stream.log.directory.glob("*.log"))
    segments[2].rename(tmp_path / "away")
    with Store(tmp_path) as store, pytest.raises(CorruptLog, match="missing"):
        positions(store.stream("orders"), 0, 100)
    (tmp_path / "away").rename(segments[2])
    segments[-1].rename(tmp_path / "away")
    with pytest.raises(CorruptLog, match="missing"):
        Store(tmp_path)


def test_a_segment_of_another_log(tmp_path: Path) -> None:
    for name in "ab":
        with Store(tmp_path / name) as store:
            put(store.open("orders", SCHEMA), 0, 5)
    theirs, ours = (next((tmp_path / name).rglob("*.log")) for name in "ab")
    ours.write_bytes(theirs.read_bytes())
    with pytest.raises(CorruptLog, match="another log"):
        Store(tmp_path / "b")


def test_a_crash_while_a_stream_is_made(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        failpoints.arm("staging.before-rename=error")
        with pytest.raises(OSError, match="failpoint"):
            store.open("orders", SCHEMA)
        failpoints.arm("")
        assert put(store.open("orders", SCHEMA), 0, 1) == 1
    with Store(tmp_path) as store:
        assert [stream.name for stream in store.streams()] == ["orders"]


@pytest.mark.parametrize("options", [{"limit": 1000}, {"keep": -1}, {"when_full": "explode"}])
def test_retention_that_cannot_work(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Retention(**options)  # type: ignore[arg-type]


def test_many_threads_share_the_fsync(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with Store(tmp_path, limits=Limits()) as store:
        stream = store.open("orders", SCHEMA)
        small_segments(stream, 20_000)

        def source(name: str) -> int:
            due = 0
            for _ in range(50):
                due = put(stream, due, 10, name)
            return due

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(source, [f"s{number}" for number in range(8)])) == [500] * 8
        counted: dict[str, int] = {}
        for header, _ in stream.read(0, 4000):
            assert header.first == counted.get(header.source, 0)
            counted[header.source] = header.end
        assert sum(counted.values()) == 4000


def test_the_log_is_as_its_document_says(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        stream = store.open("orders", SCHEMA)
        put(stream, 0, 1)
        path = next(stream.log.directory.glob("*.log"))
        assert path.name == "00000000000000000000.log"
        content = path.read_bytes()
    assert content[:5] == b"MSSG\x01"
    length = int.from_bytes(content[8:12], "little")
    block = content[16 + length :]
    assert block[:5] == b"MSBK\x01"
    header = int.from_bytes(block[8:12], "little")
    payload = int.from_bytes(block[16:24], "little")
    assert block[80:90] == b"orderstill"
    assert len(block) == header + payload
    message = pa.py_buffer(block[header:])
    batch = pa.ipc.read_record_batch(message, pa.schema(list(stream.columns)))
    assert batch.column("text").to_pylist() == ["record 0"]


def test_log_needs_no_store(tmp_path: Path) -> None:
    log = Log(tmp_path, log="x", stream="orders", segment_bytes=1000)
    assert (log.start, log.durable, log.sources) == (0, 0, {})
    log.close()
    with pytest.raises(StagingFailed, match="closed"):
        log.sync(1)
