"""How often keys were seen that are not cached: a count-min sketch of two rows of one-byte counters."""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

from .hashing import hash_u64
from .memory import prefetch

AHEAD = 16  # keys whose counters are on their way to the processor


class FrequencySketch:
    """Counts keys, never too low but for the ceiling of 255, a little too high when keys collide."""

    def __init__(self, size: int) -> None:
        self.counters = np.zeros((2, self.bytes_for(size) // 2), dtype=np.uint8)

    @staticmethod
    def bytes_for(size: int) -> int:
        """Memory of a sketch that may have so many bytes: a power of two."""
        return 1 << max(7, int(size).bit_length() - 1)

    @property
    def nbytes(self) -> int:
        return self.counters.nbytes

    def add(self, keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Count keys and return how often each was seen so far."""
        seen = np.empty(len(keys), dtype=np.int64)
        _add(keys, counts, self.counters, seen)
        return seen

    def halve(self) -> None:
        """Age all counters."""
        self.counters >>= 1


@njit(cache=True, nogil=True)
def _add(keys, counts, counters, seen):
    mask = uint64(counters.shape[1] - 1)
    start, size, n = counters.ctypes.data, counters.shape[1], keys.shape[0]
    for i in range(-AHEAD, n):
        if i + AHEAD < n:
            h = hash_u64(uint64(keys[i + AHEAD]), uint64(7))
            prefetch(start + np.int64(h & mask))
            prefetch(start + size + np.int64((h >> uint64(32)) & mask))
        if i < 0:
            continue
        h = hash_u64(uint64(keys[i]), uint64(7))
        a = h & mask
        b = (h >> uint64(32)) & mask
        x = min(255, np.int64(counters[0, a]) + counts[i])
        y = min(255, np.int64(counters[1, b]) + counts[i])
        low = min(x, y)
        if x == low or counters[0, a] < low:
            counters[0, a] = low
        if y == low or counters[1, b] < low:
            counters[1, b] = low
        seen[i] = low
