"""The pages of a cache are merged when they are small and many, and then left alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from millstream.joins import cache as cache_module
from millstream.joins.cache import MasterCache
from millstream.joins.ledger import Ledger
from millstream.kernels.layout import Layout
from millstream.kernels.pages import PageTable

ROWS = 200  # of a page


@pytest.fixture
def cache(monkeypatch) -> MasterCache:
    monkeypatch.setattr(cache_module, "MERGED", 100_000)
    monkeypatch.setattr(cache_module, "PAGES", 8)
    pages = PageTable(Layout.of(pa.schema({"k": pa.int64(), "text": pa.string()})))
    return MasterCache(pages, [0, 1], Ledger(50_000_000), capacity=100_000)


def admit(cache: MasterCache, first: int, width: int) -> None:
    keys = np.arange(first, first + ROWS)
    number = cache.pages.add(pa.record_batch({"k": keys, "text": [f"{key:0{width}}" for key in keys]}))
    refs = np.arange(ROWS, dtype=np.int64) + (number << 32)
    ones = np.ones(ROWS, dtype=np.int32)
    assert cache.admit(keys, refs, ones, ones, limit=1 << 40) == ROWS
    cache.pages.release(number)


def numbers(cache: MasterCache) -> list[int]:
    return [page.number for page in cache.order]


def test_pages_that_are_large_enough_are_never_rewritten(cache: MasterCache) -> None:
    for i in range(12):
        admit(cache, i * ROWS, width=400)  # 80 kB and more, of at most 100 kB that are merged
    assert cache.scattered
    before = numbers(cache)
    cache.repack(small=1 << 40)
    assert numbers(cache) == before
    assert not cache.scattered, "the same pages would be looked at after every pass"


def test_small_pages_become_few(cache: MasterCache) -> None:
    for i in range(40):
        admit(cache, i * ROWS, width=10)
    assert cache.scattered
    cache.repack(small=1 << 40)
    assert len(cache.order) < 10
    assert not cache.scattered
    assert (cache.probe(np.arange(40 * ROWS))[1] == 1).all()
    merged = numbers(cache)
    cache.repack(small=1 << 40)
    assert numbers(cache)[: len(merged) - 1] == merged[:-1], "only the last one may still be small"
