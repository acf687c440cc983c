"""The benchmark of the flow: what it makes of a run of the demo, and how it is judged."""

from __future__ import annotations

from dataclasses import replace

from millstream.bench import flow
from millstream.bench.flow import Shop

FRESH = {"rows": 100, "p50": 0.8, "p95": 1.2, "p99": 1.5, "longest": 1.7}
STEADY = Shop(
    rate=20_000,
    seconds=600,
    closed=600.0,
    freshness={"facts": FRESH, "rejects": {**FRESH, "p50": 0.9}, "empty": dict.fromkeys(FRESH)},
    memory={"staging": [80e6, 100e6, 100e6, 104e6, 105e6], "flow: sender": [None, None, 1e6, 1e6, 1e6]},
)
OPEN = [(1.0, 40_000), (3.0, 50_000), (5.0, 50_000), (7.0, 50_000)]
CROWDED = Shop(
    rate=70_000,
    seconds=10,
    closed=10.0,
    batches=[*OPEN, (11.0, 50_000), (12.0, 50_000), (12.9, 48_000), (13.1, 900)],
)


def test_the_rate_is_that_of_full_batches() -> None:
    assert CROWDED.sustained(closed=False) == 100_000 / 4
    assert round(CROWDED.sustained(closed=True) or 0) == round(98_000 / 1.9)
    assert replace(CROWDED, batches=CROWDED.batches[:2]).sustained(closed=False) is None
    assert STEADY.sustained(closed=True) is None


def test_targets_are_judged() -> None:
    found = flow.section(STEADY, CROWDED, command="x", full=True)
    assert [check.passed for check in found.checks] == [True, True, True, True]
    assert found.checks[0].found == "0.90 s"  # the worst table
    growing = {**STEADY.memory, "warehouse": [1e6, 1e6, 1e6, 1e6, 2e6]}
    stale = {"facts": {**FRESH, "p50": 1.1, "p99": 2.1}}
    bad = replace(STEADY, freshness=stale, memory=growing)
    slow = replace(CROWDED, batches=[(at * 2, rows) for at, rows in CROWDED.batches], closed=20.0)
    section = flow.section(bad, slow, command="x", full=True)
    assert [check.passed for check in section.checks] == [False] * 4
    assert section.checks[-1].found == "warehouse"


def test_a_short_run_says_nothing_about_memory() -> None:
    short = flow.section(replace(STEADY, seconds=60), CROWDED, command="x", full=False)
    assert [check.passed for check in short.checks] == [True, True, None, None]
    assert "| staging | 80 MB" in short.markdown()
