"""Chunks of neighbouring segments, read by a thread of its own, or several, while others are joined.

    scan --- request: segments, buffer ---> thread: read, check, map, lay out keys
         <--- answer: first bad one, why, reads, bytes, nanoseconds ---

Threads take requests in turn, so that a disk has the next one before it is done with the last. Each stays in one
compiled call that never takes Python's lock: handing the lock to and fro took longer than reading a chunk. Filesystems
that are not local are read with Python instead.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..kernels import chunk_loop as loop
from ..kernels import segments as kernel
from ..kernels.layout import Node
from ..kernels.runs import plan_chunk
from .index import ScanIndex
from .part_files import Memory, PartFiles, Runs


def scan_readers(*, direct: bool) -> int:
    """Threads that read all of R: a second one would take the core of the join if reads were not of the disk itself."""
    return 2 if direct else 1


class ScanReader(PartFiles):
    """Reads chunks of neighbouring segments of one set of parts."""

    index: ScanIndex

    @property
    def readers(self) -> int:
        """Threads that read, in turn."""
        return scan_readers(direct=self.direct)

    def open_parts(self, first: int, stop: int) -> None:
        """Open the files of neighbouring segments."""
        if len(self._handles) + len(self._files) < len(self.parts):
            low, high = (np.searchsorted(self.index.part_start, (first, stop - 1), side="right") - 1).tolist()
            for number in range(low, high + 1):
                self._open(number)

    def runs(self, first: int, stop: int) -> Runs:
        """The reads that bring neighbouring segments."""
        index = self.index
        runs = np.empty((5, stop - first), dtype=np.int64)
        places = np.empty(stop - first, dtype=np.int64)
        count = plan_chunk(
            first, stop, index.part_start, index.begin, index.mark, index.length, self.page, runs, places
        )
        file, offset, length, target, begun = runs[:, :count]
        return Runs(file.astype(np.int32), offset, length, target, places, np.append(begun, stop - first))


class Buffer:
    """A piece of memory with some segments in it, mapped and their keys laid out."""

    def __init__(self, columns: int) -> None:
        self.memory = Memory.of(0)
        self.codes = np.empty(0, dtype=np.int64)
        self.starts = np.zeros(1, dtype=np.int64)
        self.table = np.zeros((0, columns), dtype=np.int64)
        self.numbers = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Answer:
    """What came of a request; `bad` is -1 if all segments are sound."""

    bad: int
    why: int
    reads: int
    bytes: int
    nanoseconds: int


class ChunkReader(Protocol):
    """Answers requests in their order. Nobody may touch a buffer between the request and its answer."""

    def ask(self, first: int, stop: int, buffer: Buffer) -> None:
        """Have segments `first` to `stop` read into a buffer."""

    def answer(self) -> Answer:
        """Wait for the oldest request that was not answered."""

    def settle(self) -> None:
        """Wait for all requests, whatever comes of them: then the buffers are nobody's."""

    def close(self) -> None:
        """Wait for the threads to end."""


def chunk_reader(reader: ScanReader, buffers: Sequence[Buffer], key: Node | None) -> ChunkReader:
    """What reads chunks into these buffers; the clustering keys are laid out if `key` says where they are."""
    place = (key.first + 1, key.width) if key is not None else (-1, 8)
    if not reader.store.local:
        return RemoteChunks(reader, buffers, *place)
    return InTurn([LocalChunks(reader, buffers, *place) for _ in range(reader.readers)])


class InTurn:
    """Several that read. The oldest request is always with the one whose turn it is to answer."""

    def __init__(self, readers: Sequence[ChunkReader]) -> None:
        self._to_ask = deque(readers)
        self._to_answer = deque(readers)

    def ask(self, first: int, stop: int, buffer: Buffer) -> None:
        self._to_ask[0].ask(first, stop, buffer)
        self._to_ask.rotate(-1)

    def answer(self) -> Answer:
        answer = self._to_answer[0].answer()
        self._to_answer.rotate(-1)
        return answer

    def settle(self) -> None:
        for reader in self._to_ask:
            reader.settle()
        self._to_answer = self._to_ask.copy()

    def close(self) -> None:
        for reader in self._to_ask:
            reader.close()


class LocalChunks:
    """Through a compiled loop. The thread keeps alive what it writes to, and ends when this object does."""

    def __init__(self, reader: ScanReader, buffers: Sequence[Buffer], key: int, width: int) -> None:
        self.reader = reader
        self._box = np.zeros(loop.WORDS, dtype=np.int64)
        self._asked = self._answered = 0
        asleep, self._wake = os.pipe()
        self._asleep, wake = os.pipe()
        self._end = weakref.finalize(self, _close, self._wake, self._asleep)
        arguments = (self._box, asleep, wake, reader, tuple(buffers), key, width)
        self._thread = threading.Thread(target=_serve, args=arguments, name="millstream-scan", daemon=True)
        self._thread.start()

    def ask(self, first: int, stop: int, buffer: Buffer) -> None:
        self.reader.open_parts(first, stop)
        arrays = buffer.table.ctypes.data, buffer.starts.ctypes.data, buffer.codes.ctypes.data
        loop.ask(self._box, self._wake, self._asked, first, stop, buffer.memory.address, *arrays, len(buffer.codes))
        self._asked += 1

    def answer(self) -> Answer:
        while not loop.answered(self._box, self._answered):
            if not os.read(self._asleep, 1):
                raise RuntimeError("the thread that reads segments has failed; its error was printed")
        answer = Answer(*loop.answer_of(self._box, self._answered))
        self._answered += 1
        return answer

    def settle(self) -> None:
        with contextlib.suppress(RuntimeError):  # of a thread that is no more
            while self._answered < self._asked:
                self.answer()

    def close(self) -> None:
        self._end()
        self._thread.join()


def _serve(
    box: np.ndarray, asleep: int, wake: int, reader: ScanReader, buffers: tuple[Buffer, ...], key: int, width: int
) -> None:
    try:
        index = reader.index
        loop.serve_chunks(
            box, asleep, wake, index.part_start, index.begin, index.mark, index.length, index.checksum,
            index.most_rows, reader.descriptors, reader.page, buffers[0].table.shape[1], key, width,
        )  # fmt: skip
    finally:
        _close(asleep, wake)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class RemoteChunks:
    """Through pyarrow's filesystems."""

    def __init__(self, reader: ScanReader, buffers: Sequence[Buffer], key: int, width: int) -> None:
        self.reader = reader
        self.key = key, width
        self._pool = ThreadPoolExecutor(reader.readers, thread_name_prefix="millstream-scan")
        self._asked: list[Future[Answer]] = []

    def ask(self, first: int, stop: int, buffer: Buffer) -> None:
        self.reader.open_parts(first, stop)
        self._asked.append(self._pool.submit(self._read, first, stop, buffer))

    def answer(self) -> Answer:
        return self._asked.pop(0).result()

    def settle(self) -> None:
        while self._asked:
            self._asked.pop(0).exception()

    def close(self) -> None:
        self._pool.shutdown()

    def _read(self, first: int, stop: int, buffer: Buffer) -> Answer:
        begun = time.perf_counter_ns()
        runs = self.reader.runs(first, stop)
        short = self.reader.read(runs, buffer.memory.address)
        bad, why = (first + int(runs.first[short]) if short >= 0 else -1), kernel.SHORT_READ
        if short < 0:
            index = self.reader.index
            bad, why = kernel.check_chunk(
                first, stop, buffer.memory.address, runs.position, index.length, index.checksum, index.most_rows,
                buffer.table, *self.key, buffer.starts, buffer.codes,
            )  # fmt: skip
        return Answer(int(bad), int(why), len(runs.file), int(runs.length.sum()), time.perf_counter_ns() - begun)
