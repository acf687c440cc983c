"""The steady state of the cost models: shares add up, more rows wait longer, caches hold what they have places for."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.tuning.curves import Curve
from millstream.tuning.popularity import Popularity, age_of_oldest, held, reads_per_arrival, recently_used

keys = st.integers(1, 500_000)
skews = st.floats(0, 2)


@settings(max_examples=40, deadline=None)
@given(keys, skews, st.integers(1, 20_000), st.booleans())
def test_shares_add_up(keys: int, skew: float, number: int, by_frequency: bool) -> None:
    popularity = Popularity(keys, skew)
    partitions = popularity.partitions(number, by_frequency=by_frequency)
    assert abs(partitions.total - 1) < 1e-6
    assert partitions.number.sum() == number
    best, others = partitions.without_best()
    assert abs(best + others.total - 1) < 1e-6


@settings(max_examples=40, deadline=None)
@given(keys, skews, st.integers(1, 5_000), st.floats(1, 1e6))
def test_more_rows_wait_longer_and_share_reads(keys: int, skew: float, number: int, rows: float) -> None:
    partitions = Popularity(keys, skew).partitions(number)
    age, later = age_of_oldest(partitions, rows), age_of_oldest(partitions, 2 * rows)
    assert abs(held(partitions, age) - rows) < 1e-3 * rows
    assert later > age
    assert reads_per_arrival(partitions, later) <= reads_per_arrival(partitions, age) <= 1 + 1e-9


@settings(max_examples=40, deadline=None)
@given(keys, skews, st.floats(0.001, 0.999), st.sampled_from([1, 2]))
def test_a_cache_holds_what_it_has_places_for(keys: int, skew: float, share: float, times: int) -> None:
    popularity = Popularity(keys, skew)
    cached = recently_used(popularity.number, popularity.share, share * keys, times=times)
    assert abs(float((cached * popularity.number).sum()) - share * keys) <= 1e-3 * keys + 1e-6
    served = popularity.served_by(cached)
    assert served >= share - 0.01  # at least as good as keys taken at random
    assert np.all(np.diff(cached[: popularity.head]) <= 1e-12)  # hotter keys are cached more often


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.floats(1, 1e8), st.floats(1e-9, 10), min_size=1, max_size=6), st.floats(0.5, 1e9))
def test_curves_stay_between_their_points(points: dict[float, float], size: float) -> None:
    value = Curve.of(points)(size)
    assert min(points.values()) * 0.999 <= value <= max(points.values()) * 1.001
