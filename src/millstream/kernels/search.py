"""Positions of many values among sorted ones, in compiled loops."""

from __future__ import annotations

from numba import njit


@njit(cache=True, nogil=True)
def last_not_above(sorted_values, wanted, positions):
    """The last position among sorted values that is not above each wanted one, -1 if there is none.

    Wanted values that rise are found a few steps behind the one before.
    """
    n = sorted_values.shape[0]
    low = -1
    for i in range(wanted.shape[0]):
        value = wanted[i]
        if low >= 0 and sorted_values[low] > value:
            low = -1
        high, step = low + 1, 1
        while high < n and sorted_values[high] <= value:
            low = high
            high += step
            step += step
        high = min(high, n)
        while high - low > 1:
            middle = (low + high) >> 1
            if sorted_values[middle] <= value:
                low = middle
            else:
                high = middle
        positions[i] = low


@njit(cache=True, nogil=True)
def references(places, begins, numbers, refs):
    """References to rows given by their places in some pages put one behind the other.

    Page p has the number `numbers[p]` and its rows begin at `begins[p]`, which is 0 for the first one.
    """
    n = begins.shape[0]
    for i in range(places.shape[0]):
        page, size = 0, n
        while size > 1:  # places come in any order: a branch that nobody can foresee would cost more than this
            half = size >> 1
            page = page + half if begins[page + half] <= places[i] else page
            size -= half
        refs[i] = numbers[page] << 32 | (places[i] - begins[page])
