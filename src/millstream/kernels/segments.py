"""Compiled work on segments of a master as they lie in the disk buffer: each is one Arrow IPC message."""

from __future__ import annotations

import numpy as np
from numba import njit

from .checksum import block_checksum
from .memory import copy_bytes, load_i8, load_i16, load_i32, load_i64, load_u16, load_u32, store_i32, store_u8
from .runs import plan_chunk, read_runs

OK, SHORT_READ, BAD_CHECKSUM, BAD_MESSAGE = range(4)


@njit(inline="always")
def _field(table, number, start, end):
    """Address of a field of a flatbuffer table, 0 when it is absent, -1 when it does not lie between start and end."""
    if table < start or table + 4 > end:
        return np.int64(-1)
    vtable = table - np.int64(load_i32(table))
    if vtable < start or vtable + 4 > end:
        return np.int64(-1)
    size = np.int64(load_u16(vtable))
    if vtable + size > end:
        return np.int64(-1)
    if 4 + 2 * number + 2 > size:
        return np.int64(0)
    offset = np.int64(load_u16(vtable + 4 + 2 * number))
    if offset == 0:
        return np.int64(0)
    return table + offset if table + offset + 4 <= end else np.int64(-1)


@njit(cache=True, nogil=True)
def map_segment(start, length, row, expected):
    """Write the addresses of a message's buffers to `row`; the number of rows, or -1 if it is not such a message.

    Message and RecordBatch are the flatbuffer tables of the Arrow format: a message has its header in field 2 and
    a record batch its length in field 0 and its buffers (offset, length) in field 2. Reads stay within the message.
    """
    if length < 16 or load_u32(start) != 0xFFFFFFFF:
        return -1
    metadata = np.int64(load_i32(start + 4))
    if metadata < 8 or 8 + metadata > length:
        return -1
    body = start + 8 + metadata
    room = length - 8 - metadata
    header = _field(start + 8 + np.int64(load_u32(start + 8)), 2, start + 8, body)
    if header <= 0:
        return -1
    batch = header + np.int64(load_u32(header))
    count = _field(batch, 0, start + 8, body)
    buffers = _field(batch, 2, start + 8, body)
    if count < 0 or buffers <= 0 or (count and count + 8 > body):
        return -1
    buffers += np.int64(load_u32(buffers))
    if buffers + 4 > body or np.int64(load_u32(buffers)) != expected or buffers + 4 + 16 * expected > body:
        return -1
    for i in range(expected):
        at = load_i64(buffers + 4 + 16 * i)
        size = load_i64(buffers + 12 + 16 * i)
        if at < 0 or size < 0 or at > room or size > room - at:
            return -1
        row[i] = body + at if size > 0 else 0
    return load_i64(count) if count else 0


@njit(cache=True, nogil=True)
def map_segments(starts, lengths, checksums, counts, table, pages, buffers):
    """Check and map many segments; (first bad one, why) or (-1, OK)."""
    for i in range(starts.shape[0]):
        why = map_checked(starts[i], lengths[i], checksums[i], counts[i], table[pages[i]], buffers)
        if why != OK:
            return i, why
    return -1, OK


@njit(inline="always")
def map_checked(start, length, checksum, count, row, buffers):
    """Check a segment in memory and write the addresses of its buffers to `row`; what is wrong with it, or OK."""
    if np.uint32(block_checksum(start, np.int64(length)) & np.uint64(0xFFFFFFFF)) != checksum:
        return BAD_CHECKSUM
    return OK if map_segment(start, np.int64(length), row, buffers) == np.int64(count) else BAD_MESSAGE


@njit(cache=True, nogil=True)
def read_segments(files, offsets, lengths, slack, targets, first, starts, sizes, checksums, counts, rows):
    """Read runs, check the segments in them and map each to its row of `rows`: (first bad segment, why) or (-1, OK).

    Run i has the segments `first[i]` to `first[i + 1]`, which then lie at `starts` with their `sizes`. Doing all
    of it run by run finds the bytes still in the processor's cache.
    """
    buffers = rows.shape[1]
    for i in range(files.shape[0]):
        if read_runs(files[i : i + 1], offsets[i : i + 1], lengths[i : i + 1], slack, targets[i : i + 1]) >= 0:
            return first[i], SHORT_READ
        for s in range(first[i], first[i + 1]):
            why = map_checked(starts[s], sizes[s], checksums[s], counts[s], rows[s], buffers)
            if why != OK:
                return s, why
    return -1, OK


@njit(inline="always")
def key_at(address, width, row):
    """The clustering key of a row: a signed integer of 1, 2, 4 or 8 bytes."""
    if width == 8:
        return load_i64(address + 8 * row)
    if width == 4:
        return np.int64(load_i32(address + 4 * row))
    if width == 2:
        return np.int64(load_i16(address + 2 * row))
    return np.int64(load_i8(address + row))


@njit(cache=True, nogil=True)
def check_chunk(first, stop, address, places, length, checksum, most, table, buffer, width, starts, codes):
    """Check segments `first` to `stop` of an index, that lie at `places` behind an address, and map each to a row.

    None has more than `most` rows. `starts` takes the number of rows before each segment and in all, `codes` the keys
    of all rows, which lie in a buffer of each segment, in so many bytes; there are none if `buffer` is -1. (first bad
    one, why) or (-1, OK)
    """
    k = 0
    starts[0] = 0
    for s in range(stop - first):
        at, size = address + places[s], np.int64(length[first + s])
        if np.uint32(block_checksum(at, size) & np.uint64(0xFFFFFFFF)) != checksum[first + s]:
            return first + s, BAD_CHECKSUM
        count = map_segment(at, size, table[s], table.shape[1])
        if count < 0 or count > most or (buffer >= 0 and k + count > codes.shape[0]):
            return first + s, BAD_MESSAGE
        starts[s + 1] = starts[s] + count
        if buffer >= 0:
            keys = table[s, buffer]
            for row in range(count):
                codes[k] = key_at(keys, width, row)
                k += 1
    return -1, OK


@njit(cache=True, nogil=True)
def read_chunk(
    first, stop, address, part_start, begin, mark, length, checksum, most, descriptors, page, table, buffer, width,
    starts, codes, read
):  # fmt: skip
    """Read segments `first` to `stop`, then check and map them as `check_chunk` does.

    `read` takes the number of reads and of bytes.
    """
    runs = np.empty((5, stop - first), dtype=np.int64)
    places = np.empty(stop - first, dtype=np.int64)
    count = plan_chunk(first, stop, part_start, begin, mark, length, page, runs, places)
    read[0] = count
    read[1] = 0
    for i in range(count):
        descriptor = descriptors[runs[0, i] : runs[0, i] + 1]
        target = runs[3, i : i + 1] + address
        if read_runs(descriptor, runs[1, i : i + 1], runs[2, i : i + 1], max(0, page - 1), target) >= 0:
            return first + runs[4, i], SHORT_READ
        read[1] += runs[2, i]
    return check_chunk(first, stop, address, places, length, checksum, most, table, buffer, width, starts, codes)


@njit(cache=True, nogil=True)
def refs_of(rows, low, starts, numbers):
    """References of rows of a chunk, whose segments begin at `starts` and have the page numbers `numbers`."""
    refs = np.empty(rows.shape[0], dtype=np.int64)
    page = np.int64(0)
    for i in range(rows.shape[0]):
        at = rows[i] + low
        if at < starts[page] or at >= starts[page + 1]:
            page = np.searchsorted(starts, at, side="right") - 1
        refs[i] = (numbers[page] << 32) | (at - starts[page])
    return refs


@njit(inline="always")
def rows_of(keys, width, low, count, key):
    """The rows of a key among `count` sorted ones, from `low` on: the first, and the one after the last."""
    high = count
    while low < high:
        middle = (low + high) >> 1
        if key_at(keys, width, middle) < key:
            low = middle + 1
        else:
            high = middle
    end, high = low, count
    if end < high and key_at(keys, width, end) == key:
        end += 1  # most keys have one row: look at its neighbour before the middle of all that follow
        while end < high and key_at(keys, width, end) == key:
            middle = (end + high) >> 1
            if key_at(keys, width, middle) == key:
                end = middle + 1
            else:
                high = middle
    return low, end


@njit(cache=True, nogil=True)
def find_keys(table, buffer, width, pages, counts, keys, which, refs, found):
    """Binary search of each key in its segment: reference of its first row and the number of its rows, 0 if absent.

    `which[i]` is the position in `pages` and `counts` of the segment that key i belongs to; segments are sorted.
    """
    for i in range(keys.shape[0]):
        at = which[i]
        low, end = rows_of(table[pages[at], buffer], width, np.int64(0), np.int64(counts[at]), keys[i])
        found[i] = end - low
        refs[i] = (np.int64(pages[at]) << 32) | low


@njit(cache=True, nogil=True)
def group_pages(table, buffer, width, pages, counts, keys, first, rows):
    """Runs of equal keys in some segments: key, first row and number of rows of each; the number of runs."""
    k = 0
    for p in range(pages.shape[0]):
        page = np.int64(pages[p])
        address = table[page, buffer]
        i = np.int64(0)
        n = np.int64(counts[p])
        while i < n:
            key = key_at(address, width, i)
            j = i + 1
            while j < n and key_at(address, width, j) == key:
                j += 1
            keys[k] = key
            first[k] = (page << 32) | i
            rows[k] = j - i
            k += 1
            i = j
    return k


@njit(cache=True, nogil=True)
def cut_points(keys, sizes, limit, cuts):
    """Where to cut sorted rows into segments of at most `limit` bytes that do not split a key (a key may be larger)."""
    n = keys.shape[0]
    k = 0
    start = 0
    size = 0
    i = 0
    while i < n:
        j = i
        group = 0
        while j < n and keys[j] == keys[i]:
            group += sizes[j]
            j += 1
        if i > start and size + group > limit:
            cuts[k] = i
            k += 1
            start = i
            size = 0
        size += group
        i = j
    return k


@njit(cache=True, nogil=True)
def pad_message(message, length, padding, target):
    """Copy an IPC message with so many bytes of padding more between its metadata and its body."""
    metadata = np.int64(load_i32(message + 4))
    body = 8 + metadata
    copy_bytes(target, message, body)
    store_i32(target + 4, np.int32(metadata + padding))
    for i in range(padding):
        store_u8(target + body + i, np.uint8(0))
    copy_bytes(target + body + padding, message + body, length - body)


@njit(cache=True, nogil=True)
def copy_to(source, target, length):
    """Copy bytes between addresses."""
    copy_bytes(target, source, length)
