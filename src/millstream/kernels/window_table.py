"""The hash table H of a sliding window: stream tuples found by key, that leave in the order in which they came.

Tuples lie in a ring, so a tuple's slot is its number modulo the capacity. The tuples of a bucket hang in a list from
the oldest to the youngest and on to the oldest again; the bucket knows the youngest. Whoever is the oldest of all comes
after the youngest of its bucket, so it leaves without a search.

    ring   | . . 7 8 9 10 11 . . |        buckets --> 10 --> 7 --> 10
                 ^ oldest     ^ next                   8 --> 8

Tuples come page by page, so the row of a tuple follows from its number and the first one of its page. Keys take four
bytes as long as all that came fit into them.

Most keys of R are not in the window: a bit for each hash, which fits into the processor's cache, tells so. There are
two sets of bits, which tuples numbered 0 .. capacity - 1, capacity .. 2 capacity - 1, ... set by turns: when one begins
anew, all who have set bits in it have left.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64

from .hashing import mix
from .memory import prefetch

TUPLE_BYTES = 4 + 1 + 4 + 2  # next of the bucket, whether it has matched; a bucket, the bits of hashes; without the key
NARROW = np.iinfo(np.int32)
BITS = 8  # of hashes for each tuple, in each of the two sets
MOST_WORDS = (1 << 26) - 1  # of a set: hashes of bits have 32 bits

_OLDEST, _NEXT = range(2)
BLOCK = 256  # keys that are looked at together
LINE = 64  # bytes of the processor's caches
NEAR = 4  # pages that are tried before one is searched for


class WindowTable:
    """At most `capacity` tuples, whose keys have 64 bits if it is `wide`, otherwise 32.

    What fits there lies in `room`, some memory that was made already.

    Invariants: 1. the tuples there are those numbered `oldest <= number < next`, `next - oldest <= capacity`; 2. a
    tuple that was added with a key is in the list of its bucket, once, and that list is in the order of numbers;
    3. the bit of its key's hash is set in one of the two sets.
    """

    def __init__(self, capacity: int, *, wide: bool = True, room: np.ndarray | None = None) -> None:
        self.capacity = capacity
        self.wide = wide
        self.room_bytes = len(room) if room is not None else 0
        self._own_bytes = 0
        self._free = room if room is not None else np.empty(0, dtype=np.uint8)
        self._youngest = self._array(max(1, capacity), np.int32)
        self._youngest[:] = -1
        self._bits = self._array(2 * min(MOST_WORDS, -(-BITS * max(1, capacity) // 64)), np.uint64).reshape(-1, 2)
        self._bits[:] = 0
        self._key = self._array(capacity, np.int64 if wide else np.int32)
        self._following = self._array(capacity, np.int32)
        self.matched = self._array(capacity, np.bool_)
        self.matched[:] = False
        self._state = np.zeros(2, dtype=np.int64)
        self._pages = np.empty((2, 16), dtype=np.int64)  # number of its first tuple, and the page; in their order
        self._page_range = 0, 0

    def _array(self, length: int, kind: type[np.generic]) -> np.ndarray:
        """In the room that is there, as long as something fits."""
        size = length * np.dtype(kind).itemsize
        if size > len(self._free):
            self._own_bytes += size
            return np.empty(length, dtype=kind)
        array = self._free[:size].view(kind)
        self._free = self._free[-(-size // LINE) * LINE :]
        return array

    @staticmethod
    def tuple_bytes(*, wide: bool) -> int:
        """Memory of a tuple."""
        return TUPLE_BYTES + (8 if wide else 4)

    @classmethod
    def bytes_for(cls, capacity: int, *, wide: bool = True) -> int:
        """Memory that a table of this capacity takes."""
        return capacity * cls.tuple_bytes(wide=wide) + 1024

    @property
    def nbytes(self) -> int:
        return max(self.bytes_for(self.capacity, wide=self.wide), self.room_bytes + self._own_bytes)

    def holds(self, keys: np.ndarray) -> bool:
        """Whether these keys are not too long for it."""
        return self.wide or not len(keys) or bool(keys.min() >= NARROW.min and keys.max() <= NARROW.max)

    @property
    def tuples(self) -> int:
        return int(self._state[_NEXT] - self._state[_OLDEST])

    @property
    def room(self) -> int:
        return self.capacity - self.tuples

    @property
    def next(self) -> int:
        """The number that the next tuple gets."""
        return int(self._state[_NEXT])

    @property
    def oldest(self) -> int:
        """The number of the oldest tuple."""
        return int(self._state[_OLDEST])

    def slots(self, first: int, stop: int) -> np.ndarray:
        """Where the tuples of some numbers lie."""
        return np.arange(first, stop, dtype=np.int64) % max(1, self.capacity)

    def insert(self, keys: np.ndarray, page: int, hashed: np.ndarray) -> None:
        """Append the tuples of a page, the youngest last; those that are not `hashed` are never found by key."""
        assert len(keys) <= self.room
        assert self.holds(keys if self.wide else keys[hashed])
        self._note_page(page)
        self._insert(keys, hashed)

    def _insert(self, keys: np.ndarray, hashed: np.ndarray) -> None:
        _insert(keys, hashed, self._youngest, self._bits, self._key, self._following, self.matched, self._state)

    def _note_page(self, page: int) -> None:
        low, high = self._page_range
        if high == self._pages.shape[1]:
            there = self._pages[:, low:high]
            self._pages = np.empty((2, 16 + 2 * (high - low)), dtype=np.int64)
            low, high = 0, high - low
            self._pages[:, :high] = there
        self._pages[:, high] = self.next, page
        self._page_range = low, high + 1

    def refs(self, slots: np.ndarray) -> np.ndarray:
        """References of the rows of tuples that lie at some places."""
        low, high = self._page_range
        first, page = self._pages[:, low:high]
        return _refs(slots, self.oldest, self.next, self.capacity, first, page)

    def match(self, keys: np.ndarray, at: np.ndarray, slots: np.ndarray, rows: np.ndarray) -> int:
        """Pairs of tuples and keys that are equal, as many as `slots` and `rows` hold; how many.

        `at` says where to go on, and holds (0, -2) at first: position in `keys`, and the tuple to look at next.
        """
        return int(_match(keys, at, slots, rows, self._youngest, self._bits, self._key, self._following))

    def keys(self, first: int, stop: int) -> np.ndarray:
        """The keys of the tuples of some numbers."""
        return self._key[self.slots(first, stop)].astype(np.int64)

    def count(self, keys: np.ndarray) -> np.ndarray:
        """How many tuples each key has."""
        counts = np.zeros(len(keys), dtype=np.int64)
        _count(keys, counts, self._youngest, self._key, self._following)
        return counts

    def expire(self, stop: int) -> None:
        """Let the tuples with numbers below `stop` go."""
        _expire(stop, self._youngest, self._key, self._following, self._state)
        low, high = self._page_range
        gone = int(np.searchsorted(self._pages[0, low:high], stop, side="right")) - 1  # but for the last one
        self._page_range = low + max(0, gone), high

    def resized(self, capacity: int) -> WindowTable:
        """A table of another capacity with the same tuples and numbers."""
        assert capacity >= self.tuples
        other = WindowTable(capacity, wide=self.wide)
        slots = self.slots(self.oldest, self.next)
        other._state[:] = self.oldest
        hashed = np.zeros(len(slots), dtype=np.bool_)
        _mark_hashed(hashed, self._youngest, self._following, self.oldest, self.capacity)
        other._insert(self._key[slots].astype(np.int64), hashed)
        other._pages, other._page_range = self._pages.copy(), self._page_range
        other.matched[other.slots(self.oldest, self.next)] = self.matched[slots]
        return other


@njit(inline="always")
def _bucket(key, youngest):
    return np.int64(((mix(uint64(key)) >> uint64(32)) * uint64(youngest.shape[0])) >> uint64(32))


@njit(inline="always")
def _bit(key, bits):
    """Which bit stands for a key, of the half of its hash that the bucket does not depend on."""
    return np.int64(((mix(uint64(key)) & uint64(0xFFFFFFFF)) * uint64(64 * bits.shape[0])) >> uint64(32))


@njit(cache=True, nogil=True)
def _insert(new_keys, hashed, youngest, bits, key, following, matched, state):
    capacity = key.shape[0]
    n = new_keys.shape[0]
    for i in range(n):
        prefetch(youngest.ctypes.data + 4 * _bucket(new_keys[min(i + 8, n - 1)], youngest))
        slot = np.int32(state[_NEXT] % capacity)
        turn = (state[_NEXT] // capacity) & 1
        if slot == 0:
            bits[:, turn] = 0
        state[_NEXT] += 1
        key[slot] = new_keys[i]
        matched[slot] = False
        following[slot] = -1
        if hashed[i]:
            bucket = _bucket(new_keys[i], youngest)
            last = youngest[bucket]
            if last < 0:
                following[slot] = slot
            else:
                following[slot] = following[last]
                following[last] = slot
            youngest[bucket] = slot
            bit = _bit(new_keys[i], bits)
            bits[bit >> 6, turn] |= uint64(1) << uint64(bit & 63)


@njit(cache=True, nogil=True)
def _refs(slots, oldest, following, capacity, first, page):
    refs = np.empty(slots.shape[0], dtype=np.int64)
    begin = oldest % max(1, capacity)
    last = first.shape[0] - 1
    share = first.shape[0] / max(1, following - first[0]) if last >= 0 else 0.0  # pages are of about one size
    for i in range(slots.shape[0]):
        number = oldest + slots[i] - begin
        if slots[i] < begin:
            number += capacity
        at = min(last, np.int64((number - first[0]) * share))
        for _ in range(NEAR):
            if number < first[at]:
                at -= 1
            elif at < last and number >= first[at + 1]:
                at += 1
            else:
                break
        else:
            at = np.searchsorted(first, number, side="right") - 1
        refs[i] = (page[at] << 32) | (number - first[at])
    return refs


@njit(cache=True, nogil=True)
def _match(wanted, at, slots, rows, youngest, bits, key, following):
    limit = slots.shape[0]
    found = 0
    i = at[0]
    slot = at[1]
    n = wanted.shape[0]
    likely = np.empty(BLOCK, dtype=np.int64)
    while i < n:
        size = min(BLOCK, n - i)
        m = 0
        if slot != -2:  # this one was not done
            size = 1
            likely[0] = i
            m = 1
        else:
            for j in range(i, i + size):
                bit = _bit(wanted[j], bits)
                likely[m] = j
                word = bits[bit >> 6, 0] | bits[bit >> 6, 1]
                m += np.int64((word >> uint64(bit & 63)) & uint64(1))
            for j in range(m):
                prefetch(youngest.ctypes.data + 4 * _bucket(wanted[likely[j]], youngest))
            for j in range(m):
                last = max(np.int64(0), np.int64(youngest[_bucket(wanted[likely[j]], youngest)]))
                prefetch(key.ctypes.data + key.itemsize * last)
                prefetch(following.ctypes.data + 4 * last)
        for j in range(m):
            k = wanted[likely[j]]
            last = np.int64(youngest[_bucket(k, youngest)])
            if slot == -2:
                slot = last
            while slot >= 0:
                if key[slot] == k:
                    if found == limit:
                        at[0] = likely[j]
                        at[1] = slot
                        return found
                    slots[found] = slot
                    rows[found] = likely[j]
                    found += 1
                slot = np.int64(following[slot])
                if slot == last:
                    break
            slot = -2
        i += size
    at[0] = n
    at[1] = -2
    return found


@njit(cache=True, nogil=True)
def _count(wanted, counts, youngest, key, following):
    n = wanted.shape[0]
    for i in range(n):
        prefetch(youngest.ctypes.data + 4 * _bucket(wanted[min(i + 8, n - 1)], youngest))
        last = np.int64(youngest[_bucket(wanted[i], youngest)])
        slot = last
        while slot >= 0:
            counts[i] += key[slot] == wanted[i]
            slot = np.int64(following[slot])
            if slot == last:
                break


@njit(cache=True, nogil=True)
def _expire(stop, youngest, key, following, state):
    capacity = key.shape[0]
    while state[_OLDEST] < stop:
        coming = np.int64(key[(state[_OLDEST] + 8) % capacity])
        prefetch(youngest.ctypes.data + 4 * _bucket(coming, youngest))
        slot = np.int32(state[_OLDEST] % capacity)
        bucket = _bucket(np.int64(key[slot]), youngest)
        last = youngest[bucket]
        if last == slot:
            youngest[bucket] = -1
        elif last >= 0 and following[last] == slot:
            following[last] = following[slot]
        state[_OLDEST] += 1


@njit(cache=True, nogil=True)
def _mark_hashed(hashed, youngest, following, oldest, capacity):
    base = oldest % capacity if capacity else 0
    for bucket in range(youngest.shape[0]):
        last = youngest[bucket]
        if last < 0:
            continue
        slot = following[last]
        while slot != last:
            hashed[(slot - base) % capacity] = True
            slot = following[slot]
        hashed[(last - base) % capacity] = True
