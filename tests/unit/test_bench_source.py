"""The benchmark of the source: what it finds, and how it is judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from millstream.bench import plots, source
from millstream.bench.source import Overhead

EVEN = Overhead(
    block=100,
    orders=1_000,
    plain=[1.0, 1.0, 2.0, 2.0],  # the machine slows down in the middle
    hooked=[1.01, 1.01, 2.02, 2.02],
    plain_cpu=[1.0] * 4,
    hooked_cpu=[1.005] * 4,
    application_ns=100.0,
    sender_ns=1_000.0,
    sent=4_000,
    staged=4_000,
)


def test_a_drift_of_the_machine_does_not_count() -> None:
    assert round(EVEN.share, 4) == 0.01
    assert round(EVEN.cpu_share, 4) == 0.005


def test_targets_are_judged() -> None:
    good = source.section([EVEN], command="x")
    assert [check.passed for check in good.checks] == [True, True]
    slow = replace(EVEN, hooked=[1.1, 1.1, 2.2, 2.2], staged=3_999)
    assert [check.passed for check in source.section([slow], command="x").checks] == [False, False]
    away = replace(EVEN, away=True, staged=0)
    section = source.section([EVEN, away], command="x")
    assert all(check.passed for check in section.checks)
    assert [row[0] for row in section.tables[0].rows] == ["100", "100, staging away"]


def test_it_measures_the_application_and_draws_it(tmp_path: Path) -> None:
    results = source.run(slices=2, orders=200, blocks=(100,))
    assert [(one.away, len(one.plain), len(one.hooked)) for one in results] == [(False, 2, 2), (True, 2, 2)]
    assert results[0].sent == results[0].staged == 3 * 200
    assert plots.source_overhead(results, tmp_path / "plot.png").stat().st_size > 1_000
