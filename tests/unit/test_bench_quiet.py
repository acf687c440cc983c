"""Measurements while others slow the machine down: they wait, are repeated, and in the end are taken as they come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.bench.quiet import PAUSE, Quiet


class Machine(Quiet):
    """One whose speeds are given; it stays at the last one."""

    def __init__(self, *speeds: float, patience: float = 60.0) -> None:
        super().__init__(patience=patience, sleep=lambda seconds: None)
        self._coming = list(speeds)

    def _speed(self) -> float:
        speed = self._coming.pop(0) if len(self._coming) > 1 else self._coming[0]
        self._best = max(self._best, speed)
        return speed


@pytest.fixture
def rates() -> Iterator[float]:
    return iter([10.0, 30.0, 20.0])


def test_a_quiet_machine_measures_once(rates: Iterator[float]) -> None:
    quiet = Machine(100.0)
    assert quiet.run(lambda: next(rates)) == 10.0
    assert (quiet.repeated, quiet.waited, quiet.speeds) == (0, 0.0, [1.0])


def test_what_was_slowed_down_is_measured_again(rates: Iterator[float]) -> None:
    quiet = Machine(100.0, 60.0, 98.0, 99.0)  # before and after the first one, then the second
    assert quiet.run(lambda: next(rates)) == 30.0
    assert quiet.repeated == 1
    assert quiet.speeds == [0.98]


def test_it_waits_for_a_quiet_moment(rates: Iterator[float]) -> None:
    quiet = Machine(100.0, 100.0, 50.0, 50.0, 95.0)
    assert quiet.run(lambda: next(rates)) == 10.0
    assert quiet.run(lambda: next(rates)) == 30.0
    assert (quiet.repeated, quiet.waited) == (0, 2 * PAUSE)


def test_a_machine_that_is_never_quiet_is_taken_as_it_is(rates: Iterator[float]) -> None:
    quiet = Machine(100.0, 50.0, patience=3 * PAUSE)
    assert quiet.run(lambda: next(rates)) == 30.0  # of two
    assert quiet.run(lambda: next(rates)) == 20.0
    assert quiet.waited >= quiet.patience
    assert quiet.speeds[-1] == 0.5
    assert "below 80% of its best speed" in str(quiet)


def test_the_speed_of_this_machine() -> None:
    quiet = Quiet(patience=0.0)
    assert quiet.run(lambda: 5.0) == 5.0
    assert 0 < quiet.speeds[0] <= 1
