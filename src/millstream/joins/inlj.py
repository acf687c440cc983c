"""INLJ, the index nested loop join: the baseline (Polyzotis et al.: Meshing Streaming Updates, section 5).

For each stream row: find its segment by the index, read that segment unless the buffer pool has it, join. The memory is
the pool. Rows do not wait for each other, so nothing is amortised but what the pool happens to hold.

    stream row --> index --> segment in pool? --no--> read it into the slot of the segment that was not used longest
                                  | yes
                                  v
                                result

Legend: pool = M - index, in slots of the largest segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from ..kernels import segments as kernel
from ..master import Master
from ..master.part_files import Memory
from .base import Operator

SLOT_OVERHEAD = 256


class IndexNestedLoopJoin(Operator):
    """Invariant: `slot_of[s]` is the slot that holds segment s, or -1, and `held[slot_of[s]] == s`."""

    name: ClassVar[str] = "inlj"

    def __init__(self, master: Master, **arguments: Any) -> None:
        super().__init__(master, **arguments)
        index = master.index
        self.slot_bytes = _slot_bytes(master)
        self.slot_of = np.full(len(index), -1, dtype=np.int32)
        self.ledger.book("pool directory", self.slot_of.nbytes)
        filter_bytes = master.statistics.filter_bytes
        room = self.ledger.free - (filter_bytes + (filter_bytes >> 4) if 4 * filter_bytes < self.ledger.budget else 0)
        slots = min(len(index), max(1, room // (self.slot_bytes + SLOT_OVERHEAD)))
        self.memory = Memory.of(slots * self.slot_bytes)
        self.ledger.book("buffer pool", min(self.ledger.free, self.memory.nbytes + slots * SLOT_OVERHEAD))
        self.held = np.full(slots, -1, dtype=np.int64)
        self.used = np.zeros(slots, dtype=np.int64)
        self.numbers = np.array([self.pages.reserve(self.memory) for _ in range(slots)], dtype=np.int64)
        self.clock = 0

    @classmethod
    def _least_own(cls, master: Master, brought: Sequence[str]) -> int:
        return _slot_bytes(master) + SLOT_OVERHEAD + 4096 + 4 * master.statistics.segments

    def _start(self) -> None:
        """The pool depends on the master alone."""

    def _arrive(self, refs: np.ndarray, keys: np.ndarray) -> Iterator[pa.RecordBatch]:
        refs, keys = yield from self._without_absent(refs, keys)
        if not len(refs):
            return
        distinct, back = np.unique(keys, return_inverse=True)
        segments = self.locator.segments(distinct)[back]
        if (segments < 0).any():
            self._absent += int((segments < 0).sum())
            yield from self._unmatched(refs[segments < 0])
            refs, keys, segments = refs[segments >= 0], keys[segments >= 0], segments[segments >= 0]
        at = 0
        while at < len(refs):
            taken = self._bring(segments[at:])
            end = at + taken
            which = self.slot_of[segments[at:end]].astype(np.int64)
            counts = self.reader.index.rows[np.maximum(self.held, 0)].astype(np.int64)
            first, found = self.locator.rows(self.pages, keys[at:end], which, self.numbers, counts)
            self._absent += int((found == 0).sum())
            yield from self._resolve(refs[at:end], first, found)
            at = end

    def _bring(self, segments: np.ndarray) -> int:
        """Have the segments of the first rows in the pool, row by row until the pool is full of them; how many rows.

        Each segment that is missing is read by itself when its row comes, as the algorithm has it.
        """
        distinct, first = np.unique(segments, return_index=True)
        order = np.argsort(first)
        distinct, first = distinct[order], first[order]
        fits = min(len(distinct), len(self.held))
        taken = int(first[fits]) if fits < len(distinct) else len(segments)
        distinct = distinct[:fits]
        self.clock += 1
        here = self.slot_of[distinct]
        self.used[here[here >= 0]] = self.clock
        missing = distinct[here < 0]
        self.stats.cache_hits += taken - len(missing)
        if len(missing):
            victims = (
                np.argpartition(self.used, len(missing) - 1)[: len(missing)]
                if len(missing) < len(self.used)
                else np.arange(len(self.used))
            )
            self._read(missing, victims[: len(missing)])
        return taken

    def _read(self, missing: np.ndarray, slots: np.ndarray) -> None:
        old = self.held[slots]
        self.slot_of[old[old >= 0]] = -1
        self.held[slots] = -1
        index, reader = self.reader.index, self.reader
        runs = reader.single_runs(missing, slots * self.slot_bytes)
        bad, why = reader.read(runs, self.memory.address), kernel.SHORT_READ
        if bad < 0:
            starts, numbers = runs.position + self.memory.address, self.numbers[slots]
            bad, why = kernel.map_segments(
                starts, *index.contents(missing), self.pages.addresses, numbers, self.pages.layout.buffers,
            )  # fmt: skip
        if bad >= 0:
            raise reader.fault(int(missing[bad]), why)
        self.stats.bytes_read += int(runs.length.sum())
        self.stats.disk_reads += len(missing)
        self.stats.segments_read += len(missing)
        self.held[slots] = missing
        self.slot_of[missing] = slots
        self.used[slots] = self.clock

    def _drain(self) -> Iterator[pa.RecordBatch]:
        return iter(())


def _slot_bytes(master: Master) -> int:
    return -(-(master.statistics.max_segment_bytes + 2 * 4096) // 4096) * 4096
