"""Which key is asked for: Zipf's law over any number of keys, and where the hot keys lie."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .mixing import Int64s, UInt64s, mix

Floats = npt.NDArray[np.float64]
Placement = Literal["scattered", "clustered"]

_EXACT_TERMS = 10_000


class Zipf:
    """Ranks 1..n with probability proportional to 1 / rank ** exponent, exactly, in memory that does not grow with n.

    Exponent 0 is uniform, 1 is Zipf's law, below 1 the tail is long and above 1 it is short. Ranks are drawn by
    rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone discrete
    distributions", 1996): invert the integral of a hat over the probabilities, round, and reject the few draws that
    fall between hat and histogram.
    """

    def __init__(self, n: int, exponent: float) -> None:
        if n < 1:
            raise InputError(f"a Zipf distribution needs at least one key, not {n}")
        if not 0 <= exponent < float("inf"):
            raise InputError(f"exponent must be a finite number >= 0, not {exponent}")
        self.n = n
        self.exponent = float(exponent)
        self._left = float(self._integral(1.5)) - 1.0
        self._right = float(self._integral(n + 0.5))
        self._accepted = 2.0 - float(self._inverse(self._integral(2.5) - self._density(2.0)))

    def sample(self, rng: np.random.Generator, size: int) -> Int64s:
        """`size` independent ranks."""
        if self.exponent == 0:
            return rng.integers(1, self.n + 1, size)
        ranks = np.empty(size, dtype=np.int64)
        filled = 0
        while filled < size:
            u = self._right + rng.random(size - filled) * (self._left - self._right)
            x = self._inverse(u)
            k = np.clip(np.floor(x + 0.5), 1, self.n)
            accept = k - x <= self._accepted
            doubt = np.flatnonzero(~accept)
            accept[doubt] = u[doubt] >= self._integral(k[doubt] + 0.5) - self._density(k[doubt])
            kept = k[accept].astype(np.int64)
            ranks[filled : filled + len(kept)] = kept
            filled += len(kept)
        return ranks

    def probability(self, ranks: npt.ArrayLike) -> Floats:
        """The probability of each rank."""
        return self._density(np.asarray(ranks, dtype=np.float64)) / self._harmonic(self.n)

    def share(self, hottest: int) -> float:
        """The share of the stream that asks for one of the `hottest` most frequent keys."""
        return self._harmonic(min(max(hottest, 0), self.n)) / self._harmonic(self.n)

    def _harmonic(self, n: int) -> float:
        """The sum of 1 / k ** exponent for k = 1..n: exact terms first, then Euler and Maclaurin's formula."""
        head = min(n, _EXACT_TERMS)
        total = float(np.sum(self._density(np.arange(1.0, head + 1.0))))
        if n > head:
            total += float(self._integral(float(n)) - self._integral(float(head)))
            total += float(self._density(float(n)) - self._density(float(head))) / 2
            slope = self._density(float(head)) / head - self._density(float(n)) / n
            total += self.exponent * float(slope) / 12
        return total

    def _density(self, x: float | Floats) -> Floats:
        return np.asarray(np.exp(-self.exponent * np.log(x)))

    def _integral(self, x: float | Floats) -> Floats:
        """The integral of the density from 1 to x; the logarithm when the exponent is 1."""
        log = np.log(x)
        return np.asarray(log * _ratio(np.expm1, (1.0 - self.exponent) * log))

    def _inverse(self, y: float | Floats) -> Floats:
        """The x whose `_integral` is y."""
        t = np.maximum(np.asarray(y) * (1.0 - self.exponent), -1.0)
        return np.asarray(np.exp(y * _ratio(np.log1p, t)))


def _ratio(function: np.ufunc, x: Any) -> Floats:
    """function(x) / x for expm1 and log1p, with its limit 1 at x = 0."""
    x = np.asarray(x, dtype=np.float64)
    zero = x == 0
    with np.errstate(divide="ignore"):  # log1p(-1): the far end of a short tail, which rounding can reach
        quotient: Floats = function(x) / np.where(zero, 1.0, x)
    return np.where(zero, 1.0, quotient)


class Scatter:
    """A fixed pseudo-random permutation of 0..n-1 that is computed, both ways, and stored nowhere.

    Rounds of multiply, add and fold are a bijection of 0..2**bits - 1; a value that falls outside 0..n-1 is sent
    through again until it falls inside (cycle walking), on average less than two times.
    """

    _ROUNDS = 4

    def __init__(self, n: int, *, seed: int = 0) -> None:
        if n < 1:
            raise InputError(f"a permutation needs at least one element, not {n}")
        self.n = n
        bits = max(1, (n - 1).bit_length())
        self._mask = np.uint64((1 << bits) - 1)
        self._fold = np.uint64((bits + 1) // 2)  # at least half of the bits: folding twice is the identity
        constants = mix(np.arange(2 * self._ROUNDS), seed=seed, salt=0x5CA7)
        self._factors = [int(c) | 1 for c in constants[::2]]
        self._terms = [int(c) for c in constants[1::2]]

    def forward(self, values: Int64s) -> Int64s:
        """Where each value goes."""
        return self._walk(values, self._permute)

    def backward(self, values: Int64s) -> Int64s:
        """Where each value came from."""
        return self._walk(values, self._restore)

    def _permute(self, x: UInt64s) -> UInt64s:
        for factor, term in zip(self._factors, self._terms, strict=True):
            x = (x * np.uint64(factor) + np.uint64(term)) & self._mask
            x ^= x >> self._fold
        return x

    def _restore(self, x: UInt64s) -> UInt64s:
        for factor, term in zip(reversed(self._factors), reversed(self._terms), strict=True):
            x = x ^ (x >> self._fold)
            x = ((x - np.uint64(term)) * np.uint64(pow(factor, -1, 1 << 64))) & self._mask
        return x

    def _walk(self, values: Int64s, step: Any) -> Int64s:
        x: UInt64s = step(np.asarray(values).astype(np.uint64))
        outside = np.flatnonzero(x >= self.n)
        while len(outside):
            x[outside] = step(x[outside])
            outside = outside[x[outside] >= self.n]
        return x.astype(np.int64)
