"""The loop of a thread that reads chunks of segments for another one and never needs Python's lock.

The two share a box of words:

    box   asked  answered  reader asleep  asker asleep | requests, one for each buffer | answers, likewise

Who waits looks at the box for a moment and only then sleeps, which takes a byte through a pipe to end: waking a thread
takes about as long as joining a chunk, and mostly the other one is nearly there.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from .memory import clock_gettime, load_shared, read_pipe, store_shared, words_at, write_pipe
from .segments import read_chunk

SLOTS = 2  # requests that may be open
REQUEST = 7  # first, stop, address; addresses of `table`, `starts` and `codes`; how many codes there is room for
ANSWER = 5  # first bad segment, why; reads, bytes, nanoseconds
READER_PATIENCE = 20_000  # nanoseconds that somebody looks before it sleeps
ASKER_PATIENCE = 100_000  # it could do nothing else, and the reader would lose time by waking it

_ASKED, _ANSWERED, _READER_ASLEEP, _ASKER_ASLEEP, _REQUESTS = range(0, 40, 8)
_ANSWERS = _REQUESTS + 8 * SLOTS * REQUEST
WORDS = (_ANSWERS + 8 * SLOTS * ANSWER) // 8


@njit(cache=True, nogil=True)
def serve_chunks(
    box, asleep, awake, part_start, begin, mark, length, checksum, most, descriptors, page, buffers, buffer, width
):  # fmt: skip
    """Do `read_chunk` for each request until the pipe `asleep` is closed; `awake` is that of the asker."""
    shared = box.ctypes.data
    done = 0
    while _wait_for_request(shared, asleep, done):
        begun = _nanoseconds()
        asked = carray(words_at(shared + _REQUESTS + 8 * REQUEST * (done % SLOTS)), (REQUEST,))
        answer = carray(words_at(shared + _ANSWERS + 8 * ANSWER * (done % SLOTS)), (ANSWER,))
        first, stop = asked[0], asked[1]
        table = carray(words_at(asked[3]), (stop - first, buffers))
        starts = carray(words_at(asked[4]), (stop - first + 1,))
        codes = carray(words_at(asked[5]), (asked[6],))
        answer[0], answer[1] = read_chunk(
            first, stop, asked[2], part_start, begin, mark, length, checksum, most, descriptors, page, table, buffer,
            width, starts, codes, answer[2:4],
        )  # fmt: skip
        answer[4] = _nanoseconds() - begun
        done += 1
        store_shared(shared + _ANSWERED, done)
        if load_shared(shared + _ASKER_ASLEEP):
            write_pipe(awake, shared, 1)


@njit(cache=True, nogil=True)
def _wait_for_request(shared, asleep, done):
    """False if nobody will ask any more."""
    byte = np.empty(1, dtype=np.uint8)
    while not _comes(shared + _ASKED, done, READER_PATIENCE):
        store_shared(shared + _READER_ASLEEP, 1)
        got = 1 if load_shared(shared + _ASKED) > done else read_pipe(asleep, byte.ctypes.data, 1)
        store_shared(shared + _READER_ASLEEP, 0)
        if got == 0:
            return False  # and less than 0 if a signal came in between
    return True


@njit(cache=True, nogil=True)
def _comes(word, done, patience):
    """Whether a count passes `done` within so many nanoseconds."""
    end = _nanoseconds() + patience
    while load_shared(word) <= done:
        if _nanoseconds() > end:
            return False
    return True


@njit(cache=True, nogil=True)
def ask(box, awake, number, first, stop, address, table, starts, codes, room):
    """Make request `number`; `awake` is the pipe that ends the reader's sleep."""
    shared = box.ctypes.data
    asked = carray(words_at(shared + _REQUESTS + 8 * REQUEST * (number % SLOTS)), (REQUEST,))
    asked[0], asked[1], asked[2] = first, stop, address
    asked[3], asked[4], asked[5], asked[6] = table, starts, codes, room
    store_shared(shared + _ASKED, number + 1)
    if load_shared(shared + _READER_ASLEEP):
        write_pipe(awake, shared, 1)


@njit(cache=True, nogil=True)
def answered(box, number):
    """Whether request `number` has its answer; if not, the asker is about to sleep, and will be woken."""
    shared = box.ctypes.data
    store_shared(shared + _ASKER_ASLEEP, 0)
    if _comes(shared + _ANSWERED, number, ASKER_PATIENCE):
        return True
    store_shared(shared + _ASKER_ASLEEP, 1)
    return load_shared(shared + _ANSWERED) > number


def answer_of(box: np.ndarray, number: int) -> list[int]:
    """The answer to a request that has one."""
    first = _ANSWERS // 8 + ANSWER * (number % SLOTS)
    return box[first : first + ANSWER].tolist()


@njit(cache=True, nogil=True)
def _nanoseconds():
    """The monotonic clock."""
    time = np.empty(2, dtype=np.int64)
    clock_gettime(1, time.ctypes.data)
    return 1_000_000_000 * time[0] + time[1]
