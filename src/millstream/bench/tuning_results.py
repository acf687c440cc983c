"""What `bench tuning` finds: rates that were predicted and measured, in several rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import NamedTuple


class Setting(NamedTuple):
    """What an operator is run with."""

    algorithm: str
    memory: int
    disk_buffer: int


@dataclass(frozen=True)
class Turns:
    """Of each turn the rates of some settings, and how fast the machine was: 1 is as when it was calibrated."""

    rates: list[list[float]]
    speeds: list[float]

    def rate(self, place: int) -> float:
        """The usual rate of a setting on the machine as it was when it was calibrated."""
        return median(rates[place] / speed for rates, speed in zip(self.rates, self.speeds, strict=True))

    def share(self, place: int, of: int) -> float:
        """The usual share of a setting's rate that another one has."""
        return median(rates[place] / rates[of] for rates in self.rates)


@dataclass(frozen=True)
class Point:
    """A setting, and of each round the rate that was predicted for it and the one that was measured right after.

    Machines that others use are slower for minutes now and then, the calibration of a round as its measurements: the
    error is that of the median round.
    """

    algorithm: str
    memory: int
    disk_buffer: int
    rates: list[tuple[float, float]]

    @property
    def predicted(self) -> float:
        return median(predicted for predicted, _ in self.rates)

    @property
    def measured(self) -> float:
        return median(measured for _, measured in self.rates)

    @property
    def ratio(self) -> float:
        """Of what was predicted to what was measured."""
        return median(predicted / measured for predicted, measured in self.rates)

    @property
    def error(self) -> float:
        return abs(self.ratio - 1)


@dataclass(frozen=True)
class Asked:
    """Memory planned for a rate, the rate measured with it, and how much of that is left with less of the memory, in
    the middle of several turns.

    The rate is that of the machine as it was when it was calibrated, by what a join gets then and now.
    """

    rate: float
    memory: int
    measured: float
    left: float


@dataclass(frozen=True)
class Rated:
    """What was asked for in each round, with the calibration of that round."""

    algorithm: str
    rounds: list[Asked]

    @property
    def asked(self) -> float:
        return median(one.rate for one in self.rounds)

    @property
    def memory(self) -> float:
        return median(one.memory for one in self.rounds)

    @property
    def share(self) -> float:
        """Of the rate asked for."""
        return median(one.measured / one.rate for one in self.rounds)

    @property
    def share_with_less(self) -> float:
        """A machine that is faster than when it was calibrated is asked for more."""
        return median(one.left for one in self.rounds) * min(1.0, self.share)


@dataclass(frozen=True)
class Pair:
    """The default disk buffer and the best one of the model, and in each turn the rates of both."""

    default: Setting
    best: Setting
    rates: list[tuple[float, float]]

    @property
    def default_rate(self) -> float:
        return median(default for default, _ in self.rates)

    @property
    def best_rate(self) -> float:
        return median(best for _, best in self.rates)

    @property
    def losses(self) -> list[float]:
        """What the default loses against the best one, in each turn."""
        return [1 - default / best for default, best in self.rates]

    @property
    def loss(self) -> float:
        return median(self.losses) if self.default != self.best else 0.0


@dataclass(frozen=True)
class Results:
    """All that was measured: points over the disk buffer, default and optimum by budget, and memory for rates.

    Through the page cache, and over the disk buffer also with every read `from_disk`.
    """

    over_buffers: list[Point]
    defaults: list[Pair]
    rated: list[Rated]
    others: list[Point]
    from_disk: list[Point]
    disk_rates: list[float]
    quiet: str = ""

    def of(self, algorithm: str) -> list[Point]:
        return points_of(algorithm, self.over_buffers)


def points_of(algorithm: str, points: Sequence[Point]) -> list[Point]:
    return [one for one in points if one.algorithm == algorithm]


def together(points: Sequence[Point]) -> Point:
    """All rounds of a setting."""
    setting = middle([Setting(one.algorithm, one.memory, one.disk_buffer) for one in points])
    return Point(*setting, [rates for one in points for rates in one.rates])


def middle(settings: Sequence[Setting]) -> Setting:
    """The setting of all rounds, with the disk buffer of the middle one: the model may have another in each."""
    return settings[0]._replace(disk_buffer=median_low([one.disk_buffer for one in settings]))
