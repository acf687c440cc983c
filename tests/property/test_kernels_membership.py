"""The membership filter: no key of the master is ever turned away, few others pass."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.kernels import membership
from millstream.master.parts import _FilterChunks

LOWEST, HIGHEST = -(2**63), 2**63 - 1
longs = st.sampled_from([LOWEST, LOWEST + 1, -1, 0, 1, HIGHEST - 1, HIGHEST]) | st.integers(LOWEST, HIGHEST)


def chunked(chunks: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First key, begin and blocks of a filter over sorted chunks of keys."""
    blocks = [np.zeros((membership.blocks_for(len(keys)), 8), dtype=np.uint32) for keys in chunks]
    for keys, block in zip(chunks, blocks, strict=True):
        membership.insert_keys(keys, block)
    first = np.array([keys[0] for keys in chunks], dtype=np.int64)
    begin = np.cumsum([0, *map(len, blocks)]).astype(np.int64)
    return first, begin, np.concatenate(blocks) if blocks else np.zeros((0, 8), dtype=np.uint32)


def passes(keys: np.ndarray, filter_: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    present = np.empty(len(keys), dtype=np.bool_)
    membership.test_keys(keys, *filter_, present)
    return present


@settings(max_examples=150, deadline=None)
@given(
    keys=st.lists(longs, unique=True, min_size=1, max_size=200),
    cuts=st.lists(st.integers(1, 200), max_size=5),
    others=st.lists(longs, max_size=50),
)
def test_no_key_is_lost(keys: list[int], cuts: list[int], others: list[int]) -> None:
    ordered = np.array(sorted(keys), dtype=np.int64)
    filter_ = chunked([chunk for chunk in np.split(ordered, sorted(cuts)) if len(chunk)])
    assert passes(ordered, filter_).all()
    before = [key for key in others if key < ordered[0]]
    assert not passes(np.array(before, dtype=np.int64), filter_).any()


def test_filter_of_nothing_lets_nothing_pass() -> None:
    assert not passes(np.array([LOWEST, 0, HIGHEST]), chunked([])).any()


@pytest.mark.parametrize("spread", [1, 1000, 2**40])
def test_few_absent_keys_pass(spread: int) -> None:
    """At 12 bits a key, less than 2 %; keys are any numbers, those between them are absent."""
    keys = (np.arange(60_000, dtype=np.int64) - 30_000) * 2 * spread
    filter_ = chunked(np.array_split(keys, 7))
    assert filter_[2].nbytes * 8 <= membership.BITS_PER_KEY * len(keys) + 7 * 256
    assert passes(keys, filter_).all()
    assert passes(keys + spread, filter_).mean() < 0.02
    hashes = np.random.default_rng(3).integers(LOWEST, HIGHEST, 100_000)
    assert passes(hashes, filter_).mean() < 0.02


def test_chunks_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys come segment by segment; chunks are cut between segments and none is left out."""
    monkeypatch.setattr(membership, "CHUNK_KEYS", 100)
    keys = np.concatenate(([LOWEST], np.arange(-2_000, 2_000, 3), [HIGHEST]))
    chunks = _FilterChunks()
    for segment in np.array_split(keys, 37):
        chunks.add(segment)
    found = chunks.finish()
    assert len(found) > 5
    blocks = [np.frombuffer(raw, dtype=np.uint32).reshape(-1, 8) for _, raw in found]
    first = np.array([key for key, _ in found], dtype=np.int64)
    begin = np.cumsum([0, *map(len, blocks)]).astype(np.int64)
    filter_ = first, begin, np.concatenate(blocks)
    assert first[0] == LOWEST
    assert passes(keys, filter_).all()
    assert passes(np.arange(-2_000, 2_000, 3) + 1, filter_).mean() < 0.03
