"""The regulator, against a staging area that follows a script."""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import InputError, NameRefused, RegulatorClosed, SpoolInUse
from millstream.source import FlowRegulator, regulator, sender
from scripted_staging import ScriptedStaging

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
Make = Callable[..., FlowRegulator]


@pytest.fixture
def staging(monkeypatch: pytest.MonkeyPatch) -> ScriptedStaging:
    scripted = ScriptedStaging()
    monkeypatch.setattr(sender, "connect", scripted.connect)
    monkeypatch.setattr(sender, "GATHER", 0.0)  # so that blocks are sent as they come
    return scripted


@pytest.fixture
def make(tmp_path: Path, staging: ScriptedStaging) -> Iterator[Make]:
    made: list[FlowRegulator] = []

    def regulator(**options: Any) -> FlowRegulator:
        options = {"source": "till", "spool": tmp_path / "spool", "schema": SCHEMA, "sender": "thread", **options}
        made.append(FlowRegulator("grpc://127.0.0.1:1", "orders", **options))
        return made[-1]

    yield regulator
    for one in made:
        one.close(timeout=0)


def ids(staging: ScriptedStaging, name: str = "id") -> list[Any]:
    return [row[name] for row in staging.stored["orders"]]


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def test_records_arrive_once_in_order_and_numbered(make: Make, staging: ScriptedStaging) -> None:
    with make(block=7) as one:
        for number in range(100):
            one.send((number, "x"))
        assert one.flush(5)
    assert ids(staging) == list(range(100))
    assert ids(staging, "_sequence") == list(range(100))
    assert all(row["_captured"] is not None for row in staging.stored["orders"])


def test_a_block_ends_by_count_by_bytes_and_by_linger(make: Make, staging: ScriptedStaging, tmp_path: Path) -> None:
    by_count = make(block=10, linger=60)
    for number in range(25):
        by_count.send((number, "x"))
    assert (by_count.stats.blocks, by_count.stats.pending) == (2, 5)
    by_bytes = make(block=1000, block_bytes=1100, linger=60, spool=tmp_path / "bytes")
    by_bytes.send((0, "x" * 300))
    by_bytes.end_block()
    for number in range(9):
        by_bytes.send((number, "x" * 300))
    assert by_bytes.stats.blocks == 4
    assert by_bytes.stats.pending == 0
    by_linger = make(block=1000, linger=0.02, spool=tmp_path / "linger")
    by_linger.send((0, "x"))
    assert until(lambda: by_linger.stats.acknowledged == 1)


def test_the_time_of_a_record_is_that_of_its_capture(make: Make, staging: ScriptedStaging) -> None:
    one = make(linger=60)
    before = time.time()
    one.send((0, "x"))
    between = time.time()
    time.sleep(0.05)
    one.send((1, "x"))
    assert one.flush(5)
    first, second = (row["_captured"].timestamp() for row in staging.stored["orders"])
    assert before - 1e-5 <= first <= between + 1e-5
    assert second - first >= 0.049


def test_a_loop_that_appends_itself_loses_nothing_and_dates_nothing_late(make: Make, staging: ScriptedStaging) -> None:
    one = make(block=10, linger=0.03)
    block, times = one.block, []
    for number in range(95):
        block.append((number, "x"))
        times.append(time.time())
        if len(block) > block.limit:
            one.end_block()
        if number % 30 == 0:
            time.sleep(0.08)
    assert one.flush(5)
    assert ids(staging) == list(range(95))
    late = [then - row["_captured"].timestamp() for row, then in zip(staging.stored["orders"], times, strict=True)]
    assert all(-1e-5 <= seconds < 1.0 for seconds in late)
    assert one.stats.sent == 95


def test_staging_away_at_the_start_and_in_between(
    make: Make, staging: ScriptedStaging, caplog: pytest.LogCaptureFixture
) -> None:
    staging.away = True
    one = make()
    with caplog.at_level(logging.WARNING):
        for number in range(500):
            one.send((number, "x"))
        assert not one.flush(0.3)
    assert "staging is away" in caplog.text
    assert one.stats.problem
    assert one.stats.spooled == 500
    assert one.stats.spool_bytes > 0
    staging.away = False
    assert one.flush(10)
    staging.away = True
    for number in range(500, 800):
        one.send((number, "x"))
    assert not one.flush(0.1)
    staging.away = False
    assert one.flush(10)
    assert ids(staging) == list(range(800))
    assert one.stats.spool_bytes == 0
    assert one.stats.problem == ""


@pytest.mark.parametrize("stored", [False, True])
def test_a_session_that_ends_is_taken_up_where_staging_is(make: Make, staging: ScriptedStaging, stored: bool) -> None:
    staging.loses_answer = stored
    one = make(block=10)
    for number in range(400):
        if number % 50 == 0:
            staging.ends_after = 1
        one.send((number, "x"))
        time.sleep(0.0005)
    staging.ends_after = None
    assert one.flush(10)
    assert ids(staging) == list(range(400))
    assert staging.sessions > 1


def test_no_acknowledgement_in_time_means_a_new_session(make: Make, staging: ScriptedStaging) -> None:
    staging.silent = True
    one = make(timeout=0.2)
    one.send((0, "x"))
    assert not one.flush(0.1)
    assert until(lambda: staging.sessions >= 2)
    staging.silent = False
    assert one.flush(10)
    assert ids(staging) == [0]


def test_the_next_start_sends_what_the_last_one_left(make: Make, staging: ScriptedStaging) -> None:
    staging.away = True
    first = make()
    for number in range(250):
        first.send((number, "x"))
    assert not first.close(timeout=0)
    staging.away = False
    second = make()
    for number in range(250, 300):
        second.send((number, "x"))
    assert second.flush(10)
    assert ids(staging) == list(range(300))
    assert ids(staging, "_sequence") == list(range(300))
    assert len({row["_incarnation"] for row in staging.stored["orders"]}) == 1


def test_bad_records_are_counted_and_kept_and_numbers_have_no_gap(
    make: Make, staging: ScriptedStaging, tmp_path: Path
) -> None:
    one = make(block=10)
    for number in range(50):
        one.send((number, "x") if number % 10 else ("bad", "x"))
    one.send(3.25)  # type: ignore[arg-type]
    one.send({"id": 50, "name": "dict"})
    assert one.flush(5)
    assert one.stats.rejected == 6
    assert ids(staging, "_sequence") == list(range(46))
    kept = [json.loads(line) for line in (tmp_path / "spool" / "rejects.jsonl").read_text().splitlines()]
    assert [line["record"] for line in kept] == [0, 10, 20, 30, 40, 50]
    assert kept[1]["value"] == ["bad", "x"]
    assert "column id is int64, got str" in kept[1]["reason"]


def test_rejects_that_are_met_again_are_not_kept_twice(make: Make, staging: ScriptedStaging, tmp_path: Path) -> None:
    staging.silent = True
    one = make(timeout=0.05, block=5)
    for number in range(20):
        one.send((number, "x") if number % 5 else ("bad", "x"))
    assert until(lambda: staging.sessions >= 3)
    one.close(timeout=0)
    staging.silent = False
    again = make()
    assert again.flush(10)
    assert again.stats.rejected == 4
    assert len((tmp_path / "spool" / "rejects.jsonl").read_text().splitlines()) == 4
    assert len(ids(staging)) == 16


def test_a_dict_may_change_after_it_was_sent(make: Make, staging: ScriptedStaging) -> None:
    one = make(schema=None)
    record: dict[str, Any] = {"id": 0, "name": "a"}
    for number in range(30):
        record["id"] = number
        one.send(record)
    assert one.flush(5)
    assert ids(staging) == list(range(30))


def test_a_schema_is_inferred_once_and_kept_with_the_spool(make: Make, staging: ScriptedStaging) -> None:
    one = make(schema=None, block=2)
    one.send({"id": 1, "price": 2})
    one.send({"id": 2, "price": 2.5})
    assert one.flush(5)
    one.close()
    again = make(schema=None)
    assert again.schema is not None
    assert str(again.schema.field("price").type) == "double"
    again.send((3, 4))
    assert again.flush(5)
    assert ids(staging, "price") == [2.0, 2.5, 4.0]


def test_records_without_any_schema_are_refused_with_the_reason(
    make: Make, staging: ScriptedStaging, tmp_path: Path
) -> None:
    one = make(schema=None, block=2)
    one.send({"not a name": 1})
    one.send({"not a name": 2})
    assert one.stats.rejected == 2
    assert "not a name" in (tmp_path / "spool" / "refused.jsonl").read_text()
    one.send({"id": 1})
    assert one.flush(5)
    assert ids(staging) == [1]


def test_batches_and_records_mix_and_new_columns_flow(make: Make, staging: ScriptedStaging) -> None:
    one = make(block=10)
    one.send((0, "x"))
    one.send_batch(pa.record_batch({"name": ["y", "y"], "id": pa.array([1, 2], pa.int32())}), cursor=b"two")
    one.send((3, "x"))
    one.send_batch(pa.record_batch({"id": [4], "extra": [1.5]}))
    one.send({"id": 5, "name": "z", "extra": 2.5})
    one.send_batch(pa.record_batch({"id": ["bad", "6"]}))
    assert one.flush(5)
    assert ids(staging) == [0, 1, 2, 3, 4, 5]
    assert [row.get("extra") for row in staging.stored["orders"]] == [None, None, None, None, 1.5, 2.5]
    assert one.cursor == b"two"
    assert one.acknowledged_cursor == b"two"
    assert one.stats.rejected == 2


def test_a_schema_that_staging_refuses_keeps_the_records(make: Make, staging: ScriptedStaging) -> None:
    staging.refuses = ["name"]
    one = make()
    one.send((1, "x"))
    assert not one.flush(0.3)
    assert "refused by the script" in one.stats.problem
    assert one.stats.spooled == 1


def test_a_staging_area_that_lost_its_log_gets_new_numbers(make: Make, staging: ScriptedStaging) -> None:
    one = make()
    one.send((0, "x"))
    assert one.flush(5)
    one.close()
    staging.next.clear()
    again = make()
    again.send((1, "x"))
    assert again.flush(5)
    first, second = staging.stored["orders"]
    assert first["_incarnation"] != second["_incarnation"]
    assert second["_sequence"] == 0


@pytest.mark.parametrize("bound", [200_000])
def test_a_full_spool_drops_what_is_new_and_counts_it(
    make: Make, staging: ScriptedStaging, bound: int, tmp_path: Path
) -> None:
    staging.away = True
    one = make(spool_bytes=bound)
    for number in range(30_000):
        one.send((number, "x" * 20))
    one.end_block()
    stats = one.stats
    used = sum(path.stat().st_size for path in (tmp_path / "spool").glob("*.spool"))
    assert used <= bound + 10_000
    assert stats.dropped > 0
    assert stats.sent == 30_000 == stats.spooled + stats.dropped
    staging.away = False
    assert one.flush(10)
    assert ids(staging) == list(range(30_000 - stats.dropped))
    one.send((-1, "room again"))
    assert one.flush(5)
    assert ids(staging)[-1] == -1


def test_a_full_spool_makes_send_wait_if_that_is_wanted(make: Make, staging: ScriptedStaging) -> None:
    staging.away = True
    one = make(spool_bytes=100_000, when_full="wait")
    sent = threading.Event()

    def send() -> None:
        for number in range(20_000):
            one.send((number, "x" * 20))
        sent.set()

    thread = threading.Thread(target=send)
    thread.start()
    assert not sent.wait(0.3)
    staging.away = False
    assert sent.wait(20)
    thread.join()
    assert one.flush(10)
    assert one.stats.dropped == 0
    assert ids(staging) == list(range(20_000))


def test_a_disk_that_fails_never_reaches_the_application(
    make: Make, staging: ScriptedStaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make(block=10)
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    for number in range(20):
        one.send((number, "x"))
    monkeypatch.setattr(os, "writev", real)
    for number in range(20, 30):
        one.send((number, "x"))
    assert one.flush(5)
    assert one.stats.dropped == 20
    assert ids(staging) == list(range(20, 30))


def test_many_threads_lose_nothing(make: Make, staging: ScriptedStaging) -> None:
    one = make(block=13, linger=0.001)

    def send(base: int) -> None:
        for number in range(5_000):
            one.send((base + number, "x"))

    threads = [threading.Thread(target=send, args=(10_000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.flush(10)
    found = ids(staging)
    assert len(found) == 20_000
    for number in range(4):
        own = [one for one in found if one // 10_000 == number]
        assert own == list(range(10_000 * number, 10_000 * number + 5_000))


def test_mistakes_of_the_program_are_raised(make: Make, tmp_path: Path) -> None:
    for options, kind, words in (
        ({"block": 0}, InputError, "must be positive"),
        ({"when_full": "panic"}, InputError, "when_full is drop or wait"),
        ({"source": "a/b"}, NameRefused, "cannot name a source"),
        ({"schema": pa.schema([("a b", pa.int64())])}, NameRefused, "column"),
        ({"spool_bytes": "lots"}, InputError, "is not a size"),
    ):
        with pytest.raises(kind, match=words):
            make(**options)
    with pytest.raises(InputError, match="grpc://"):
        FlowRegulator("http://x", "s", source="a", spool=tmp_path / "x")
    one = make()
    with pytest.raises(SpoolInUse):
        make()
    one.close()
    for call in (lambda: one.send((1, "x")), lambda: one.flush(), lambda: one.send_batch(pa.record_batch({"id": [1]}))):
        with pytest.raises(RegulatorClosed, match="closed"):
            call()


def test_a_forked_child_cannot_touch_what_is_the_parents(make: Make, staging: ScriptedStaging) -> None:
    one = make(linger=60)
    one.send((0, "x"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            one.send((1, "x"))
        except RegulatorClosed:
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    one.send((2, "x"))
    assert one.flush(5)
    assert ids(staging) == [0, 2]


def test_a_regulator_that_nobody_closed_does_it_at_exit(make: Make, staging: ScriptedStaging) -> None:
    one = make(linger=60)
    one.send((0, "x"))
    regulator._at_exit()
    assert ids(staging) == [0]
    with pytest.raises(RegulatorClosed):
        one.send((1, "x"))


def test_the_clock_decides_neither_order_nor_identity(
    make: Make, staging: ScriptedStaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([2e9, 1e9, 0.0, -5.0, 4e9] + [1.7e9] * 100)
    one = make(linger=60)
    monkeypatch.setattr(regulator, "_now", lambda: next(clock))
    for number in range(5):
        one.send((number, "x"))
    assert one.flush(5)
    assert ids(staging) == [0, 1, 2, 3, 4]
    assert ids(staging, "_sequence") == [0, 1, 2, 3, 4]
    assert staging.stored["orders"][4]["_captured"].year == 2096


def test_its_own_cost_is_counted(make: Make, staging: ScriptedStaging) -> None:
    gc.collect()
    one = make()
    for number in range(2_000):
        one.send((number, "x"))
    assert one.flush(5)
    stats = one.stats
    assert 0 < stats.application_ns_per_record < 100_000
    assert stats.sender_ns > 0
    assert stats.bytes_spooled > 0 < stats.bytes_sent
    assert stats.as_dict()["sent"] == 2_000
