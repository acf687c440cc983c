"""The hash tables and the sketch against plain dictionaries, with keys that meet in the same slots."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.kernels.cache_table import CacheTable
from millstream.kernels.sketch import FrequencySketch
from millstream.kernels.stream_table import StreamTable

WORD = 1 << 64
P2, P3 = 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9


def key_of_hash(h: int) -> int:
    """The key whose hash in the tables is `h`: the finaliser of XXH64 backwards."""
    h ^= h >> 32
    h = h * pow(P3, -1, WORD) % WORD
    h ^= h >> 29 ^ h >> 58
    h = h * pow(P2, -1, WORD) % WORD
    h ^= h >> 33
    return h - WORD if h >> 63 else h


# Keys of the first and of the last slot of any table, so that clusters reach over the end and meet; and a few others.
COLLIDING = [key_of_hash(number << 40 | slot) for number in range(8) for slot in (0, (1 << 40) - 1)]
KEYS = [*COLLIDING, 0, 1, -1, 2, 3, 2**63 - 1, -(2**63)]
some_keys = st.lists(st.sampled_from(KEYS), max_size=30)
distinct_keys = st.lists(st.sampled_from(KEYS), unique=True, max_size=len(KEYS))


def longs(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


class StreamTableMachine(RuleBasedStateMachine):
    """A dictionary from key to its tuples; dictionaries keep the order in which keys came."""

    @initialize(capacity=st.integers(1, 60))
    def make(self, capacity: int) -> None:
        self.table = StreamTable(capacity)
        self.capacity = capacity
        self.model: dict[int, dict[int, int]] = {}  # key -> place -> reference
        self.left: set[int] = set()  # places that were used and are free
        self.fresh = 0

    @property
    def tuples(self) -> int:
        return sum(map(len, self.model.values()))

    @rule(keys=some_keys)
    def insert(self, keys: list[int]) -> None:
        keys = keys[: self.capacity - self.tuples]
        refs = list(range(self.fresh, self.fresh + len(keys)))
        self.fresh += len(keys)
        places = self.table.insert(longs(keys), longs(refs)).tolist()
        for key, ref, place in zip(keys, refs, places, strict=True):
            assert 0 <= place < self.capacity
            assert not any(place in tuples for tuples in self.model.values())
            self.model.setdefault(key, {})[place] = ref
            self.left.discard(place)

    @rule(key=st.sampled_from(KEYS))
    def fill(self, key: int) -> None:
        self.insert([key] * (self.capacity - self.tuples))
        assert self.table.room == 0

    @rule(keys=distinct_keys)
    def remove(self, keys: list[int]) -> None:
        counts = self.table.count(longs(keys))
        assert counts.tolist() == [len(self.model.get(key, {})) for key in keys]
        refs, which = self.table.remove(longs(keys), counts)
        taken = sorted(zip(which.tolist(), refs.tolist(), strict=True))
        assert taken == sorted((i, ref) for i, key in enumerate(keys) for ref in self.model.get(key, {}).values())
        for key in keys:
            self.left |= self.model.pop(key, {}).keys()

    @rule(more=st.integers(1, 60))
    def grow(self, more: int) -> None:
        self.capacity += more
        self.table.grow(self.capacity)

    @precondition(lambda self: self.model)
    @rule(limit=st.integers(1, 10))
    def remove_oldest(self, limit: int) -> None:
        self.remove(self.table.oldest(limit).tolist())

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        places = sorted(place for tuples in self.model.values() for place in tuples)
        moved = data.draw(st.lists(st.sampled_from(places), unique=True))
        self.table.move(np.array(moved, dtype=np.int32), longs([10**12 + place for place in moved]))
        for tuples in self.model.values():
            tuples.update({place: 10**12 + place for place in moved if place in tuples})

    @invariant()
    def agrees(self) -> None:
        assert (self.table.tuples, self.table.entries) == (self.tuples, len(self.model))
        assert self.table.room == self.capacity - self.tuples
        for limit in (1, 3, len(self.model), 100):
            assert self.table.oldest(limit).tolist() == list(self.model)[:limit]
        by_place = {place: ref for tuples in self.model.values() for place, ref in tuples.items()}
        by_place |= dict.fromkeys(self.left, -1)
        assert self.table.refs(np.array(list(by_place), dtype=np.int32)).tolist() == list(by_place.values())
        assert self.table.count(longs(KEYS)).tolist() == [len(self.model.get(key, {})) for key in KEYS]


class CacheTableMachine(RuleBasedStateMachine):
    """A dictionary from key to its reference, number of rows, hits and entry."""

    @initialize(capacity=st.integers(1, 30))
    def make(self, capacity: int) -> None:
        self.table = CacheTable(capacity)
        self.capacity = capacity
        self.model: dict[int, list[int]] = {}
        self.fresh = 0

    @rule(keys=distinct_keys, rows=st.integers(0, 3), hits=st.integers(0, 5))
    def insert(self, keys: list[int], rows: int, hits: int) -> None:
        keys = [key for key in keys if key not in self.model][: self.capacity - len(self.model)]
        refs = [self.fresh + i for i in range(len(keys))]
        self.fresh += len(keys)
        amount = np.full(len(keys), rows, dtype=np.int32)
        entries = self.table.insert(longs(keys), longs(refs), amount, np.full(len(keys), hits, dtype=np.int32))
        for key, ref, entry in zip(keys, refs, entries.tolist(), strict=True):
            assert entry not in [known[3] for known in self.model.values()]
            self.model[key] = [ref, rows, hits, entry]

    @rule(keys=some_keys)
    def probe(self, keys: list[int]) -> None:
        refs, rows = np.empty(len(keys), dtype=np.int64), np.empty(len(keys), dtype=np.int32)
        assert self.table.probe(longs(keys), refs, rows) == sum(key in self.model for key in keys)
        assert refs.tolist() == [self.model[key][0] if key in self.model else -1 for key in keys]
        assert rows.tolist() == [self.model[key][1] if key in self.model else -1 for key in keys]
        for key in keys:
            if key in self.model:
                self.model[key][2] += 1

    @rule(keys=some_keys)
    def probe_rows(self, keys: list[int]) -> None:
        stream = longs(range(100, 100 + len(keys)))
        hit, refs, rows, (missed, missed_keys) = self.table.probe_rows(longs(keys), stream)
        found = [
            (row, *self.model[key][:2]) for key, row in zip(keys, stream.tolist(), strict=True) if key in self.model
        ]
        assert list(zip(hit.tolist(), refs.tolist(), rows.tolist(), strict=True)) == found
        rest = [(row, key) for key, row in zip(keys, stream.tolist(), strict=True) if key not in self.model]
        assert list(zip(missed.tolist(), missed_keys.tolist(), strict=True)) == rest
        for key in keys:
            if key in self.model:
                self.model[key][2] += 1

    @rule(keys=distinct_keys)
    def drop(self, keys: list[int]) -> None:
        keys = [key for key in keys if key in self.model]
        self.table.drop(np.array([self.model.pop(key)[3] for key in keys], dtype=np.int32))

    @rule()
    def halve(self) -> None:
        self.table.halve()
        for known in self.model.values():
            known[2] //= 2

    @invariant()
    def agrees(self) -> None:
        assert (self.table.used, self.table.room) == (len(self.model), self.capacity - len(self.model))
        assert sorted(self.table.slots[self.table.slots >= 0].tolist()) == sorted(m[3] for m in self.model.values())
        assert int((self.table.rows >= 0).sum()) == len(self.model)
        for key, (ref, rows, hits, entry) in self.model.items():
            found = tuple(int(column[entry]) for column in (self.table.key, self.table.ref, self.table.rows))
            assert found == (key, ref, rows)
            assert self.table.hits[entry] == hits
        hits_now = self.table.hits.copy()
        refs, rows_now = np.empty(len(KEYS), dtype=np.int64), np.empty(len(KEYS), dtype=np.int32)
        self.table.probe(longs(KEYS), refs, rows_now)
        self.table.hits[:] = hits_now
        assert (rows_now >= 0).tolist() == [key in self.model for key in KEYS]


TestStreamTable = StreamTableMachine.TestCase
TestStreamTable.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestCacheTable = CacheTableMachine.TestCase
TestCacheTable.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_colliding_keys_do_collide() -> None:
    table = CacheTable(len(COLLIDING))
    numbers = longs(list(range(len(COLLIDING))))
    table.insert(longs(COLLIDING), numbers, numbers.astype(np.int32), numbers.astype(np.int32))
    used = np.flatnonzero(table.slots >= 0).tolist()
    last = len(table.slots) - 1
    assert used == [*range(len(COLLIDING) - 1), last]


@pytest.mark.parametrize("capacity", [1, 2, 15, 16, 17, 1000, 4095, 4096])
def test_bytes_of_tables_are_booked(capacity: int) -> None:
    for table in (StreamTable(capacity), CacheTable(capacity)):
        arrays = [array for array in vars(table).values() if isinstance(array, np.ndarray)]
        held = sum(array.nbytes for array in arrays if array.base is None)  # the others show parts of these
        assert held <= table.bytes_for(capacity) <= 2 * held + 2048


def test_a_large_table_turns_over() -> None:
    """Many rounds of keys in and out, so that free entries and tuples are used again in another order."""
    rng = np.random.default_rng(5)
    table = StreamTable(5_000)
    waiting: Counter[int] = Counter()
    for _ in range(60):
        keys = rng.zipf(1.3, table.room) % 3_000 - 1_000
        table.insert(keys, np.arange(len(keys)))
        waiting.update(keys.tolist())
        assert (table.room, table.entries) == (0, len(waiting))
        gone = rng.choice(np.array(list(waiting)), len(waiting) // 2, replace=False)
        counts = table.count(gone)
        assert counts.tolist() == [waiting[key] for key in gone.tolist()]
        _, which = table.remove(gone, counts)
        assert np.bincount(which, minlength=len(gone)).tolist() == counts.tolist()
        for key in gone.tolist():
            del waiting[key]
    assert table.tuples == waiting.total()


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([1, 64, 400, 5_000]),
    rounds=st.lists(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 90)), max_size=30), max_size=8),
)
def test_sketch_never_counts_too_low(size: int, rounds: list[list[tuple[int, int]]]) -> None:
    sketch = FrequencySketch(size)
    truth: Counter[int] = Counter()
    for pairs in rounds:
        seen = sketch.add(longs([key for key, _ in pairs]), longs([count for _, count in pairs]))
        for (key, count), said in zip(pairs, seen.tolist(), strict=True):
            truth[key] += count
            assert min(truth[key], 255) <= said <= 255
            assert said <= truth.total()
    assert sketch.nbytes == sketch.counters.nbytes <= max(128, size)


def test_sketch_is_exact_without_collisions_and_ages() -> None:
    sketch = FrequencySketch(1 << 16)
    keys, counts = np.arange(50), np.arange(50) * 3
    assert sketch.add(keys, counts).tolist() == counts.tolist()
    sketch.halve()
    assert sketch.add(keys, np.zeros(50, dtype=np.int64)).tolist() == (counts // 2).tolist()
