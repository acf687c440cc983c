"""A table from keys of 128 bits to entry numbers 0, 1, 2, ... in the order in which keys were added; it grows.

Invariants: 1. the slots hold each entry once, reachable from its key's slot without a gap; 2. at most half of the slots
are used; 3. entry n has the key (high[n], low[n]).
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

from .hashing import mix

_LEAST = 1024


class KeyTable:
    """Keys with their entry numbers; about 40 bytes for each key."""

    def __init__(self) -> None:
        self.high = np.empty(_LEAST, dtype=np.int64)
        self.low = np.empty(_LEAST, dtype=np.int64)
        self._slots = np.full(2 * _LEAST, -1, dtype=np.int64)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def find(self, high: np.ndarray, low: np.ndarray) -> np.ndarray:
        """The entry of each key, -1 for those that are not there."""
        entries = np.empty(len(high), dtype=np.int64)
        _find(high, low, entries, self._slots, self.high, self.low)
        return entries

    def add(self, high: np.ndarray, low: np.ndarray) -> np.ndarray:
        """The entry of each key; those that are not there become new entries, in their order."""
        self._reserve(self._used + len(high))
        entries = np.empty(len(high), dtype=np.int64)
        self._used = int(_add(high, low, entries, self._slots, self.high, self.low, self._used))
        return entries

    def _reserve(self, keys: int) -> None:
        if keys <= len(self.high):
            return
        size = 1 << (keys - 1).bit_length()
        for name in ("high", "low"):
            grown = np.empty(size, dtype=np.int64)
            grown[: self._used] = getattr(self, name)[: self._used]
            setattr(self, name, grown)
        self._slots = np.full(2 * size, -1, dtype=np.int64)
        _rebuild(self._slots, self.high, self.low, self._used)


@njit(inline="always")
def _slot(high, low, slots):
    return np.int64(mix(uint64(high) ^ (uint64(low) << uint64(1))) & uint64(slots.shape[0] - 1))


@njit(cache=True, nogil=True)
def _find(high, low, entries, slots, known_high, known_low):
    mask = slots.shape[0] - 1
    for i in range(high.shape[0]):
        at = _slot(high[i], low[i], slots)
        while True:
            entry = slots[at]
            if entry < 0 or (known_high[entry] == high[i] and known_low[entry] == low[i]):
                entries[i] = entry
                break
            at = (at + 1) & mask


@njit(cache=True, nogil=True)
def _add(high, low, entries, slots, known_high, known_low, used):
    mask = slots.shape[0] - 1
    for i in range(high.shape[0]):
        at = _slot(high[i], low[i], slots)
        while True:
            entry = slots[at]
            if entry < 0:
                entry = used
                slots[at] = entry
                known_high[entry] = high[i]
                known_low[entry] = low[i]
                used += 1
            if known_high[entry] == high[i] and known_low[entry] == low[i]:
                entries[i] = entry
                break
            at = (at + 1) & mask
    return used


@njit(cache=True, nogil=True)
def _rebuild(slots, high, low, used):
    mask = slots.shape[0] - 1
    for entry in range(used):
        at = _slot(high[entry], low[entry], slots)
        while slots[at] >= 0:
            at = (at + 1) & mask
        slots[at] = entry
