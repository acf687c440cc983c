"""What the operators keep in memory: the ledger, waiting stream rows and cached master rows, against plain models.

After every step the rows are right, the bytes booked are the bytes of the table and of all pages, and the budget holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.errors import BudgetTooSmall
from millstream.joins.cache import PAGE_OVERHEAD, MasterCache
from millstream.joins.ledger import Ledger
from millstream.joins.waiting import WaitingRows
from millstream.kernels.cache_table import CacheTable
from millstream.kernels.layout import Layout
from millstream.kernels.pages import PageTable
from millstream.kernels.stream_table import StreamTable

SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string()), ("tags", pa.list_(pa.int16()))])
KEYS = list(range(-6, 7))


def text_of(number: int) -> str | None:
    return None if number % 7 == 6 else f"row {number} " * (number % 23)


def page_of(keys: list[int], start: int) -> pa.RecordBatch:
    """Rows that are told apart by their text, in the order of the keys."""
    numbers = range(start, start + len(keys))
    columns = [
        keys,
        [f"{i}:{text_of(i)}" for i in numbers],
        [None if i % 5 == 0 else [i % 100] * (i % 4) for i in numbers],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def rows_at(pages: PageTable, refs: list[int] | np.ndarray, columns: list[int]) -> list[dict[str, Any]]:
    found = pages.measure(np.asarray(refs, dtype=np.int64), columns).columns()
    return pa.table(found, names=[SCHEMA.names[i] for i in columns]).to_pylist() if columns else [{}] * len(refs)


@settings(max_examples=200, deadline=None)
@given(
    budget=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(-50, 400)), max_size=30),
)
def test_ledger(budget: int, steps: list[tuple[bool, str, int]]) -> None:
    ledger = Ledger(budget)
    model: dict[str, int] = {}
    peak = 0
    for adds, component, size in steps:
        after = {**model, component: size + (model.get(component, 0) if adds else 0)}
        total = sum(after.values())
        if total > budget:
            with pytest.raises(BudgetTooSmall, match=component) as caught:
                ledger.add(component, size) if adds else ledger.book(component, size)
            assert caught.value.least == total
        else:
            ledger.add(component, size) if adds else ledger.book(component, size)
            model, peak = after, max(peak, total)
        used = sum(model.values())
        assert (ledger.components, ledger.used, ledger.free, ledger.peak) == (model, used, budget - used, peak)


def held(owner: object) -> int:
    """Bytes of what keeps a page valid: one block, or the arrays of its columns."""
    if isinstance(owner, np.ndarray):
        return owner.nbytes
    assert isinstance(owner, list)
    return sum(array.get_total_buffer_size() for array in owner)


class WaitingMachine(RuleBasedStateMachine):
    """A dictionary from key to the rows that wait for it, keys in the order in which they came."""

    @initialize(capacity=st.integers(4, 200), budget=st.sampled_from([25_000, 60_000, 1_000_000]))
    def make(self, capacity: int, budget: int) -> None:
        self.stream = PageTable(Layout.of(SCHEMA))
        self.ledger = Ledger(budget)
        self.waiting = WaitingRows(self.stream, self.ledger, capacity=capacity)
        self.model: dict[int, list[dict[str, Any]]] = {}
        self.fresh = 0

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=60))
    def add(self, keys: list[int]) -> None:
        batch = page_of(keys, self.fresh)
        self.fresh += len(keys)
        page = self.stream.add(batch)
        refs = np.arange(len(keys), dtype=np.int64) + (page << 32)
        limit = self.waiting.bytes + self.ledger.free
        taken = self.waiting.add(refs, np.array(keys, dtype=np.int64), limit)
        self.stream.release(page)
        assert 0 <= taken <= len(keys)
        assert self.waiting.bytes <= limit
        for row in batch.to_pylist()[:taken]:
            self.model.setdefault(row["k"], []).append(row)

    def take(self, keys: list[int]) -> None:
        wanted = np.array(keys, dtype=np.int64)
        refs, which = self.waiting.table.remove(wanted, self.waiting.table.count(wanted))
        rows = rows_at(self.stream, refs, [0, 1, 2])
        for i, key in enumerate(keys):
            mine = [row for row, at in zip(rows, which.tolist(), strict=True) if at == i]
            expected = self.model.pop(key, [])
            assert sorted(map(str, mine)) == sorted(map(str, expected))
        self.waiting.leave(refs)

    @rule(keys=st.lists(st.sampled_from(KEYS), unique=True, max_size=4))
    def leave(self, keys: list[int]) -> None:
        self.take(keys)

    @rule(limit=st.integers(1, 3))
    def leave_oldest(self, limit: int) -> None:
        self.take(self.waiting.table.oldest(limit).tolist())

    @rule()
    def compact(self) -> None:
        before = self.waiting.bytes
        self.waiting.compact()
        assert self.waiting.bytes <= before + 2048

    @invariant()
    def agrees(self) -> None:
        waiting = self.waiting
        assert len(waiting) == sum(map(len, self.model.values())) == sum(waiting.live.values())
        assert waiting.table.oldest(99).tolist() == list(self.model)
        assert waiting.bytes == sum(waiting.size.values())
        assert self.ledger.used == StreamTable.bytes_for(waiting.table.capacity) + waiting.bytes <= self.ledger.budget
        assert len(self.stream) == len(waiting.live) == len(waiting.places) == len(waiting.size)
        for page, size in waiting.size.items():
            assert held(self.stream.owners[page]) <= size


class CacheMachine(RuleBasedStateMachine):
    """A dictionary from key to its master rows; what the cache drops is dropped there too, never anything else."""

    @initialize(
        capacity=st.sampled_from([16, 40]),
        budget=st.sampled_from([40_000, 80_000, 4_000_000]),
        columns=st.sampled_from([[], [1], [0, 2], [0, 1, 2]]),
    )
    def make(self, capacity: int, budget: int, columns: list[int]) -> None:
        self.pages = PageTable(Layout.of(SCHEMA))
        self.ledger = Ledger(budget)
        self.columns = columns
        self.cache = MasterCache(self.pages, columns, self.ledger, capacity=capacity)
        self.model: dict[int, list[dict[str, Any]]] = {}
        self.fresh = 0

    @rule(
        groups=st.dictionaries(st.integers(0, 60), st.integers(0, 5), min_size=1, max_size=12),
        hits=st.integers(0, 4),
        share=st.sampled_from([0.0, 0.5, 1.0]),
    )
    def admit(self, groups: dict[int, int], hits: int, share: float) -> None:
        groups = {key: rows for key, rows in groups.items() if key not in self.model}
        keys = np.array(list(groups), dtype=np.int64)
        rows = np.array(list(groups.values()), dtype=np.int64)
        batch = page_of(np.repeat(keys, rows).tolist(), self.fresh)
        self.fresh += len(batch)
        page = self.pages.add(batch)
        first = np.cumsum(rows) - rows + (page << 32)
        limit = self.cache.bytes + int(share * self.ledger.free)
        taken = self.cache.admit(keys, first, rows, np.full(len(keys), hits), limit)
        self.pages.release(page)
        assert self.cache.bytes <= max(limit, 0)
        source = (
            batch.select([SCHEMA.names[i] for i in self.columns]).to_pylist() if self.columns else [{}] * len(batch)
        )
        for key, start, count in list(zip(keys.tolist(), first.tolist(), rows.tolist(), strict=True))[:taken]:
            begin = start & 0xFFFFFFFF
            self.model[key] = source[begin : begin + count]

    @rule(keys=st.lists(st.integers(0, 60), max_size=20))
    def ask(self, keys: list[int]) -> None:
        _, rows = self.cache.probe(np.array(keys, dtype=np.int64))
        assert rows.tolist() == [len(self.model[key]) if key in self.model else -1 for key in keys]

    @rule(share=st.sampled_from([0.0, 0.2, 1.0]), threshold=st.integers(0, 4))
    def clean(self, share: float, threshold: int) -> None:
        before = self.cache.bytes
        self.cache.clean(max(1, int(before * share)), threshold)
        assert self.cache.bytes <= before + PAGE_OVERHEAD
        self.forget()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        gone = data.draw(st.sets(st.sampled_from(sorted(self.model))))
        entries = [self.entry(key) for key in gone]
        before = self.cache.evicted
        self.cache.evict(np.array(entries, dtype=np.int32))
        assert self.cache.evicted - before == sum(len(self.model.pop(key)) for key in gone)

    @rule(small=st.sampled_from([0, 8 * PAGE_OVERHEAD, 1 << 30]))
    def repack(self, small: int) -> None:
        self.cache.repack(small)
        self.forget()

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        assert (self.cache.bytes, self.cache.table.used, len(self.pages)) == (0, 0, 0)
        self.model.clear()

    def entry(self, key: int) -> int:
        table = self.cache.table
        (at,) = np.flatnonzero((table.key == key) & (table.rows >= 0)).tolist()
        return at

    def forget(self) -> None:
        """Rows may be dropped while pages are rewritten, the model follows."""
        table = self.cache.table
        there = set(table.key[table.rows >= 0].tolist())
        assert there <= self.model.keys()
        self.model = {key: rows for key, rows in self.model.items() if key in there}

    @invariant()
    def agrees(self) -> None:
        cache, table = self.cache, self.cache.table
        assert table.used == len(self.model)
        assert cache.cached_rows == sum(map(len, self.model.values()))
        assert cache.bytes == sum(page.size for page in cache.order)
        assert self.ledger.used == CacheTable.bytes_for(table.capacity) + cache.bytes <= self.ledger.budget
        assert len(self.pages) == len(cache.order)
        for page in cache.order:
            owner = self.pages.owners[page.number]
            assert held(owner) <= page.size
        for key, expected in self.model.items():
            at = self.entry(key)
            refs = int(table.ref[at]) + np.arange(int(table.rows[at]), dtype=np.int64)
            assert rows_at(self.pages, refs, self.columns) == expected
        belong = [entry for page in cache.order for entry in cache.live(page).tolist()]
        assert sorted(belong) == np.flatnonzero(table.rows >= 0).tolist()


TestWaitingRows = WaitingMachine.TestCase
TestWaitingRows.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)
TestMasterCache = CacheMachine.TestCase
TestMasterCache.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)


def test_compact_wins_back_memory() -> None:
    """Each page keeps one row in ten; together they take a tenth."""
    stream, ledger = PageTable(Layout.of(SCHEMA)), Ledger(10_000_000)
    waiting = WaitingRows(stream, ledger, capacity=20_000)
    for i in range(10):
        keys = np.arange(1_000, dtype=np.int64) + 1_000 * i
        page = stream.add(page_of(keys.tolist(), 1_000 * i))
        assert waiting.add(np.arange(1_000, dtype=np.int64) + (page << 32), keys, 10_000_000) == 1_000
        stream.release(page)
    full = waiting.bytes
    gone = np.array([key for key in range(10_000) if key % 10], dtype=np.int64)
    refs, _ = waiting.table.remove(gone, waiting.table.count(gone))
    waiting.leave(refs)
    assert waiting.bytes == full
    for _ in range(8):
        waiting.compact()
    assert waiting.bytes < full / 5
    left = np.arange(0, 10_000, 10, dtype=np.int64)
    refs, which = waiting.table.remove(left, waiting.table.count(left))
    rows = rows_at(stream, refs, [0, 1])
    assert [row["k"] for row in rows] == left[which].tolist()
    assert all(row["text"].startswith(f"{row['k']}:") for row in rows)
    waiting.leave(refs)
    assert (waiting.bytes, len(stream)) == (0, 0)
