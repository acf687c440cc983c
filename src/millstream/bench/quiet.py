"""Whether the machine is as fast as it can be: others that share its memory make it up to twice as slow, for seconds to
minutes, while its processors look idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

WORDS = 8 << 20  # more than the caches of a processor hold
PROBES = 1 << 19
SAMPLES = 7
QUIET = 0.8  # of the best speed seen
PAUSE = 2.0  # seconds


class Quiet:
    """Runs measurements while the machine is quiet, and those again that it was not quiet for.

    It waits for `patience` seconds in all; from then on everything is taken as it comes. `speeds` are those beside what
    was taken, as shares of the best: how fast random reads and copies from memory were.
    """

    def __init__(self, *, patience: float, tries: int = 3, sleep: Callable[[float], None] = time.sleep) -> None:
        self.patience = patience
        self.tries = tries
        self.repeated = 0
        self.waited = 0.0
        self._sleep = sleep
        self._words = np.ones(WORDS, dtype=np.int64)
        self._copy = np.ones(WORDS, dtype=np.int64)
        self._places = np.random.default_rng(7).integers(0, WORDS, PROBES)
        self._best = 0.0
        self._taken: list[float] = []

    @property
    def speeds(self) -> list[float]:
        return [speed / self._best for speed in self._taken]

    def __str__(self) -> str:
        if not self._taken:
            return "Nothing was measured."
        slow = sum(speed < QUIET for speed in self.speeds)
        return (
            f"{self.repeated} measurements were repeated because others slowed down the memory of the machine; of "
            f"{len(self._taken)} that count {slow} were taken while it was below {QUIET:.0%} of its best speed, the "
            f"slowest at {min(self.speeds):.0%}."
        )

    def run(self, measure: Callable[[], float]) -> float:
        """The highest of what was measured, in at least one try and until the machine was quiet before and after."""
        highest, speed = 0.0, 0.0
        for number in range(self.tries):
            before = self.wait()
            began = time.monotonic()
            highest = max(highest, measure())
            speed = max(speed, min(before, self._speed()))
            if speed >= QUIET * self._best or self.waited >= self.patience:
                break
            if number + 1 < self.tries:
                self.repeated += 1
                self.waited += time.monotonic() - began
        self._taken.append(speed)
        return highest

    def wait(self) -> float:
        """Wait for a quiet moment, as long as there is patience; the speed then."""
        while True:
            speed = self._speed()
            if speed >= QUIET * self._best or self.waited >= self.patience:
                return speed
            self._sleep(PAUSE)
            self.waited += PAUSE

    def _speed(self) -> float:
        """Samples in a second, the usual one of several."""
        speed = 1 / median(self._sample() for _ in range(SAMPLES))
        self._best = max(self._best, speed)
        return speed

    def _sample(self) -> float:
        began = time.perf_counter()
        self._words.take(self._places)
        np.copyto(self._copy, self._words)
        return time.perf_counter() - began
