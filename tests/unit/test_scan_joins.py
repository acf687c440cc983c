"""The joins that scan R: the loop of the papers, output in stream order, and memory that follows the rate."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from driving import batches_of, run_join
from millstream import joins
from millstream.errors import BudgetTooSmall, InputError
from millstream.joins.ameshjoin import Observed, RateTuner
from millstream.joins.scanjoin import PACKET_BUDGET
from millstream.master import Master, build_local
from millstream.master.cycle import SegmentCycle
from millstream.workloads import Zipf
from oracle import assert_same_bag, expected_join

every_scan = pytest.mark.parametrize("algorithm", joins.SCANS)

TABLE = pa.table({"k": [f"key {i % 300}" for i in range(1_200)], "name": [f"name {i}" * (i % 7) for i in range(1_200)]})
STREAM = pa.table(
    {
        "k": [None if i % 19 == 0 else f"key {i * i % 400}" for i in range(3_000)],
        "position": np.arange(3_000),
    }
)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Master:
    return build_local(TABLE, tmp_path_factory.mktemp("scan") / "m", key="k", segment_bytes=1_024)


@pytest.fixture(scope="module")
def three_pages(tmp_path_factory: pytest.TempPathFactory) -> Master:
    """R = p0, p1, p2: one row a page."""
    table = pa.table({"k": [0, 1, 2], "page": ["p0", "p1", "p2"], "filler": ["x" * 300] * 3})
    built = build_local(table, tmp_path_factory.mktemp("three") / "m", key="k", segment_bytes=256)
    assert built.statistics.segments == 3
    return built


class Script:
    """A tuner that says what it was told to."""

    def __init__(self, steps: list[tuple[int, int]]) -> None:
        self.steps = steps

    def choose(self, observed: Observed) -> tuple[int, int]:
        return self.steps.pop(0)


def queue(operator: object) -> list[tuple[int, set[int]]]:
    """What the paper shows after each loop: first page of each packet, and the pages that it was joined with."""
    window, pages = operator.window, operator.scan.pages  # type: ignore[attr-defined]
    return [
        (packet.began % pages, {page % pages for page in range(packet.began, operator.clock)})  # type: ignore[attr-defined]
        for packet in window.packets
    ]


def test_example_3_1(three_pages: Master) -> None:
    """AMESHJOIN with w = 1, b = 1, 1, then 2: every tuple meets p0, p1 and p2 once, whenever it came."""
    tuner = Script([(1, 1), (1, 1), (1, 2), (1, 1)])
    operator = joins.create("ameshjoin", three_pages, on="k", memory="1MB", tuner=tuner, window=1)
    seen: list[list[tuple[int, set[int]]]] = []
    results: list[dict[str, object]] = []
    for number, key in enumerate([0, 1, 2]):
        batch = pa.RecordBatch.from_pydict({"k": [key], "s": [f"s{number}"]})
        results += [row for out in operator.process(batch) for row in out.to_pylist()]
        seen.append(queue(operator))
    assert seen[0] == [(0, {0})]
    assert seen[1] == [(0, {0, 1}), (1, {1})]
    assert seen[2] == [(2, {2, 0})]
    assert operator.scan.position == 1
    assert [row["page"] for row in results] == ["p0", "p1", "p2"]
    assert operator.stats.matched == 2, "s0 and s1 have left"
    assert not list(operator.flush()), "s2 met its only match before"
    assert operator.stats.matched == 3
    assert operator.stats.segments_read == 5
    operator.close()


@every_scan
def test_a_row_meets_every_page_once(algorithm: str, master: Master) -> None:
    """Rows that come while the scan is anywhere: all matches, no match twice, and R read in turn."""
    operator = joins.create(algorithm, master, on="k", memory="240KB", how="inner", window=64)
    out = [batch for part in batches_of(STREAM, 37) for batch in operator.process(part)]
    assert operator.stats.iterations > 3
    before = operator.stats.rows_out
    out += operator.flush()
    assert before > 0, "results come before the flush"
    assert_same_bag(pa.Table.from_batches(out), expected_join(STREAM, TABLE, on="k", how="inner"))
    operator.close()


@every_scan
def test_a_drained_batch_that_fits_takes_one_turn(algorithm: str, master: Master) -> None:
    operator = joins.create(algorithm, master, on="k", memory="4MB", drained=True)
    pages = master.statistics.segments
    for turn in (1, 2, 3):
        for part in batches_of(STREAM, 500):
            list(operator.process(part))
        list(operator.flush())
        assert operator.stats.segments_read <= turn * pages
    operator.close()


@pytest.mark.parametrize("seed", range(4))
def test_any_w_and_b_at_any_time(seed: int, master: Master) -> None:
    rng = random.Random(seed)

    class Any_:
        def choose(self, observed: Observed) -> tuple[int, int]:
            return rng.choice([1, 2, 5, 50, 300, 1000]), rng.choice([1, 2, 3, 10, 50, 500])

    for how in joins.HOWS:
        least = joins.least_memory("ameshjoin", master, on="k", how=how)
        memory = rng.choice([least, least + 20_000, 10 * least])
        result = run_join("ameshjoin", master, STREAM, on="k", how=how, memory=memory, tuner=Any_())
        assert_same_bag(result, expected_join(STREAM, TABLE, on="k", how=how))


def test_the_least_memory_rises_and_falls_with_the_rate() -> None:
    at = Observed(
        rate=0.0, busy=0.1, page_seconds=1e-4, row_seconds=1e-6, pages=10_000, page_bytes=16_000, row_bytes=100.0,
        largest_buffer=1 << 20, memory=1 << 30, w=7, b=3,
    )  # fmt: skip
    tuner = RateTuner()
    assert tuner.choose(at) == (7, 3), "nothing is known yet"

    def memory(rate: float) -> float:
        w, b = tuner.choose(replace(at, rate=rate))
        held = tuner._memory(at, w, b)
        seconds = 200e-6 + b * at.page_seconds + w * at.row_seconds
        assert w / seconds >= rate, "it keeps up"
        return held

    needed = [memory(rate) for rate in (100, 1_000, 10_000, 100_000)]
    assert needed == sorted(needed)
    assert needed[-1] > 5 * needed[0]
    w, b = tuner.choose(replace(at, rate=500_000.0, memory=1 << 24))
    assert tuner._memory(at, w, b) <= 1 << 24, "the budget is kept when the rate cannot be"
    busy = tuner.choose(replace(at, rate=100.0, busy=1.0))
    assert busy[0] * -(-at.pages // busy[1]) > at.w * -(-at.pages // at.b), "a stream that is held up gets more"


def test_ameshjoin_gives_memory_back(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast stream, then a slow one, by a clock of our own."""
    now = [0.0]
    operator = joins.create("ameshjoin", master, on="k", memory="4MB")
    monkeypatch.setattr(operator, "seconds", lambda: now[0])
    used: dict[str, int] = {}
    for name, pause, times in (("fast", 0.01, 150), ("slow", 20.0, 150), ("fast again", 0.01, 150)):
        for part in batches_of(STREAM, 100)[:10] * (times // 10):
            list(operator.process(part))
            now[0] += pause
        used[name] = operator.ledger.used
    assert used["slow"] < used["fast"]
    assert used["slow"] < used["fast again"]
    list(operator.flush())
    operator.close()


def test_ameshjoin_is_busy_while_it_works_on_a_long_batch(master: Master) -> None:
    """Else it would take a stream that it cannot keep up with for a slow one."""
    busy: list[float] = []

    class Watching(RateTuner):
        def choose(self, observed: Observed) -> tuple[int, int]:
            busy.append(observed.busy)
            return super().choose(observed)

    ticks = itertools.count()
    operator = joins.create("ameshjoin", master, on="k", memory="1MB", tuner=Watching())
    operator.seconds = lambda: 0.01 * next(ticks)  # type: ignore[attr-defined]
    list(operator.process(batches_of(STREAM, len(STREAM))[0]))
    assert max(busy) > 0.9
    operator.close()


def test_rmeshjoin_cuts_a_turn_as_it_is_told(master: Master) -> None:
    for partitions in (1, 4, 16):
        operator = joins.create("rmeshjoin", master, on="k", memory="2MB", partitions=partitions, disk_buffer="8KB")
        for part in batches_of(STREAM, 200):
            list(operator.process(part))
            assert len(operator.window.packets) <= partitions + 1
        turns = min(partitions, 2_000_000 // PACKET_BUDGET)
        assert turns / 2 <= operator._iterations(operator.b) <= turns + 1  # iterations have whole reads
        list(operator.flush())
        operator.close()


def test_ssbj_caches_values_that_are_worth_it(tmp_path: Path) -> None:
    """m rows in R and n in the window: hot values with few rows go to the cache, hot ones with many do not."""
    rows = np.concatenate([np.arange(2_000), np.full(500, 7)])
    table = pa.table({"k": rows, "v": np.arange(len(rows))})
    master = build_local(table, tmp_path / "m", key="k", segment_bytes=2_048)
    rng = np.random.default_rng(0)
    asked = np.where(rng.random(60_000) < 0.5, rng.integers(1, 4, 60_000), rng.integers(0, 3_000, 60_000))
    asked[::400] = 7
    stream = pa.table({"k": asked, "e": np.arange(60_000)})
    operator = joins.create("ssbj", master, on="k", how="left", memory="500KB")
    out = [batch for part in batches_of(stream, 1_000) for batch in operator.process(part)]
    out += operator.flush()
    assert operator.stats.cache_hits > 20_000
    keys = np.array([1, 2, 3, 7])
    assert (operator.cache.probe(keys)[1] >= 0).tolist() == [True, True, True, False]
    result = pa.Table.from_batches(out)
    assert len(result) == len(expected_join(stream, table, on="k", how="left"))
    assert operator.stats.matched + operator.stats.unmatched == 60_000
    operator.close()


def test_ssbj_caches_a_value_once(tmp_path: Path) -> None:
    """Rows of a batch whose value is cached while others of the batch enter do not bring it in again."""
    keys = 20_000
    master = build_local(pa.table({"k": np.arange(keys), "v": np.arange(keys)}), tmp_path / "m", key="k")
    asked = Zipf(keys, 1.0).sample(np.random.default_rng(3), 400_000)
    operator = joins.create("ssbj", master, on="k", memory="600KB")
    for part in batches_of(pa.table({"k": asked}), 20_000):
        list(operator.process(part))
        table = operator.cache.table
        cached = table.key[table.rows >= 0]
        assert len(cached) == len(np.unique(cached))
    assert operator.stats.cache_hits > 100_000
    operator.close()


@every_scan
class TestOrdered:
    @pytest.mark.parametrize("how", joins.HOWS)
    def test_stream_order(self, algorithm: str, how: str, master: Master) -> None:
        for memory in ("1MB", "8MB"):
            result = run_join(algorithm, master, STREAM, on="k", how=how, memory=memory, batch_rows=111, ordered=True)
            assert_same_bag(result, expected_join(STREAM, TABLE, on="k", how=how))
            order = result["position"].to_numpy()
            assert (np.diff(order) >= 0).all()

    def test_too_little_memory_to_hold_results_back(self, algorithm: str, tmp_path: Path) -> None:
        table = pa.table({"k": np.zeros(4_000, dtype=np.int64), "text": ["x" * 200] * 4_000})
        master = build_local(table, tmp_path / "m", key="k", segment_bytes=4_096)
        least = joins.least_memory(algorithm, master, on="k")
        operator = joins.create(algorithm, master, on="k", memory=least + 100_000, ordered=True)
        batch = pa.RecordBatch.from_pydict({"k": np.zeros(50, dtype=np.int64)})
        with pytest.raises(BudgetTooSmall, match="ordered=True") as caught:
            [*operator.process(batch), *operator.flush()]
        assert caught.value.least > least + 100_000
        operator.close()


@pytest.mark.parametrize("algorithm", [name for name in joins.ALGORITHMS if name not in (*joins.SCANS, "auto")])
def test_index_joins_have_no_order_and_no_condition(algorithm: str, master: Master) -> None:
    for options in ({"ordered": True}, {"condition": joins.compare("position", "<", "name")}):
        with pytest.raises(InputError, match="meshjoin"):
            joins.create(algorithm, master, on="k", **options)


def test_auto_scans_where_only_a_scan_will_do(master: Master) -> None:
    operator = joins.create("auto", master, on="k", ordered=True)
    assert operator.name == "meshjoin"
    operator.close()


@pytest.mark.parametrize(
    "options", [{"window": 0}, {"window": "many"}, {"disk_buffer": "none"}, {"condition": 7}], ids=str
)
def test_bad_options(options: dict[str, object], master: Master) -> None:
    with pytest.raises(InputError):
        joins.create("meshjoin", master, on="k", **options)
    with pytest.raises(InputError, match="partitions"):
        joins.create("rmeshjoin", master, on="k", partitions=0)
    with pytest.raises(InputError, match="on="):
        joins.create("meshjoin", master)


def test_a_window_of_so_many_rows_takes_so_much_memory(master: Master) -> None:
    """w given: the window holds the rows of one turn and the rest of the budget is left alone."""

    def used(window: int) -> int:
        operator = joins.create("meshjoin", master, on="k", memory="8MB", disk_buffer="16KB", window=window)
        for part in _endless(200):
            list(operator.process(part))
        assert len(operator.window) <= window * (operator._iterations(operator.b) + 1)
        peak = operator.ledger.components["stream table"]
        operator.close()
        return int(peak)

    assert used(10) < used(100) < 4_000_000


def test_a_share_of_r_needs_no_more_memory_than_was_booked(tmp_path: Path) -> None:
    """Long pages, then short ones: the long ones limit how many are read at once, until a share has none of them."""
    filler = ["x" * 8_000] * 40 + [""] * 12_000
    table = pa.table({"k": np.arange(len(filler)), "filler": filler})
    master = build_local(table, tmp_path / "m", key="k", segment_bytes=2_048)
    operator = joins.create("meshjoin", master, on="k", memory="2MB", disk_buffer="64KB")
    list(operator.process(pa.RecordBatch.from_pydict({"k": [-1]})))
    list(operator.flush())
    scan, booked = operator.scan, operator.ledger.components["disk buffer"]
    most, whole = scan.most_rows, _most_rows(scan)
    operator.restrict(1, 2)
    assert whole < _most_rows(scan) <= most
    assert scan.nbytes == booked
    operator.close()


def _most_rows(scan: SegmentCycle) -> int:
    """Rows of the chunk that has most, as they are read in a turn."""
    ends = scan.pages_read + scan.pages
    rows = [0]
    while scan.pages_read < ends:
        rows.append(scan.next(scan.pages, scan.pages).rows)
    return max(rows)


def _endless(batches: int) -> Iterator[pa.RecordBatch]:
    for _ in range(batches // 10):
        yield from batches_of(STREAM, 300)


@pytest.mark.parametrize("algorithm", ["meshjoin", "ameshjoin", "rmeshjoin", "ssbj"])
@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32()], ids=str)
def test_the_least_memory_does_for_rows_of_a_few_bytes(algorithm: str, kind: pa.DataType, tmp_path: Path) -> None:
    keys = pa.array(np.arange(100 if kind == pa.int8() else 20_000), kind)
    master = build_local(pa.table({"k": keys}), tmp_path / "m", key="k", segment_bytes=16_384)
    least = joins.least_memory(algorithm, master, on="k")
    operator = joins.create(algorithm, master, on="k", memory=least)
    results = [*operator.process(pa.record_batch({"k": keys.slice(0, 50)})), *operator.flush()]
    assert sum(batch.num_rows for batch in results) == 50
    assert operator.ledger.peak <= least
    operator.close()


@every_scan
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("how", joins.HOWS)
def test_a_key_of_more_than_32_bits_comes_in_the_middle(
    algorithm: str, how: str, ordered: bool, tmp_path: Path
) -> None:
    """Keys take four bytes in the window until then; ends of the range and multiples of 2^32 are told apart."""
    edges = [s * 2**bits + d for s in (-1, 1) for bits in (31, 32, 62) for d in (-1, 0, 1)]
    table = pa.table({"k": pa.array([*range(-900, 900), *edges] * 2), "row": pa.array(range(2 * 1_818))})
    master = build_local(table, tmp_path / "m", key="k", segment_bytes=1_024)
    near = np.random.default_rng(5).integers(-1_000, 1_000, 4_000).tolist()
    keys = pa.array([None, *near[:2_000], *edges, 2**33 + 5, *near[2_000:], *edges, *near])
    stream = pa.table({"k": keys, "position": pa.array(range(len(keys)))})
    operator = joins.create(
        algorithm, master, on="k", memory=4_000_000 if ordered else 400_000, how=how, ordered=ordered
    )
    out, wide = [], []
    for part in batches_of(stream, 500):
        out += operator.process(part)
        wide.append(operator.window.table.wide)
    out += operator.flush()
    assert not wide[0]
    assert wide[-1]
    assert operator.stats.memory_peak <= operator.stats.memory_budget
    result = pa.Table.from_batches(out, operator.output_schema(stream.schema))
    assert_same_bag(result, expected_join(stream, table, on="k", how=how))
    positions = result.column("position").to_pylist()
    assert not ordered or positions == sorted(positions)
    operator.close()
