"""Cutting, searching and grouping segments against plain Python."""

from __future__ import annotations

from bisect import bisect_left
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.kernels import segments
from millstream.kernels.hashing import checksum
from millstream.kernels.layout import Layout
from millstream.kernels.pages import PageTable

WIDTHS = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(-5, 30), st.integers(1, 60)), max_size=80),
    limit=st.integers(1, 300),
)
def test_cut_points(rows: list[tuple[int, int]], limit: int) -> None:
    rows.sort(key=lambda row: row[0])
    keys, sizes = (np.array([row[i] for row in rows], dtype=np.int64) for i in (0, 1))
    cuts = np.full(len(rows), -1, dtype=np.int64)
    count = segments.cut_points(keys, sizes, limit, cuts)
    borders = [0, *cuts[:count].tolist(), len(rows)]
    assert borders == sorted(set(borders)) or not rows
    for start, end in pairwise(borders):
        assert end == len(rows) or keys[end] != keys[end - 1], "no key is split"
        alone = len(set(keys[start:end].tolist())) <= 1
        assert alone or sizes[start:end].sum() <= limit
        if end < len(rows):
            after = sizes[keys == keys[end]].sum()
            assert sizes[start:end].sum() + after > limit, "no segment is cut too early"


def pages_of(groups: list[list[int]], width: int) -> tuple[PageTable, np.ndarray, np.ndarray]:
    """Segments with these sorted keys, as they lie in a disk buffer."""
    schema = pa.schema([("k", WIDTHS[width]), ("t", pa.string())])
    pages = PageTable(Layout.of(schema))
    numbers = []
    for group in groups:
        batch = pa.RecordBatch.from_arrays(
            [pa.array(group, WIDTHS[width]), pa.array(["x"] * len(group))], schema=schema
        )
        memory = np.frombuffer(batch.serialize(), dtype=np.uint8)
        page = pages.reserve(memory)
        assert segments.map_segment(memory.ctypes.data, memory.nbytes, pages.addresses[page], 5) == len(group)
        numbers.append(page)
    return pages, np.array(numbers, dtype=np.int64), np.array([len(group) for group in groups], dtype=np.int32)


def keys_of(width: int) -> st.SearchStrategy[int]:
    high = 2 ** (8 * width - 1) - 1
    return st.integers(-4, 4) | st.sampled_from([-high - 1, -high, high - 1, high])


@pytest.mark.parametrize("width", WIDTHS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_find_keys(width: int, data: st.DataObject) -> None:
    key = keys_of(width)
    groups = data.draw(st.lists(st.lists(key, min_size=1, max_size=30).map(sorted), min_size=1, max_size=4))
    wanted = data.draw(st.lists(st.tuples(st.integers(0, len(groups) - 1), key), max_size=30))
    pages, numbers, counts = pages_of(groups, width)
    which, keys = (np.array([pair[i] for pair in wanted], dtype=np.int64) for i in (0, 1))
    refs, found = (np.empty(len(wanted), dtype=np.int64) for _ in range(2))
    segments.find_keys(pages.addresses, 1, width, numbers, counts, keys, which, refs, found)
    assert found.tolist() == [groups[at].count(k) for at, k in wanted]
    for (at, k), ref, rows in zip(wanted, refs.tolist(), found.tolist(), strict=True):
        if rows:
            assert (ref >> 32, ref & 0xFFFFFFFF) == (numbers[at], bisect_left(groups[at], k))


@pytest.mark.parametrize("width", WIDTHS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_group_pages(width: int, data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.lists(keys_of(width), max_size=30).map(sorted), min_size=1, max_size=4))
    pages, numbers, counts = pages_of(groups, width)
    keys, first, rows = (np.empty(int(counts.sum()), dtype=np.int64) for _ in range(3))
    runs = segments.group_pages(pages.addresses, 1, width, numbers, counts, keys, first, rows)
    expected = []
    for page, group in zip(numbers.tolist(), groups, strict=True):
        for key, equal in groupby(range(len(group)), key=group.__getitem__):
            at = list(equal)
            expected.append((key, page << 32 | at[0], len(at)))
    assert list(zip(*(column[:runs].tolist() for column in (keys, first, rows)), strict=True)) == expected


def test_map_segments_names_the_first_bad_one() -> None:
    schema = pa.schema([("k", pa.int64())])
    messages = [pa.RecordBatch.from_pydict({"k": [i] * (i + 1)}).serialize().to_pybytes() for i in range(4)]
    memory = [np.frombuffer(message, dtype=np.uint8) for message in messages]
    starts = np.array([array.ctypes.data for array in memory], dtype=np.int64)
    lengths = np.array([array.nbytes for array in memory], dtype=np.int64)
    sums = np.array([checksum(message) & 0xFFFFFFFF for message in messages], dtype=np.uint32)
    counts = np.arange(1, 5, dtype=np.int32)
    pages = PageTable(Layout.of(schema))
    numbers = np.array([pages.reserve(array) for array in memory], dtype=np.int64)

    def check(sums: np.ndarray, counts: np.ndarray, buffers: int = 2) -> tuple[int, int]:
        return segments.map_segments(starts, lengths, sums, counts, pages.addresses, numbers, buffers)

    assert check(sums, counts) == (-1, segments.OK)
    for bad in range(4):
        spoiled = sums.copy()
        spoiled[bad] ^= np.uint32(1)
        assert check(spoiled, counts) == (bad, segments.BAD_CHECKSUM)
        wrong = counts.copy()
        wrong[bad] += 1
        assert check(sums, wrong) == (bad, segments.BAD_MESSAGE)
    assert check(sums, counts, buffers=3) == (0, segments.BAD_MESSAGE)
