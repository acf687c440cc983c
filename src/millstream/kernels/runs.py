"""Compiled reading of segments: which bytes to read at once, where they go, and the reads themselves."""

from __future__ import annotations

import numpy as np
from numba import njit

from .memory import pread

MARKED = 64  # segments from one whose offset is kept to the next, in the index for a scan


@njit(cache=True, nogil=True)
def read_bytes(file, offset, length, target):
    """Read bytes of an open file to an address; how many came before its end."""
    done = np.int64(0)
    while done < length:
        got = pread(file, target + done, length - done, offset + done)
        if got <= 0:
            break
        done += got
    return done


@njit(cache=True, nogil=True)
def read_runs(files, offsets, lengths, slack, targets):
    """Read runs of bytes from open files to addresses; the number of the first run that came short, or -1.

    A read may end up to `slack` bytes early: aligned reads reach over the end of their file.
    """
    for i in range(files.shape[0]):
        if read_bytes(files[i], offsets[i], lengths[i], targets[i]) + slack < lengths[i]:
            return i
    return -1


@njit(inline="always")
def page_up(size, page):
    """The next multiple of a page, if there are pages."""
    return (size + page - 1) // page * page if page else size


@njit(cache=True, nogil=True)
def plan_runs(wanted, part_start, offset, length, gap, page, runs, places):
    """Group rising segment numbers into runs of bytes that are read at once; the number of runs.

    File f has the segments `part_start[f]` to `part_start[f + 1]`.
    Segments of one file at most `gap` bytes apart go together. Reads are aligned to `page` bytes unless it is 0.
    `runs` takes file, offset, length, place in memory and first segment of each run, `places` where each segment lies.
    """
    k = -1
    target = np.int64(0)
    end = np.int64(0)
    file = np.int64(0)
    for i in range(wanted.shape[0]):
        at = np.int64(offset[wanted[i]])
        new = i == 0 or wanted[i] >= part_start[file + 1]
        if new:
            file = np.searchsorted(part_start, wanted[i], side="right") - 1
        if new or at - end > gap:
            if k >= 0:
                target = _close_run(runs, k, end, page)
            k += 1
            runs[0, k] = file
            runs[1, k] = at - at % page if page else at
            runs[3, k] = target
            runs[4, k] = i
        end = at + np.int64(length[wanted[i]])
        places[i] = runs[3, k] + at - runs[1, k]
    if k >= 0:
        _close_run(runs, k, end, page)
    return k + 1


@njit(inline="always")
def _close_run(runs, k, end, page):
    """Set the length of a run that ends at `end`; where the next one may lie in memory."""
    runs[2, k] = page_up(end, page) - runs[1, k]
    return runs[3, k] + (runs[2, k] + 63) // 64 * 64


@njit(cache=True, nogil=True)
def fit_runs(wanted, part_start, offset, length, gap, slack, size):
    """How many of the first wanted segments a memory of `size` bytes can hold when runs take up to `slack` more."""
    used = np.int64(0)
    end = np.int64(0)
    file = np.int64(0)
    for i in range(wanted.shape[0]):
        new = i == 0 or wanted[i] >= part_start[file + 1]
        if new:
            file = np.searchsorted(part_start, wanted[i], side="right") - 1
        at = np.int64(offset[wanted[i]])
        stop = at + np.int64(length[wanted[i]])
        if not new and at - end <= gap:
            used += stop - end
        else:
            used += stop - at + slack
        if used > size:
            return i
        end = stop
    return wanted.shape[0]


@njit(cache=True, nogil=True)
def offset_of(segment, file, part_start, begin, mark, length):
    """Where a segment of part `file` lies in its file, if that has its segments one after the other."""
    marked = segment // MARKED
    at = marked * MARKED
    if at > part_start[file]:
        offset = mark[marked]
    else:
        at = part_start[file]
        offset = begin[file]
    while at < segment:
        offset += np.int64(length[at])
        at += 1
    return offset


@njit(cache=True, nogil=True)
def plan_chunk(first, stop, part_start, begin, mark, length, page, runs, places):
    """Runs of bytes, one for each part, that bring segments `first` to `stop`, as `plan_runs` would make them."""
    k = 0
    target = np.int64(0)
    file = np.searchsorted(part_start, first, side="right") - 1
    s = first
    while s < stop:
        while s >= part_start[file + 1]:
            file += 1
        at = offset_of(s, file, part_start, begin, mark, length)
        runs[0, k] = file
        runs[1, k] = at - at % page if page else at
        runs[3, k] = target
        runs[4, k] = s - first
        last = min(stop, part_start[file + 1])
        while s < last:
            places[s - first] = target + at - runs[1, k]
            at += np.int64(length[s])
            s += 1
        target = _close_run(runs, k, at, page)
        k += 1
    return k


@njit(cache=True, nogil=True)
def largest_chunk(low, high, chunks, part_start, length, slack):
    """Bytes of the largest of so many chunks that segments `low` to `high` are cut into, with `slack` for each run."""
    largest = np.int64(0)
    file = np.searchsorted(part_start, low, side="right") - 1
    for chunk in range(chunks):
        s = low + (high - low) * chunk // chunks
        stop = low + (high - low) * (chunk + 1) // chunks
        size = np.int64(slack)
        while s < stop:
            if s >= part_start[file + 1]:
                file += 1
                size += slack
                continue
            size += np.int64(length[s])
            s += 1
        largest = max(largest, size)
    return largest
