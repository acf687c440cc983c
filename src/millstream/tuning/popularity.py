"""Which share of the stream asks for a key, a partition of R, a cache: Zipf's law over the keys of R.

The hottest keys are kept one by one, the long tail in classes of keys that are about equally hot. Where the keys of R
lie is not known to a plan; they are taken to be scattered over R unless R is kept in the order of access frequency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..errors import InputError

Floats = npt.NDArray[np.float64]

HEAD = 1 << 16  # keys that are kept one by one
TAIL_CLASSES = 96
SINGLE = 512  # partitions that are kept one by one, the most popular ones
GROUPS = 512  # of all others


@dataclass(frozen=True)
class Partitions:
    """Partitions of R: how popular (share of all arrivals), and how many are that popular."""

    share: Floats
    number: Floats

    def without_best(self) -> tuple[float, Partitions]:
        """The share of the most popular one, and the others."""
        best = int(np.argmax(self.share))
        number = self.number.copy()
        number[best] = max(0.0, number[best] - 1)
        return float(self.share[best]), Partitions(self.share, number)

    @property
    def total(self) -> float:
        """The share of all together."""
        return float((self.share * self.number).sum())


class Popularity:
    """Keys of R by rank: `share[i]` of the stream asks for each of the `number[i]` keys of class i."""

    def __init__(self, keys: int, skew: float) -> None:
        if not 0 <= skew < float("inf"):
            raise InputError(f"skew must be a finite number >= 0 (0 is uniform, 1 is Zipf's law), not {skew!r}")
        self.keys = max(1, keys)
        self.skew = float(skew)
        head = min(self.keys, HEAD)
        edges = np.arange(head + 1, dtype=np.float64)
        if self.keys > head:
            steps = np.unique(np.geomspace(head, self.keys, TAIL_CLASSES + 1).astype(np.int64))
            edges = np.concatenate((edges, steps[1:].astype(np.float64)))
        self.number = np.diff(edges)
        ranks = np.where(self.number == 1, edges[1:], (edges[1:] + edges[:-1] + 1) / 2)
        weight = np.exp(-self.skew * np.log(ranks))
        self.share = weight / float((weight * self.number).sum())
        self.head = head
        self._place = np.random.default_rng(20_090_824).random(head)

    def served_by(self, cached: Floats) -> float:
        """The share of the stream that finds its key in a cache that has each key with these probabilities."""
        return float((self.share * self.number * cached).sum())

    def distinct(self, rows: float, waiting: Floats | None = None) -> float:
        """How many keys so many rows of the stream have, or of those that wait, by the probability of each key."""
        weight = self.share if waiting is None else self.share * waiting
        total = max(1e-12, float((weight * self.number).sum()))
        return float((self.number * -np.expm1(-rows / total * weight)).sum())

    def partitions(self, number: float, waiting: Floats | None = None, *, by_frequency: bool = False) -> Partitions:
        """R cut into partitions; `waiting` is the probability that a row waits for the disk, for each class of keys."""
        count = max(1, math.ceil(number))
        weight = self.share if waiting is None else self.share * waiting
        if by_frequency:
            mass = np.concatenate(([0.0], np.cumsum(weight * self.number)))
            ranks = np.concatenate(([0.0], np.cumsum(self.number)))
            share = np.diff(np.interp(np.linspace(0, self.keys, count + 1), ranks, mass))
        else:
            at = np.minimum((self._place * count).astype(np.int64), count - 1)
            share = np.bincount(at, weights=weight[: self.head], minlength=count).astype(np.float64)
            share += float((weight[self.head :] * self.number[self.head :]).sum()) / count
        return _grouped(share)


def _grouped(share: Floats) -> Partitions:
    """The most popular partitions one by one, the others in groups of the same number."""
    share = np.sort(share)[::-1]
    if len(share) <= SINGLE + GROUPS:
        return Partitions(share, np.ones(len(share)))
    starts = np.unique(np.linspace(SINGLE, len(share), GROUPS, endpoint=False).astype(np.int64))
    number = np.diff(np.append(starts, len(share))).astype(np.float64)
    means = np.add.reduceat(share, starts) / number
    return Partitions(np.concatenate((share[:SINGLE], means)), np.concatenate((np.ones(SINGLE), number)))


@lru_cache(maxsize=8)
def popularity(keys: int, skew: float) -> Popularity:
    """The popularity of that many keys, made once."""
    return Popularity(keys, skew)


def age_of_oldest(partitions: Partitions, rows: float) -> float:
    """How many rows arrive while one waits at most, if `rows` rows wait in H_S: the T of the steady state.

    A partition is read when its oldest row has waited T. Between two reads its first row comes after 1/p arrivals, and
    p T more follow, so it is read every 1/p + T arrivals and (1 + p T / 2) p T / (1 + p T) of its rows wait on average.
    """
    low, high = 1e-6, 1e18
    for _ in range(80):
        middle = math.sqrt(low * high)
        if held(partitions, middle) > rows:
            high = middle
        else:
            low = middle
        if high < low * (1 + 1e-9):
            break
    return math.sqrt(low * high)


def held(partitions: Partitions, age: float) -> float:
    """Rows that wait if each partition is read when its oldest row has waited for `age` arrivals."""
    x = partitions.share * age
    return float((partitions.number * x * (1 + x / 2) / (1 + x)).sum())


def reads_per_arrival(partitions: Partitions, age: float) -> float:
    """Partitions that are read for each arriving row."""
    return float((partitions.number * partitions.share / (1 + partitions.share * age)).sum())


def recently_used(number: Floats, share: Floats, places: float, *, times: int = 1) -> Floats:
    """The probability that each key is in a cache of `places` keys that keeps what was asked for `times` times of late.

    The characteristic time of the cache is the number of arrivals over which that many keys are asked for so often.
    """
    if places >= float(number.sum()):
        return np.ones(len(share))
    low, high = 1e-6, 1e18
    cached = np.zeros(len(share))
    for _ in range(80):
        middle = math.sqrt(low * high)
        x = share * middle
        cached = -np.expm1(-x) if times == 1 else 1 - np.exp(-x) * (1 + x)
        if float((cached * number).sum()) > places:
            high = middle
        else:
            low = middle
        if high < low * (1 + 1e-9):
            break
    return cached
