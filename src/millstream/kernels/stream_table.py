"""The stream hash table H_S with its arrival queue Q: waiting stream tuples, found by key and by age.

Tuples of one key hang in a list under one entry, and the queue links the entries in the order in which the oldest
tuple of each arrived. All tuples of a key leave together, so the head of this queue is the key of the oldest tuple,
just as if every tuple stood in the queue by itself, at a third of the memory; an entry leaves the queue from any place.

    buckets --> entry(key, count, head) --> tuple --> tuple        queue: oldest entry <--> ... <--> youngest entry
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

from .hashing import mix

ENTRY_BYTES = 8 + 4 + 4 + 4 + 4 + 4 + 8  # key, head, count, chain, older, younger, two buckets
TUPLE_BYTES = 8 + 4 + 4  # reference, next of the same key, its place as its page remembers it

_FREE_ENTRY, _FREE_TUPLE, _OLDEST, _YOUNGEST, _ENTRIES, _TUPLES = range(6)


class StreamTable:
    """At most `capacity` waiting tuples.

    Invariants: 1. every tuple hangs under exactly one entry; 2. every entry has at least one tuple and stands in one
    bucket chain and once in the queue; 3. `entries <= tuples <= capacity`.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._buckets = np.full(_bucket_count(capacity), -1, dtype=np.int32)
        self._key = np.empty(capacity, dtype=np.int64)
        self._head = np.empty(capacity, dtype=np.int32)
        self._count = np.empty(capacity, dtype=np.int32)
        self._chain = np.empty(capacity, dtype=np.int32)
        self._older = np.empty(capacity, dtype=np.int32)
        self._younger = np.empty(capacity, dtype=np.int32)
        self._ref = np.empty(capacity, dtype=np.int64)
        self._next = np.empty(capacity, dtype=np.int32)
        self._state = np.array([-1, -1, -1, -1, 0, 0], dtype=np.int64)
        _free(self._chain, self._state, _FREE_ENTRY, 0)
        _free(self._next, self._state, _FREE_TUPLE, 0)

    def grow(self, capacity: int) -> None:
        """Make room for more tuples; those that wait keep their places."""
        old = self.capacity
        for array in self._arrays[1:-1]:
            array.resize(capacity, refcheck=False)  # large arrays move without a copy
        self.capacity = capacity
        _free(self._chain, self._state, _FREE_ENTRY, old)
        _free(self._next, self._state, _FREE_TUPLE, old)
        if len(self._buckets) != _bucket_count(capacity):
            del self._buckets
            self._buckets = np.full(_bucket_count(capacity), -1, dtype=np.int32)
            _fill_buckets(self._buckets, self._key, self._chain, self._younger, self._state)

    @staticmethod
    def bytes_for(capacity: int) -> int:
        """Memory that a table of this capacity takes."""
        return capacity * (ENTRY_BYTES - 8 + TUPLE_BYTES) + 4 * _bucket_count(capacity) + 1024

    @property
    def tuples(self) -> int:
        return int(self._state[_TUPLES])

    @property
    def entries(self) -> int:
        return int(self._state[_ENTRIES])

    @property
    def room(self) -> int:
        return self.capacity - self.tuples

    @property
    def _arrays(self):
        return (
            self._buckets,
            self._key,
            self._head,
            self._count,
            self._chain,
            self._older,
            self._younger,
            self._ref,
            self._next,
            self._state,
        )

    def insert(self, keys: np.ndarray, refs: np.ndarray) -> np.ndarray:
        """Append tuples, youngest last; the place of each in the table. Requires `len(keys) <= room`."""
        assert len(keys) <= self.room
        places = np.empty(len(keys), dtype=np.int32)
        _insert(keys, refs, places, *self._arrays)
        return places

    def oldest(self, limit: int = 1) -> np.ndarray:
        """The keys of the oldest entries, oldest first."""
        keys = np.empty(min(limit, self.entries), dtype=np.int64)
        _oldest(keys, self._key, self._younger, self._state)
        return keys

    def count(self, keys: np.ndarray) -> np.ndarray:
        """How many tuples wait for each key."""
        counts = np.empty(len(keys), dtype=np.int64)
        _counts(keys, counts, self._buckets, self._key, self._count, self._chain)
        return counts

    def remove(self, keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take out all tuples of some distinct keys: their references, and the position of each one's key in `keys`.

        Requires `counts` as `count(keys)` gives it.
        """
        total = int(counts.sum())
        refs = np.empty(total, dtype=np.int64)
        which = np.empty(total, dtype=np.int64)
        if total:
            _remove(keys, refs, which, *self._arrays)
        return refs, which

    def refs(self, places: np.ndarray) -> np.ndarray:
        """The references of the tuples at some places, -1 where a tuple has left."""
        return self._ref[places]

    def move(self, places: np.ndarray, refs: np.ndarray) -> None:
        """Give tuples new references, after their rows were moved to other pages."""
        self._ref[places] = refs


def _bucket_count(capacity: int) -> int:
    return 1 << max(4, int(capacity).bit_length())


@njit(cache=True, nogil=True)
def _free(following, state, which, start):
    """Put the places from `start` on into a free list, the first one in front."""
    for i in range(following.shape[0] - 1, start - 1, -1):
        following[i] = state[which]
        state[which] = i


@njit(cache=True, nogil=True)
def _fill_buckets(buckets, key, chain, younger, state):
    entry = state[_OLDEST]
    while entry >= 0:
        bucket = _bucket(key[entry], buckets)
        chain[entry] = buckets[bucket]
        buckets[bucket] = entry
        entry = younger[entry]


@njit(inline="always")
def _bucket(key, buckets):
    return np.int64(mix(uint64(key)) & uint64(buckets.shape[0] - 1))


@njit(inline="always")
def _find(key, buckets, keys, chain):
    entry = buckets[_bucket(key, buckets)]
    while entry >= 0 and keys[entry] != key:
        entry = chain[entry]
    return entry


@njit(cache=True, nogil=True)
def _insert(new_keys, new_refs, places, buckets, key, head, count, chain, older, younger, ref, following, state):
    for i in range(new_keys.shape[0]):
        k = new_keys[i]
        entry = _find(k, buckets, key, chain)
        if entry < 0:
            entry = np.int32(state[_FREE_ENTRY])
            state[_FREE_ENTRY] = chain[entry]
            bucket = _bucket(k, buckets)
            key[entry] = k
            head[entry] = -1
            count[entry] = 0
            chain[entry] = buckets[bucket]
            buckets[bucket] = entry
            youngest = state[_YOUNGEST]
            older[entry] = youngest
            younger[entry] = -1
            if youngest >= 0:
                younger[youngest] = entry
            else:
                state[_OLDEST] = entry
            state[_YOUNGEST] = entry
            state[_ENTRIES] += 1
        slot = state[_FREE_TUPLE]
        state[_FREE_TUPLE] = following[slot]
        ref[slot] = new_refs[i]
        places[i] = slot
        following[slot] = head[entry]
        head[entry] = slot
        count[entry] += 1
        state[_TUPLES] += 1


@njit(cache=True, nogil=True)
def _oldest(out, key, younger, state):
    entry = state[_OLDEST]
    for i in range(out.shape[0]):
        out[i] = key[entry]
        entry = younger[entry]


@njit(cache=True, nogil=True)
def _counts(wanted, counts, buckets, key, count, chain):
    for i in range(wanted.shape[0]):
        entry = _find(wanted[i], buckets, key, chain)
        counts[i] = count[entry] if entry >= 0 else 0


@njit(cache=True, nogil=True)
def _remove(wanted, refs, which, buckets, key, head, count, chain, older, younger, ref, following, state):
    k = 0
    for i in range(wanted.shape[0]):
        bucket = _bucket(wanted[i], buckets)
        before = np.int32(-1)
        entry = buckets[bucket]
        while entry >= 0 and key[entry] != wanted[i]:
            before = entry
            entry = chain[entry]
        if entry < 0:
            continue
        slot = head[entry]
        while slot >= 0:
            refs[k] = ref[slot]
            ref[slot] = -1
            which[k] = i
            k += 1
            after = following[slot]
            following[slot] = state[_FREE_TUPLE]
            state[_FREE_TUPLE] = slot
            state[_TUPLES] -= 1
            slot = after
        if before >= 0:
            chain[before] = chain[entry]
        else:
            buckets[bucket] = chain[entry]
        if older[entry] >= 0:
            younger[older[entry]] = younger[entry]
        else:
            state[_OLDEST] = younger[entry]
        if younger[entry] >= 0:
            older[younger[entry]] = older[entry]
        else:
            state[_YOUNGEST] = older[entry]
        chain[entry] = state[_FREE_ENTRY]
        state[_FREE_ENTRY] = entry
        state[_ENTRIES] -= 1
