"""Searches in compiled loops against numpy."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.kernels.search import last_not_above, references

KEYS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5), max_size=40)


@settings(deadline=None, max_examples=200)
@given(KEYS, KEYS, st.booleans())
def test_the_last_value_that_is_not_above(values: list[int], wanted: list[int], rising: bool) -> None:
    ordered = np.sort(np.array(values, dtype=np.int64))
    looked_for = np.array(sorted(wanted) if rising else wanted, dtype=np.int64)
    found = np.empty(len(looked_for), dtype=np.int64)
    last_not_above(ordered, looked_for, found)
    assert found.tolist() == (np.searchsorted(ordered, looked_for, side="right") - 1).tolist()


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=70), st.randoms(use_true_random=False))
def test_places_in_pages_as_references(sizes: list[int], random) -> None:
    numbers = np.array(random.sample(range(1000), len(sizes)), dtype=np.int64)
    wanted = np.concatenate([np.arange(size) + (number << 32) for number, size in zip(numbers, sizes, strict=True)])
    places = np.array(random.sample(range(len(wanted)), len(wanted)), dtype=np.int64)
    begins = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
    found = np.empty(len(places), dtype=np.int64)
    references(places, begins, numbers, found)
    assert found.tolist() == wanted[places].tolist()
