"""Pseudo-random bits as a function of a number, so that any row can be made again without its neighbours."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(numbers: npt.ArrayLike, *, seed: int, salt: int = 0) -> UInt64s:
    """64 well-mixed bits for each number (SplitMix64's output function over number, seed and salt)."""
    start = np.uint64(((seed * 0xD1342543DE82EF95) ^ (salt * 0xAF251AF3B0F025B5)) & _MASK)
    x = (np.asarray(numbers).astype(np.uint64) ^ start) * np.uint64(_GOLDEN) + np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def below(bits: UInt64s, limit: int, *, shift: int = 0) -> Int64s:
    """A number in 0..limit-1 (limit <= 2 ** 32) from 32 of the bits, starting at bit `shift`."""
    return ((((bits >> np.uint64(shift)) & np.uint64(0xFFFFFFFF)) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)


def generator(seed: int, *path: int) -> np.random.Generator:
    """The random generator that belongs to a seed and a place below it (a purpose, a block of rows)."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed & _MASK, *path))))
