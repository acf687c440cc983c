"""HYBRIDJOIN (Naeem, Dobbie, Weber: X-HYBRIDJOIN for Near-Real-Time Data Warehousing, section 3).

Waiting stream tuples sit in a hash table with a queue. Each iteration takes the key of the oldest tuple, loads the
partition of R that holds it, and joins every row of that partition with whoever waits for it; the tuples that leave
make room for as many new ones. Every read serves at least its oldest tuple, usually many more.

    stream --> [probe memory] --> H_S + Q --oldest key--> index --> D_B <-- partition of R
                     hit |            ^---------- matched tuples leave -----'
                         v                               v
                       result                          result

Legend: H_S, Q = `waiting`; D_B = `buffer`; v_P = `disk_buffer` bytes; w = rows resolved in an iteration.

The paper asks for a unique key in R; here all rows of a key lie in one segment and leave together, so duplicates are
exact, and old tuples whose keys are not in the partition that alone could hold them are absent.

X-HYBRIDJOIN, CACHEJOIN and MOIJ extend this class by memory that is probed first and fed by what iterations find.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from ..kernels import segments as kernel
from ..kernels.stream_table import StreamTable
from ..master import Master
from ..master.part_files import PAGE
from ..master.reader import DiskBuffer
from ..units import parse_bytes
from .base import Operator, Remaining
from .waiting import SLACK, WaitingRows

DISK_BUFFER = 4 << 20
LEAST_WAITING = 64
LEAST_WAITING_BYTES = 32 * 1024
MOVING = 64  # a 64th of the memory of waiting rows is kept free: without any, pages that are nearly empty stay
LEAST_MOVING = 16 * 1024
FEW = 4  # keys for less than a fourth of the segments are few: a partition then serves less than reading it costs
REFILL = 32  # refill when a 32nd of H_S is free: pages stay large and H_S nearly full


class HybridJoin(Operator):
    """Invariant: a stream row is in `waiting` or resolved; `waiting` rows have keys that memory did not have."""

    name: ClassVar[str] = "hybridjoin"
    most_read: ClassVar[int] = DISK_BUFFER
    options: ClassVar[tuple[str, ...]] = ("disk_buffer",)
    waiting_share: ClassVar[float] = 0.95  # of the memory that is left after the disk buffer
    first_share: ClassVar[int] = 1  # H_S begins with one part in so many of what it may have

    def __init__(self, master: Master, *, disk_buffer: int | str | None = None, **arguments: Any) -> None:
        super().__init__(master, **arguments)
        least = self.least_disk_buffer(master)
        self.disk_buffer = max(
            least,
            parse_bytes(disk_buffer, what="disk_buffer")
            if disk_buffer
            else self.default_disk_buffer(master, self.spare),
        )
        self.buffer = DiskBuffer(self.reader, self.pages, self.disk_buffer)
        self.ledger.book("disk buffer", self.buffer.nbytes)
        self._reserved = 0

    @classmethod
    def default_disk_buffer(cls, master: Master, spare: int) -> int:
        return cls.least_disk_buffer(master) + min(cls.most_read, spare // 8)

    @classmethod
    def _least_own(cls, master: Master, brought: Sequence[str]) -> int:
        return cls.least_disk_buffer(master) + StreamTable.bytes_for(LEAST_WAITING) + LEAST_WAITING_BYTES

    def _start(self) -> None:
        self._make_memory()
        capacity = self.waiting_capacity(self.ledger.free, stream_row_bytes(self.stream.layout.schema))
        capacity = max(LEAST_WAITING, capacity // self.first_share)
        self.waiting = WaitingRows(self.stream, self.ledger, capacity=capacity)

    @classmethod
    def waiting_capacity(cls, free: int, row_bytes: float) -> int:
        """How many rows of a size H_S is made for, when the other parts leave so many bytes free."""
        share = free if cls.waiting_share >= 0.9 else int(free * cls.waiting_share)
        per_row = StreamTable.bytes_for(1 << 16) / (1 << 16) + SLACK * row_bytes
        capacity = max(LEAST_WAITING, int((share - LEAST_WAITING_BYTES) / per_row))
        while capacity > LEAST_WAITING and StreamTable.bytes_for(capacity) + LEAST_WAITING_BYTES > share:
            capacity = int(capacity * 0.95)
        return capacity

    def _make_memory(self) -> None:
        """Set up what is probed before H_S; the plain algorithm has none."""

    # -- stream-probing ----------------------------------------------------------------------------------------

    def _arrive(self, refs: np.ndarray, keys: np.ndarray) -> Iterator[pa.RecordBatch]:
        refs, keys = yield from self._probe_memory(refs, keys)
        refs, keys = yield from self._without_absent(refs, keys)
        while len(refs):
            taken = self.waiting.add(refs, keys, self._page_limit())
            refs, keys = refs[taken:], keys[taken:]
            if len(refs):
                yield from self._free_some(len(refs))

    def _probe_memory(self, refs: np.ndarray, keys: np.ndarray) -> Remaining:
        """Resolve what memory has; the others remain."""
        yield from ()
        return refs, keys

    def _page_limit(self) -> int:
        """Bytes that the waiting rows themselves may take now."""
        return self.waiting.bytes + max(0, self.ledger.free - self._kept_back() - self._moving())

    def _kept_back(self) -> int:
        """Bytes that are free but not for waiting rows."""
        return self._reserved

    def _moving(self) -> int:
        """Bytes that stay free to move waiting rows together in."""
        room = self.waiting.bytes + max(0, self.ledger.free - self._kept_back())
        return max(room // MOVING, min(LEAST_MOVING, room // 8)) if len(self.waiting) else 0

    def _make_room(self, size: int) -> bool:
        """Let no more rows in until that many bytes are free, if the rows are not left without room by that."""
        if self.ledger.free >= size:
            self._reserved = 0
            return True
        if 2 * size < self.ledger.free + self.waiting.bytes:
            self._reserved = size
        return False

    def _free_some(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Iterate until enough waiting rows have left to take in new ones."""
        goal = min(rows, max(1, self.waiting.table.capacity // REFILL))
        left = 0
        while left < goal and len(self.waiting):
            before = len(self.waiting)
            yield from self._iterate()
            left += before - len(self.waiting)
        if not self._roomy(goal):
            self.waiting.compact()
        if not len(self.waiting) and not self._roomy(1) and not self._empty_memory():
            self.ledger.add("stream table", int(self.waiting.row_bytes) + 8 * 1024)  # says how much would be needed

    def _empty_memory(self) -> bool:
        """Give up what is kept beside H_S, if that makes room for a row."""
        self._reserved = 0
        return self._roomy(1)

    def _roomy(self, rows: int) -> bool:
        return self._page_limit() - self.waiting.bytes > 4096 + 1.2 * rows * self.waiting.row_bytes

    # -- disk-probing ------------------------------------------------------------------------------------------

    def _iterate(self) -> Iterator[pa.RecordBatch]:
        """One iteration: the partition of the oldest key against all that wait."""
        self.stats.iterations += 1
        oldest = self.waiting.table.oldest(1)
        segment = int(self.locator.segments(oldest)[0])
        if segment >= 0:
            wanted = self._partition(segment)
            before = len(self.waiting)
            yield from self._join(*self._load(wanted))
            self._served(np.array([segment]), np.array([before - len(self.waiting)]))
        yield from self._give_up(oldest if segment < 0 else self._absent_beside(oldest, wanted))

    def _join(self, numbers: np.ndarray, rows: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Loaded segments against all that wait."""
        keys, first, counts = self._groups(numbers, rows)
        waiting = self.waiting.table.count(keys)
        hit = waiting > 0
        keys, first, counts, waiting = keys[hit], first[hit], counts[hit], waiting[hit]
        refs, which = self.waiting.table.remove(keys, waiting)
        yield from self._resolve(refs, first[which], counts[which])
        self.waiting.leave(refs)
        self._matched(keys, first, counts, waiting)

    def _absent_beside(self, oldest: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Keys still waiting although the partition that alone could hold them was just joined, among the oldest."""
        if self.master.layout == "frequency":
            return oldest
        keys = self.waiting.table.oldest(1024)
        first = self.reader.index.first_key
        after = wanted[-1] + 1
        gone = keys >= first[wanted[0]]
        if after < len(first):
            gone &= keys < first[after]
        return keys[gone]

    def _give_up(self, keys: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Keys that are not in R: whoever still waits for them leaves unmatched."""
        counts = self.waiting.table.count(keys)
        lost = int(counts.sum())
        if lost:
            self._absent += lost
            refs, _ = self.waiting.table.remove(keys, counts)
            yield from self._unmatched(refs)
            self.waiting.leave(refs)

    def _partition(self, segment: int) -> np.ndarray:
        """The segments around one that fit into the disk buffer, the same ones for all of them."""
        index = self.reader.index
        per_partition = partition_segments(self.master, self.disk_buffer)
        low = segment - segment % per_partition
        high = min(low + per_partition, len(index))
        wanted = np.arange(low, high, dtype=np.int64)
        file = index.places(wanted)[0]
        wanted = wanted[file == file[segment - low]]
        fits = self.buffer.fit(wanted)
        if fits == len(wanted):
            return wanted
        at = int(np.searchsorted(wanted, segment))
        wanted = wanted[min(at, max(0, len(wanted) - fits)) :]
        fits = self.buffer.fit(wanted)
        return wanted[:fits] if wanted[fits - 1] >= segment else np.array([segment], dtype=np.int64)

    def _load(self, wanted: np.ndarray, *, in_flight: int = 0) -> tuple[np.ndarray, np.ndarray]:
        self.buffer.start(wanted, in_flight=in_flight)
        numbers, rows = self.buffer.finish()
        self.stats.disk_reads = self.buffer.reads
        self.stats.bytes_read = self.buffer.bytes_read
        self.stats.segments_read += len(wanted)
        return numbers, rows

    def _groups(self, numbers: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The keys in loaded segments with the first row and the number of rows of each."""
        total = int(rows.sum())
        keys, first, counts = (np.empty(total, dtype=np.int64) for _ in range(3))
        node = self.key_node
        groups = kernel.group_pages(
            self.pages.addresses, node.first + 1, node.width, numbers, rows, keys, first, counts
        )
        return keys[:groups], first[:groups], counts[:groups]

    def _matched(self, keys: np.ndarray, first: np.ndarray, counts: np.ndarray, waiting: np.ndarray) -> None:
        """What was just joined, while its rows are still in the disk buffer: for those who keep some."""

    def _served(self, segments: np.ndarray, rows: np.ndarray) -> None:
        """How many rows segments have served: for those who keep the most popular ones."""

    # -- the end of a micro-batch ------------------------------------------------------------------------------

    def _drain(self) -> Iterator[pa.RecordBatch]:
        """Iterate while many wait; the keys of a few are cheaper looked up, each in its own segment."""
        table = self.waiting.table
        while len(self.waiting):
            if FEW * table.entries > len(self.reader.index):
                yield from self._iterate()
            else:
                yield from self._look_up(np.sort(table.oldest(2 * self.slice_rows)))

    def _look_up(self, keys: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Resolve the rows that wait for some sorted keys: their segments in file order, no others."""
        self.stats.iterations += 1
        segments = self.locator.segments(keys)
        there = segments >= 0
        self._served(segments[there], self.waiting.table.count(keys[there]))
        wanted = np.unique(segments[there])
        while len(wanted):
            part = wanted[: self.buffer.fit(wanted[: self.buffer.most])]
            yield from self._join(*self._load(part, in_flight=self.reader.in_flight))
            wanted = wanted[len(part) :]
        yield from self._give_up(keys)


def partition_segments(master: Master, disk_buffer: int) -> int:
    """How many segments a partition has that fits into a disk buffer, nearly always: one that does not takes two reads.

    Segments differ in length; a hundredth is left for that, and a page at either end for reads of whole pages.
    """
    statistics = master.statistics
    average = statistics.bytes / max(1, statistics.segments)
    return max(1, int((disk_buffer - 2 * PAGE) / max(1.0, 1.01 * average)))


def stream_row_bytes(schema: pa.Schema) -> float:
    """About how many bytes a waiting row takes, before any is seen."""
    total = 0.0
    for entry in schema:
        try:
            total += entry.type.bit_width / 8
        except ValueError:
            total += 24
    return total + len(schema) / 8 + 2
