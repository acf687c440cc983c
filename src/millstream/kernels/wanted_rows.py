"""Rows of R fetched by key: segments are read one run at a time, and only the rows that somebody wants are kept.

    file   [ seg ][ seg ][ seg ] ...
              |  read, checked while the bytes are in the processor's cache
              v
    bytes  [ k k k K k k ]              a run of segments; the next run takes the same place
                   |  the rows of wanted keys
                   v
    block  [ bits | values ][ bits | offsets | values ] ...        a page of wanted rows

A segment of 8 KiB that is read for one row leaves the 120 bytes of that row, instead of lying around until the rows of
many segments are collected from memory that the processor no longer has at hand.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .flat import FIRST, KIND, OF_BITS, OF_FIXED, WIDTH
from .gather import copy_value
from .memory import (
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    store_i32,
    store_i64,
    store_u8,
)
from .runs import page_up, read_bytes
from .segments import OK, SHORT_READ, key_at, map_checked, rows_of

VALID, DATA, BYTES, ROOM, USED, NULLS = range(6)  # of a column's state: addresses, bytes for its values, what is used
KEYS, ROWS, READS, READ_BYTES, SEGMENTS, BAD, WHY = range(7)  # of what was done


@njit(cache=True, nogil=True)
def fetch_wanted(
    keys, segments, whole, part_start, offset, length, rows, checksum, descriptors, gap, page, place, size,
    key_buffer, key_width, spec, state, capacity, first, found, codes, addresses, done
):  # fmt: skip
    """Fetch the rows of sorted distinct keys, of which each can only be in its segment (rising).

    Reads go to `size` bytes at the address `place`, which hold any one segment; they are aligned to `page` bytes unless
    it is 0, and segments at most `gap` bytes apart are read together. Of the columns of `spec` the rows of key i are
    copied to `state`, `found[i]` of them from `first[i]` on; with `whole`, all rows of all segments are copied, with
    their keys in `codes`. It ends early when there is no room for more rows than `capacity` or for their bytes.
    `addresses` become those of the page of all rows, `done` says what was done.
    """
    row = np.empty(addresses.shape[0], dtype=np.int64)
    done[:] = 0
    done[BAD] = -1
    n = keys.shape[0]
    file = np.searchsorted(part_start, segments[0], side="right") - 1
    i = 0
    full = False
    while i < n and not full:
        s = segments[i]
        if s >= part_start[file + 1]:
            file = np.searchsorted(part_start, s, side="right") - 1
        start = np.int64(offset[s])
        end = start + np.int64(length[s])
        start -= start % page if page else 0
        stop, last = i + 1, s
        while stop < n:  # as many segments as can be read with this one
            s = segments[stop]
            if s != last:
                at = np.int64(offset[s])
                far = page_up(at + np.int64(length[s]), page) - start
                if s >= part_start[file + 1] or at - end > gap or far > size:
                    break
                end, last = at + np.int64(length[s]), s
            stop += 1
        amount = page_up(end, page) - start
        done[READS] += 1
        done[READ_BYTES] += amount
        if (
            read_bytes(descriptors[file], start, amount, place) < end - start
        ):  # aligned reads reach over the end of a file
            done[BAD], done[WHY] = segments[i], SHORT_READ
            return
        while i < stop and not full:
            s = segments[i]
            why = map_checked(place + np.int64(offset[s]) - start, length[s], checksum[s], rows[s], row, row.shape[0])
            if why != OK:
                done[BAD], done[WHY] = s, why
                return
            count = np.int64(rows[s])
            before = done[ROWS]
            if whole:
                if not _copy_rows(row, 0, count, spec, state, before, capacity):
                    full = True
                    break
                for k in range(count):
                    codes[before + k] = key_at(row[key_buffer], key_width, k)
                done[ROWS] += count
            low = np.int64(0)
            while i < stop and segments[i] == s:
                low, high = rows_of(row[key_buffer], key_width, low, count, keys[i])
                if whole:
                    first[i] = before + low
                else:
                    if not _copy_rows(row, low, high - low, spec, state, done[ROWS], capacity):
                        full = True
                        break
                    first[i] = done[ROWS]
                    done[ROWS] += high - low
                found[i] = high - low
                low = high
                i += 1
            done[SEGMENTS] += not full
    done[KEYS] = i
    for c in range(spec.shape[0]):
        at = spec[c, FIRST]
        addresses[at] = state[c, VALID] if state[c, NULLS] else 0
        addresses[at + 1] = state[c, DATA]
        if spec[c, KIND] != OF_FIXED and spec[c, KIND] != OF_BITS:
            addresses[at + 2] = state[c, BYTES]


@njit(inline="always")
def _offset(row, column, width, at):
    """Where the value of a row begins among the bytes of its column."""
    address = row[column + 1] + width * at
    return np.int64(load_i32(address)) if width == 4 else load_i64(address)


@njit(cache=True, nogil=True)
def _copy_rows(row, low, count, spec, state, at, capacity):
    """Copy rows of a mapped segment behind the `at` rows that are there; False if there is no room for them."""
    if at + count > capacity:
        return False
    for c in range(spec.shape[0]):
        if spec[c, KIND] != OF_FIXED and spec[c, KIND] != OF_BITS:
            column, width = spec[c, FIRST], spec[c, WIDTH]
            size = _offset(row, column, width, low + count) - _offset(row, column, width, low)
            if state[c, USED] + size > state[c, ROOM]:
                return False
    for c in range(spec.shape[0]):
        column, width = spec[c, FIRST], spec[c, WIDTH]
        state[c, NULLS] += _copy_bits(row[column], low, count, state[c, VALID], at, 1)
        data = state[c, DATA]
        if spec[c, KIND] == OF_FIXED:
            if width == 8:
                for k in range(count):
                    store_i64(data + 8 * (at + k), load_i64(row[column + 1] + 8 * (low + k)))
            elif width == 4:
                for k in range(count):
                    store_i32(data + 4 * (at + k), load_i32(row[column + 1] + 4 * (low + k)))
            elif width:
                copy_bytes(data + width * at, row[column + 1] + width * low, width * count)
        elif spec[c, KIND] == OF_BITS:
            _copy_bits(row[column + 1], low, count, data, at, 0)
        else:
            begin, used = _offset(row, column, width, low), state[c, USED]
            copy_value(
                state[c, BYTES] + used, row[column + 2] + begin, _offset(row, column, width, low + count) - begin
            )
            for k in range(count):
                end = used + _offset(row, column, width, low + k + 1) - begin
                if width == 4:
                    store_i32(data + 4 * (at + k + 1), end)
                else:
                    store_i64(data + 8 * (at + k + 1), end)
                state[c, USED] = end
    return True


@njit(inline="always")
def _copy_bits(source, low, count, target, at, missing):
    """Append bits, or as many times `missing` if there is nothing to copy; how many are not set."""
    clear = 0
    for k in range(count):
        from_, to = low + k, at + k
        bit = np.int64(missing)
        if source:
            bit = (np.int64(load_u8(source + (from_ >> 3))) >> (from_ & 7)) & 1
        clear += 1 - bit
        byte = np.int64(load_u8(target + (to >> 3))) if to & 7 else np.int64(0)
        store_u8(target + (to >> 3), byte | (bit << (to & 7)))
    return clear
