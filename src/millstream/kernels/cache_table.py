"""The master hash table H_R: which keys are cached, where their rows lie and how often they were asked for.

An entry is a key with a reference to the first of its rows, the number of its rows (0 for a key known to be absent)
and a counter of hits. Open addressing over entry numbers; entries are freed in sweeps, which rebuild the slots.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

from .hashing import mix
from .memory import prefetch

# one cache line serves a probe
ENTRY = np.dtype([("key", np.int64), ("ref", np.int64), ("rows", np.int32), ("hits", np.int32)])
ENTRY_SIZE = ENTRY.itemsize
ENTRY_BYTES = ENTRY_SIZE + 4  # and the free list
AHEAD = 32  # keys whose slots and entries are on their way to the processor while others are looked at

_FREE, _USED = range(2)


class CacheTable:
    """At most `capacity` cached keys.

    Invariants: 1. slots hold each used entry once, reachable from its key's slot without a gap; 2. a free entry has
    rows -1.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.slots = np.full(_slot_count(capacity), -1, dtype=np.int32)
        self._use(np.zeros(capacity, dtype=ENTRY))
        self.rows[:] = -1
        self._next = np.empty(capacity, dtype=np.int32)
        self._state = np.zeros(2, dtype=np.int64)
        self._state[_FREE] = -1
        _free(self._next, self._state, 0)

    def _use(self, entries: np.ndarray) -> None:
        self._entries = entries.ctypes.data
        self.key, self.ref, self.rows, self.hits = (entries[name] for name in ENTRY.names or ())
        self._all = entries

    def grow(self, capacity: int) -> None:
        """Make room for more keys; entries keep their numbers."""
        old = self.capacity
        entries = np.zeros(capacity, dtype=ENTRY)
        entries[:old] = self._all
        entries["rows"][old:] = -1
        self._use(entries)
        self._next = np.concatenate([self._next, np.empty(capacity - old, dtype=np.int32)])
        _free(self._next, self._state, old)
        self.capacity = capacity
        self.slots = np.full(_slot_count(capacity), -1, dtype=np.int32)
        _fill_slots(self.slots, self.key, self.rows)

    @staticmethod
    def bytes_for(capacity: int) -> int:
        """Memory that a table of this capacity takes."""
        return capacity * ENTRY_BYTES + 4 * _slot_count(capacity) + 1024

    @property
    def used(self) -> int:
        return int(self._state[_USED])

    @property
    def room(self) -> int:
        return self.capacity - self.used

    def probe(self, keys: np.ndarray, refs: np.ndarray, rows: np.ndarray) -> int:
        """Look keys up and count the hits: first row and number of rows of each, -1 for keys not cached."""
        return int(_probe(keys, refs, rows, self.slots, self._entries, self.key, self.ref, self.rows, self.hits))

    def probe_rows(
        self, keys: np.ndarray, stream: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Look up the keys of stream rows and count the hits: rows whose keys are cached, with first row and number of
        rows of each, and the other rows with their keys.
        """
        n = len(keys)
        refs, rows = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int32)
        found = self.probe(keys, refs, rows)
        if found == n:
            return stream, refs, rows, (stream[:0], keys[:0])
        hit, missed, missed_keys = (np.empty(size, dtype=np.int64) for size in (found, n - found, n - found))
        _part(keys, stream, refs, rows, hit, missed, missed_keys)
        return hit, refs[:found], rows[:found], (missed, missed_keys)

    def insert(self, keys: np.ndarray, refs: np.ndarray, rows: np.ndarray, hits: np.ndarray) -> np.ndarray:
        """Add distinct keys that are not cached; the entry number of each. Requires `len(keys) <= room`."""
        assert len(keys) <= self.room
        entries = np.empty(len(keys), dtype=np.int32)
        _insert(
            keys,
            refs,
            rows,
            hits,
            entries,
            self.slots,
            self.key,
            self.ref,
            self.rows,
            self.hits,
            self._next,
            self._state,
        )
        return entries

    def drop(self, entries: np.ndarray) -> None:
        """Forget some entries."""
        if len(entries):
            _drop(entries, self.slots, self.key, self.rows, self._next, self._state)

    def halve(self) -> None:
        """Age the hit counters."""
        self.hits >>= 1


def _slot_count(capacity: int) -> int:
    return 1 << max(4, (capacity + capacity // 2).bit_length())


@njit(cache=True, nogil=True)
def _free(following, state, start):
    """Put the entries from `start` on into the free list."""
    for i in range(following.shape[0] - 1, start - 1, -1):
        following[i] = state[_FREE]
        state[_FREE] = i


@njit(cache=True, nogil=True)
def _fill_slots(slots, key, row_count):
    mask = slots.shape[0] - 1
    for entry in range(key.shape[0]):
        if row_count[entry] >= 0:
            at = _slot(key[entry], slots)
            while slots[at] >= 0:
                at = (at + 1) & mask
            slots[at] = entry


@njit(inline="always")
def _slot(key, slots):
    return np.int64(mix(uint64(key)) & uint64(slots.shape[0] - 1))


@njit(cache=True, nogil=True)
def _probe(keys, refs, rows, slots, entries, key, ref, row_count, hits):
    mask = slots.shape[0] - 1
    found = 0
    n = keys.shape[0]
    homes = np.empty(AHEAD, dtype=np.int64)
    for start in range(0, n, AHEAD):
        size = min(AHEAD, n - start)
        for j in range(size):
            homes[j] = _slot(keys[start + j], slots)
            prefetch(slots.ctypes.data + 4 * homes[j])
        for j in range(size):
            prefetch(entries + ENTRY_SIZE * max(0, slots[homes[j]]))
        for j in range(size):
            i = start + j
            k = keys[i]
            at = homes[j]
            entry = slots[at]
            while entry >= 0 and key[entry] != k:
                at = (at + 1) & mask
                entry = slots[at]
            if entry >= 0:
                refs[i] = ref[entry]
                rows[i] = row_count[entry]
                hits[entry] += 1
                found += 1
            else:
                refs[i] = -1
                rows[i] = -1
    return found


@njit(cache=True, nogil=True)
def _part(keys, stream, refs, rows, hit, missed, missed_keys):
    """Part stream rows by whether their keys were found; `refs` and `rows` move to the front."""
    at = other = 0
    for i in range(keys.shape[0]):
        if rows[i] >= 0:
            hit[at], refs[at], rows[at] = stream[i], refs[i], rows[i]
            at += 1
        else:
            missed[other], missed_keys[other] = stream[i], keys[i]
            other += 1


@njit(cache=True, nogil=True)
def _insert(keys, refs, rows, counts, entries, slots, key, ref, row_count, hits, following, state):
    mask = slots.shape[0] - 1
    for i in range(keys.shape[0]):
        entry = np.int32(state[_FREE])
        state[_FREE] = following[entry]
        state[_USED] += 1
        key[entry] = keys[i]
        ref[entry] = refs[i]
        row_count[entry] = rows[i]
        hits[entry] = counts[i]
        at = _slot(keys[i], slots)
        while slots[at] >= 0:
            at = (at + 1) & mask
        slots[at] = entry
        entries[i] = entry


@njit(cache=True, nogil=True)
def _drop(entries, slots, key, row_count, following, state):
    """Remove each entry from its slot and close the gap by moving later entries of the cluster back."""
    mask = slots.shape[0] - 1
    for i in range(entries.shape[0]):
        entry = entries[i]
        at = _slot(key[entry], slots)
        while slots[at] != entry:
            at = (at + 1) & mask
        gap = at
        at = (at + 1) & mask
        while slots[at] >= 0:
            home = _slot(key[slots[at]], slots)
            if ((at - home) & mask) >= ((at - gap) & mask):
                slots[gap] = slots[at]
                gap = at
            at = (at + 1) & mask
        slots[gap] = -1
        row_count[entry] = -1
        following[entry] = state[_FREE]
        state[_FREE] = entry
        state[_USED] -= 1
