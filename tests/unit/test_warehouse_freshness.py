"""Freshness: histograms against plain numbers, and clocks that are wrong."""

from __future__ import annotations

import datetime
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from millstream.warehouse.freshness import Lags, edges, microseconds, quantile, report, share_above
from millstream.warehouse.ledger import Entry

NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


def captured(lags: list[float | None]) -> pa.Table:
    moments = [None if lag is None else microseconds(NOW) - round(lag * 1e6) for lag in lags]
    return pa.table({"_captured": pa.array(moments, pa.timestamp("us", tz="UTC"))})


def entry(batch: int, seconds: float, lags: list[float], *, flow: str = "f", jump: float = 0.0) -> Entry:
    found = Lags.of(captured(lags), NOW)
    moved = datetime.timedelta(seconds=seconds)
    return Entry(
        flow=flow,
        batch=batch,
        table="t",
        rows=len(lags),
        parts=1,
        bytes=1,
        committed_at=NOW + moved,
        captured_min=found.first and found.first + moved,
        captured_max=found.last and found.last + moved,
        ahead=found.ahead,
        clock_jump=jump,
        lags=found.histogram,
    )


def test_quantiles_are_those_of_the_rows_within_a_bucket() -> None:
    chance = random.Random(7)
    lags = [chance.lognormvariate(-1, 1.5) for _ in range(20_000)]
    histogram = Lags.of(captured(lags), NOW).histogram
    assert sum(histogram.values()) == len(lags)
    assert len(histogram) < 300
    for share in (0.01, 0.5, 0.95, 0.99):
        assert quantile(histogram, share) == pytest.approx(np.quantile(lags, share), rel=0.05)
    for bound in (0.1, 1.0, 5.0):
        assert share_above(histogram, bound) == pytest.approx(np.mean(np.array(lags) > bound), abs=0.01)


def test_no_rows_have_no_freshness() -> None:
    for rows in (pa.table({"id": [1]}), captured([]), captured([None, None])):
        assert Lags.of(rows, NOW) == Lags({}, None, None, 0)
    assert quantile({}, 0.5) is None
    assert share_above({}, 1) is None


def test_a_row_from_the_future_is_flagged_and_never_negative() -> None:
    found = Lags.of(captured([-3600.0, -0.001, 0.0, 0.5, None]), NOW)
    assert found.ahead == 2
    assert sum(found.histogram.values()) == 4
    assert quantile(found.histogram, 0.0) == 0.0
    assert all(edges(bucket)[0] >= 0 for bucket in found.histogram)


@pytest.mark.parametrize("moment", [-(1 << 62), (1 << 62), 0])
def test_absurd_capture_times_do_not_break_anything(moment: int) -> None:
    rows = pa.table({"_captured": pa.array([moment], pa.timestamp("us", tz="UTC"))})
    found = Lags.of(rows, NOW)
    assert sum(found.histogram.values()) == 1
    assert found.first is not None


def test_report_adds_up_batches_of_a_flow() -> None:
    entries = [
        entry(2, 12, [3.0, 0.1]),
        entry(0, 0, [0.1] * 10),
        entry(1, 10, [0.2] * 8, jump=-3600.0),
        entry(0, 5, [], flow="g"),
    ]
    f, g = report(entries, 1.0)
    assert (f.flow, f.table, f.batches, f.rows, f.clock_jumps) == ("f", "t", 3, 20, 1)
    total = Counter[int]()
    for one in entries:
        total.update(one.lags)
    assert f.p50 == quantile(total, 0.5)
    assert f.above == pytest.approx(1 / 20)
    assert f.time_above == pytest.approx(2 / 12)  # the last two of twelve seconds ended in a batch with a late row
    assert f.longest == pytest.approx(3.0, rel=0.05)
    assert f.last_commit == NOW + datetime.timedelta(seconds=12)
    assert (g.rows, g.p50, g.above, g.time_above) == (0, None, None, None)


def test_a_clock_that_goes_back_gives_no_negative_time() -> None:
    (found,) = report([entry(0, 100, [0.1]), entry(1, 0, [0.1]), entry(2, 50, [0.1])], 1.0)
    assert found.time_above == 0.0
