"""Compiled loops that collect rows from many pages into one column.

A reference is `page << 32 | row`; a negative reference stands for no row and gives NULL. `table[page, buffer]` is the
address of a buffer; address 0 for a validity buffer means that no value is NULL. `strides[page]` are the bytes from a
value to that of the next row, 0 where the values of a column lie side by side.
"""

from __future__ import annotations

from numba import njit

from .memory import (
    copy_16,
    copy_bytes,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
)

ROW_MASK = 0xFFFFFFFF
AHEAD = 16  # rows that are on their way to the processor while others are copied


@njit(cache=True, nogil=True)
def gather_validity(table, buffer, refs, out):
    """Set the bit, from the address `out` on, of every row that is there and not NULL; the number of the others."""
    nulls = 0
    n = refs.shape[0]
    for byte in range((n + 7) >> 3):
        word = 0
        stop = min(8, n - byte * 8)
        for bit in range(stop):
            ref = refs[byte * 8 + bit]
            valid = 0
            if ref >= 0:
                address = table[ref >> 32, buffer]
                row = ref & ROW_MASK
                valid = 1 if address == 0 else (load_u8(address + (row >> 3)) >> (row & 7)) & 1
            word |= valid << bit
            nulls += 1 - valid
        store_u8(out + byte, word)
    return nulls


@njit(cache=True, nogil=True)
def gather_bits(table, buffer, refs, out):
    """Collect boolean values to the address `out`."""
    n = refs.shape[0]
    for byte in range((n + 7) >> 3):
        word = 0
        for bit in range(min(8, n - byte * 8)):
            ref = refs[byte * 8 + bit]
            if ref >= 0:
                row = ref & ROW_MASK
                word |= ((load_u8(table[ref >> 32, buffer] + (row >> 3)) >> (row & 7)) & 1) << bit
        store_u8(out + byte, word)


@njit(inline="always")
def value_at(table, strides, buffer, width, ref):
    """Address of a value of `width` bytes."""
    page = ref >> 32
    stride = strides[page]
    return table[page, buffer] + (stride if stride else width) * (ref & ROW_MASK)


@njit(inline="always")
def _prefetch_value(table, strides, buffer, width, ref):
    if ref >= 0:
        prefetch(value_at(table, strides, buffer, width, ref))


@njit(cache=True, nogil=True)
def gather_fixed(table, strides, buffer, width, refs, out, step):
    """Collect values of `width` bytes, `step` bytes apart from the address `out` on; zeros where there is no row."""
    n = refs.shape[0]
    if width == 8:
        for i in range(n):
            _prefetch_value(table, strides, buffer, 8, refs[min(i + AHEAD, n - 1)])
            ref = refs[i]
            store_i64(out + step * i, load_i64(value_at(table, strides, buffer, 8, ref)) if ref >= 0 else 0)
    elif width == 4:
        for i in range(n):
            _prefetch_value(table, strides, buffer, 4, refs[min(i + AHEAD, n - 1)])
            ref = refs[i]
            store_i32(out + step * i, load_i32(value_at(table, strides, buffer, 4, ref)) if ref >= 0 else 0)
    elif width == 16:
        for i in range(n):
            _prefetch_value(table, strides, buffer, 16, refs[min(i + AHEAD, n - 1)])
            ref = refs[i]
            if ref >= 0:
                copy_16(out + step * i, value_at(table, strides, buffer, 16, ref))
            else:
                store_i64(out + step * i, 0)
                store_i64(out + step * i + 8, 0)
    elif width == 2:
        for i in range(n):
            ref = refs[i]
            store_i16(out + step * i, load_i16(value_at(table, strides, buffer, 2, ref)) if ref >= 0 else 0)
    elif width == 1:
        for i in range(n):
            ref = refs[i]
            store_u8(out + step * i, load_u8(value_at(table, strides, buffer, 1, ref)) if ref >= 0 else 0)
    else:
        for i in range(n):
            ref = refs[i]
            if ref >= 0:
                copy_bytes(out + step * i, value_at(table, strides, buffer, width, ref), width)
            else:
                for j in range(width):
                    store_u8(out + step * i + j, 0)


@njit(cache=True, nogil=True)
def gather_lengths(table, strides, buffer, width, refs, starts, ends):
    """Offsets of values in their pages in `starts`, those of the collected values in `ends` (one more than rows, the
    first is given); the last one.
    """
    total = ends[0]
    n = refs.shape[0]
    for i in range(n):
        _prefetch_value(table, strides, buffer, width, refs[min(i + AHEAD, n - 1)])
        ref = refs[i]
        if ref >= 0:
            at = value_at(table, strides, buffer, width, ref)
            if width == 4:
                starts[i] = load_i32(at)
                total += load_i32(at + 4) - starts[i]
            else:
                starts[i] = load_i64(at)
                total += load_i64(at + 8) - starts[i]
        ends[i + 1] = total
    return total


@njit(cache=True, nogil=True)
def gather_bytes(table, buffer, refs, starts, ends, out):
    """Collect values of varying length to the address `out`, with the offsets of `gather_lengths`.

    Reading the offsets again instead of keeping them would make the prefetches wait for memory: twice as slow.
    """
    n = refs.shape[0]
    for i in range(n):
        j = min(i + AHEAD, n - 1)
        if refs[j] >= 0:
            value = table[refs[j] >> 32, buffer] + starts[j]
            prefetch(value)
            prefetch(value + ends[j + 1] - ends[j] - 1)
        if refs[i] >= 0:
            copy_value(out + ends[i], table[refs[i] >> 32, buffer] + starts[i], ends[i + 1] - ends[i])


@njit(inline="always")
def copy_value(target, source, length):
    """Copy one value; short ones by words that may overlap, so that values of about one length take one path."""
    if length > 64:
        copy_bytes(target, source, length)
    elif length >= 16:
        copy_16(target, source)
        if length > 32:
            copy_16(target + 16, source + 16)
            copy_16(target + length - 32, source + length - 32)
        copy_16(target + length - 16, source + length - 16)
    elif length >= 8:
        store_i64(target, load_i64(source))
        store_i64(target + length - 8, load_i64(source + length - 8))
    elif length >= 4:
        store_i32(target, load_i32(source))
        store_i32(target + length - 4, load_i32(source + length - 4))
    else:
        for j in range(length):
            store_u8(target + j, load_u8(source + j))


@njit(cache=True, nogil=True)
def gather_children(refs, starts, ends, children):
    """References of all list items of the collected rows, in order, with the offsets of `gather_lengths`."""
    for i in range(refs.shape[0]):
        if refs[i] >= 0:
            first = (refs[i] & ~ROW_MASK) | starts[i]
            for j in range(ends[i + 1] - ends[i]):
                children[ends[i] + j] = first + j


@njit(cache=True, nogil=True)
def repeat_children(refs, size, children):
    """References of the items of fixed-size lists, NULL items for a row that is not there."""
    for i in range(refs.shape[0]):
        ref = refs[i]
        for j in range(size):
            children[i * size + j] = ((ref & ~ROW_MASK) | ((ref & ROW_MASK) * size + j)) if ref >= 0 else -1


@njit(cache=True, nogil=True)
def expand_groups(first, counts, refs):
    """References of all rows of groups: `counts` rows that begin at `first`, for each."""
    k = 0
    for i in range(first.shape[0]):
        for j in range(counts[i]):
            refs[k] = first[i] + j
            k += 1
