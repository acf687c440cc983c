"""The hash table of a sliding window against a list, through many turns of its ring and of its two sets of bits."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.kernels.window_table import BLOCK, WindowTable

STEPS = st.lists(
    st.tuples(st.sampled_from(["insert", "expire", "match", "resize"]), st.integers(0, 40), st.integers(0, 2**32)),
    max_size=40,
)


def matches(table: WindowTable, keys: np.ndarray, room: int) -> list[tuple[int, int]]:
    """All pairs (slot, position), taken out a few at a time."""
    slots, rows = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    at = np.array([0, -2], dtype=np.int64)
    found: list[tuple[int, int]] = []
    while True:
        n = table.match(keys, at, slots, rows)
        found += zip(slots[:n].tolist(), rows[:n].tolist(), strict=True)
        if at[0] == len(keys):
            return found


@settings(max_examples=150, deadline=None)
@given(
    capacity=st.integers(1, 30),
    steps=STEPS,
    room=st.integers(1, 9),
    spread=st.sampled_from([3, 50, 2**31, 2**40]),
    wide=st.booleans(),
)
def test_a_window_finds_who_is_there(
    capacity: int, steps: list[tuple[str, int, int]], room: int, spread: int, wide: bool
) -> None:
    table = WindowTable(capacity, wide=wide)
    there: dict[int, tuple[int, bool]] = {}  # by number: key, whether it is found by key
    rows: dict[int, int] = {}  # by number: its reference
    for what, count, seed in steps:
        random = np.random.default_rng(seed)
        if what == "insert":
            count = min(count, table.room)
            keys, hashed = random.integers(-spread, spread, count), random.random(count) < 0.8
            hashed &= np.array([table.holds(keys[i : i + 1]) for i in range(count)], dtype=np.bool_)
            there |= {table.next + i: (int(keys[i]), bool(hashed[i])) for i in range(count)}
            page = int(random.integers(0, 2**30))
            rows |= {table.next + i: (page << 32) + i for i in range(count)}
            table.insert(keys, page, hashed)
        elif what == "expire":
            stop = min(table.next, table.oldest + count)
            table.expire(stop)
            there = {number: one for number, one in there.items() if number >= stop}
        elif what == "resize":
            table = table.resized(max(1, table.tuples, count))
        wanted = random.integers(-spread, spread, count)
        if there and count:
            wanted[0] = there[max(there)][0]
        expected = [
            (number % table.capacity, position)
            for position, key in enumerate(wanted.tolist())
            for number, (own, hashed) in sorted(there.items())
            if hashed and own == key
        ]
        assert sorted(matches(table, wanted, room)) == sorted(expected)
        found = [position for _, position in expected]
        assert table.count(wanted).tolist() == [found.count(position) for position in range(len(wanted))]
        assert table.tuples == len(there)
        numbers = random.permutation(np.array(sorted(there), dtype=np.int64))
        assert table.refs(numbers % table.capacity).tolist() == [rows[number] for number in numbers.tolist()]


def test_a_long_stream_through_a_small_window() -> None:
    """Bits of tuples that have left are forgotten: after many turns few keys that are not there pass the bits."""
    random = np.random.default_rng(8)
    table = WindowTable(1_000)
    for _ in range(50):
        keys = random.integers(0, 2**60, 500)
        table.expire(max(0, table.next - 500))
        table.insert(keys, 0, np.ones(500, dtype=np.bool_))
        assert len(matches(table, keys, BLOCK)) == 500
    assert np.unpackbits(table._bits.view(np.uint8)).sum() <= 2_000
