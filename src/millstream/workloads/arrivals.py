"""When rows arrive: evenly random (Poisson), in bursts, or self-similar (bursts on every time scale).

All three have a long-run mean of `rate` rows a second and differ in how they deviate from it. Bursty and self-similar
arrivals are superposed on/off sources: a source that is on sends at its peak rate, a source that is off sends nothing
(Willinger, Taqqu, Sherman, Wilson, "Self-similarity through high-variability", 1997).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .mixing import Int64s, generator

Floats = npt.NDArray[np.float64]
Periods = Callable[[int], Floats]

_WINDOW = 1_024


@dataclass(frozen=True)
class Arrivals(ABC):
    """A stationary arrival process with `rate` rows a second in the long run."""

    rate: float = 10_000.0

    def __post_init__(self) -> None:
        if not 0 < self.rate < float("inf"):
            raise InputError(f"rate must be a positive number of rows a second, not {self.rate}")

    def counts(self, intervals: int, *, interval: float = 1.0, seed: int = 0) -> Int64s:
        """How many rows arrive in each of the successive intervals of `interval` seconds."""
        if interval <= 0:
            raise InputError(f"interval must be a positive number of seconds, not {interval}")
        parts, have = [np.empty(0, dtype=np.int64)], 0
        for part in self._windows(generator(seed, 1), interval):
            if have >= intervals:
                break
            parts.append(part)
            have += len(part)
        return np.concatenate(parts)[:intervals]

    def times(self, rows: int, *, seed: int = 0) -> Floats:
        """When each of the first rows arrives, in seconds from the start; ascending."""
        parts, have = [np.empty(0)], 0
        for part in self.time_blocks(seed=seed):
            if have >= rows:
                break
            parts.append(part)
            have += len(part)
        return np.concatenate(parts)[:rows]

    def time_blocks(self, *, seed: int = 0) -> Iterator[Floats]:
        """The arrival times without end, in ascending blocks of various lengths."""
        interval = self._resolution()
        placing = generator(seed, 2)
        for window, arrived in enumerate(self._windows(generator(seed, 1), interval)):
            slot = np.repeat(np.arange(len(arrived)) + window * _WINDOW, arrived)
            yield np.sort(slot + placing.random(len(slot))) * interval

    @abstractmethod
    def _windows(self, rng: np.random.Generator, interval: float) -> Iterator[Int64s]:
        """Counts of successive intervals without end, `_WINDOW` of them at a time."""

    @abstractmethod
    def _resolution(self) -> float:
        """Seconds within which arrivals may be taken as evenly random."""


@dataclass(frozen=True)
class Poisson(Arrivals):
    """Arrivals that do not know of each other."""

    def _windows(self, rng: np.random.Generator, interval: float) -> Iterator[Int64s]:
        while True:
            yield rng.poisson(self.rate * interval, _WINDOW)

    def _resolution(self) -> float:
        return 32 / self.rate


@dataclass(frozen=True)
class Bursty(Arrivals):
    """One source that is on for `on` and off for `off` seconds on average, both exponential.

    The peak rate is `rate * (on + off) / on`.
    """

    on: float = 1.0
    off: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.on <= 0 or self.off <= 0:
            raise InputError(f"on and off must be positive numbers of seconds, not {self.on} and {self.off}")

    def _windows(self, rng: np.random.Generator, interval: float) -> Iterator[Int64s]:
        peak = self.rate * (self.on + self.off) / self.on
        source = _OnOff(
            rng.random() < self.on / (self.on + self.off),
            lambda size: rng.exponential(self.on, size),
            lambda size: rng.exponential(self.off, size),
        )
        for _ in count():
            yield rng.poisson(peak * source.on_time(_WINDOW, interval))

    def _resolution(self) -> float:
        return min(self.on, self.off) / 64


@dataclass(frozen=True)
class SelfSimilar(Arrivals):
    """Many sources whose on and off periods have Pareto's heavy tail, so that bursts show on every time scale.

    `hurst` is between 0.5 (no memory) and 1; the tail of the periods is 3 - 2 * hurst. A period is `period` seconds on
    average, sources are on half of the time.
    """

    hurst: float = 0.8
    sources: int = 32
    period: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.5 < self.hurst < 1:
            raise InputError(f"hurst must lie between 0.5 and 1, not {self.hurst}")
        if self.sources < 1 or self.period <= 0:
            raise InputError(
                f"self-similar arrivals need sources and a positive period, not {self.sources} and {self.period}"
            )

    def _windows(self, rng: np.random.Generator, interval: float) -> Iterator[Int64s]:
        tail = 3 - 2 * self.hurst
        shortest = self.period * (tail - 1) / tail

        def periods(size: int) -> Floats:
            return shortest * (1 + rng.pareto(tail, size))

        sources = []
        for _ in range(self.sources):
            source = _OnOff(rng.random() < 0.5, periods, periods)
            # A stationary start: what is left of the period that is under way has a heavier tail than a period.
            source.left = _rest_of_pareto(rng, tail, shortest)
            sources.append(source)
        peak = 2 * self.rate / self.sources
        for _ in count():
            on_time = np.zeros(_WINDOW)
            for source in sources:
                on_time += source.on_time(_WINDOW, interval)
            yield rng.poisson(peak * on_time)

    def _resolution(self) -> float:
        return self.period / 64


class _OnOff:
    """One source: whether it is on, how long that lasts, and the lengths of the periods to come."""

    def __init__(self, on: bool, on_periods: Periods, off_periods: Periods) -> None:
        self.on = bool(on)
        self._periods = (off_periods, on_periods)
        self.left = float(self._periods[self.on](1)[0])

    def on_time(self, intervals: int, interval: float) -> Floats:
        """Seconds for which the source is on in each of the next intervals."""
        horizon = intervals * interval
        lengths, end = [np.array([self.left])], self.left
        while end <= horizon:
            size = 2 * _WINDOW  # even: the next draw starts with the same kind of period
            more = np.empty(size)
            more[0::2] = self._periods[not self.on](size // 2)
            more[1::2] = self._periods[self.on](size // 2)
            lengths.append(more)
            end += float(more.sum())
        all_lengths = np.concatenate(lengths)
        ends = np.cumsum(all_lengths)
        last = int(np.searchsorted(ends, horizon, side="right"))
        is_on = (np.arange(len(ends)) % 2 == 0) == self.on
        # Time spent on is a piecewise linear function of time; read it at the borders of the intervals.
        spent = np.concatenate(([0.0], np.cumsum(np.where(is_on, all_lengths, 0.0))))
        borders = np.interp(np.arange(intervals + 1) * interval, np.concatenate(([0.0], ends)), spent)
        self.left = float(ends[last] - horizon)
        self.on = bool(is_on[last])
        return np.maximum(np.diff(borders), 0.0)


def _rest_of_pareto(rng: np.random.Generator, tail: float, shortest: float) -> float:
    """The rest of a Pareto period that is met at a random moment: its density is proportional to P(period > x)."""
    if rng.random() < (tail - 1) / tail:
        return float(rng.random() * shortest)
    return float(shortest * (1 - rng.random()) ** (-1 / (tail - 1)))


def hurst(counts: npt.ArrayLike) -> float:
    """An estimate of the Hurst parameter: how slowly the variance of means over m intervals falls with m.

    The variance of means of m successive counts falls as m ** (2H - 2); H is fitted over m from a few intervals to a
    hundredth of the series. About 0.5 for Poisson counts. Intervals should be longer than the periods of on/off
    sources: within a period any source looks self-similar.
    """
    series = np.asarray(counts, dtype=np.float64)
    if len(series) < 1_000:
        raise InputError(f"an estimate needs at least 1000 intervals, not {len(series)}")
    sizes = np.unique(np.geomspace(4, len(series) // 100, 24).astype(np.int64))
    variances = []
    for size in sizes:
        whole = len(series) // size * size
        variances.append(np.var(series[:whole].reshape(-1, size).mean(axis=1)))
    if min(variances) <= 0:
        raise InputError("counts that do not vary have no Hurst parameter")
    slope = np.polyfit(np.log(sizes), np.log(variances), 1)[0]
    return float(1 + slope / 2)
