"""AMESHJOIN: MESHJOIN whose w and b change while it runs (Polyzotis et al., section 3.3, Fig. 6).

Before each iteration a tuner says how many stream rows to wait for and how many pages to read. A packet remembers at
which page it began and leaves when the scan comes to that page again, in the middle of an iteration if need be, so
packets of any size and reads of any size go together.

    queue: (s0, page 0) (s1, page 1) (s2, page 2)      next: b = 2, pages 2 and 0
           page 2 joins s0 s1 s2, s0 leaves;  page 0 joins s1 s2, s1 leaves

The tuner that is there by default watches the rows that arrive and what the work costs, and takes the w and b that need
the least memory for this rate: the window and the disk buffer grow when the stream is fast and shrink when it is slow.

    least memory for a rate (equations 1, 2 and 5):   w = lambda * c_loop(b, w),   M(b) = buffers(b) + w v_S N_R / b
    c_loop(b, w) = read + b * page + w * row

Legend: that of `scanjoin.py`; tuning module = `tuner`; lambda = `Observed.rate`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa

from ..master.cycle import SegmentCycle
from .scanjoin import LEAST_BYTES, LEAST_ROWS, ScanJoin
from .window import PAGE_OVERHEAD

READ_SECONDS = 200e-6  # of an iteration, whatever its size
HEADROOM = 1.25  # service rate above the rate of arrival
BUSY = 0.9  # of the time: more, and the stream may well be faster than it was let in
INTERVAL = 0.05  # seconds between two measurements of the rate
FIRST = 1024  # rows of the first iterations, before anything is known
NEARLY = 0.97  # of the highest rate is as good
MEMORY = 0.3  # weight of the newest measurement


@dataclass(frozen=True)
class Observed:
    """What a tuner decides by."""

    rate: float  # rows that came in a second, lately
    busy: float  # share of the time in which the operator worked
    page_seconds: float  # reading and joining a page
    row_seconds: float  # taking a row in and letting it go
    pages: int  # N_R
    page_bytes: float  # v_P
    row_bytes: float  # v_S, with its place in H
    largest_buffer: int  # bytes that are read at a time at most, even if b pages are more
    memory: int  # bytes for buffers and window together
    w: int
    b: int
    buffers: int = 2  # of that many bytes


class Tuner(Protocol):
    """Says how an iteration is to be done."""

    def choose(self, observed: Observed) -> tuple[int, int]:
        """w, the stream rows to wait for, and b, the pages to read."""
        ...


class RateTuner:
    """The least memory that keeps up with the stream, or the highest rate if the memory does not suffice for that.

    A stream that keeps the operator busy all the time may be faster than it was let in: then memory is doubled.
    """

    def choose(self, observed: Observed) -> tuple[int, int]:
        if not observed.rate:
            return observed.w, observed.b
        memory = float(observed.memory)
        if observed.busy > BUSY:
            memory = min(memory, 2 * self._memory(observed, observed.w, observed.b))
        else:
            plans = [self._plan(observed, b, HEADROOM * observed.rate) for b in self._sizes(observed.pages)]
            least = min(plans)
            if least[0] <= memory:
                return least[1:]
        plans = [self._fullest(observed, b, memory) for b in self._sizes(observed.pages)]
        best = max(plans)[0]
        return next(plan for plan in plans if plan[0] >= NEARLY * best)[1:]  # small reads let rows come in steadily

    @staticmethod
    def _sizes(pages: int) -> list[int]:
        return [*(1 << i for i in range(max(1, pages).bit_length() - 1)), max(1, pages)]

    @staticmethod
    def _buffers(observed: Observed, b: int) -> float:
        return observed.buffers * min(b * observed.page_bytes, observed.largest_buffer)

    def _memory(self, observed: Observed, w: int, b: int) -> float:
        """M of equation 1, with what each packet takes beside its rows."""
        return self._buffers(observed, b) + -(-observed.pages // b) * (w * observed.row_bytes + PAGE_OVERHEAD)

    def _plan(self, observed: Observed, b: int, rate: float) -> tuple[float, int, int]:
        """Memory, w and b to reach a rate."""
        spare = 1 - rate * observed.row_seconds
        if spare <= 0:
            return float("inf"), 1, b
        w = max(1, int(np.ceil(rate * (READ_SECONDS + b * observed.page_seconds) / spare)))
        return self._memory(observed, w, b), w, b

    def _fullest(self, observed: Observed, b: int, memory: float) -> tuple[float, int, int]:
        """Rate, w and b when so much memory is used up."""
        packet = (memory - self._buffers(observed, b)) / -(-observed.pages // b)
        w = int((packet - PAGE_OVERHEAD) / observed.row_bytes)
        if w < 1:
            return 0.0, 1, b
        return w / (READ_SECONDS + b * observed.page_seconds + w * observed.row_seconds), w, b


class AdaptiveMeshJoin(ScanJoin):
    """Invariants: those of the scan joins; between two iterations the window's table has room for w rows of each."""

    name: ClassVar[str] = "ameshjoin"
    options: ClassVar[tuple[str, ...]] = (*ScanJoin.options, "tuner")
    seconds = staticmethod(time.perf_counter)

    def __init__(self, master: Any, *, tuner: Tuner | None = None, **arguments: Any) -> None:
        self.tuner: Tuner = tuner if tuner is not None else RateTuner()
        super().__init__(master, **arguments)

    def _start(self) -> None:
        super()._start()
        self._most = self.disk_buffer
        self._least = self.scanned.least_buffer(self.brought)
        self._room = self.ledger.free + self.ledger.components["stream table"] + self.ledger.components["disk buffer"]
        self._page_seconds, self._row_seconds = 50e-6, 0.5e-6
        self._began = self._noted = self.seconds()
        self._worked = 0.0
        self._since: float | None = self._began  # when it began to work, while it does
        self._rows = 0
        self._rate = self._busy = 0.0
        if not self.drained and self._window is None:
            self.w = min(self.w, FIRST)

    # -- measuring ---------------------------------------------------------------------------------------------

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        results = super().process(batch)
        while True:
            self._since = self.seconds()
            result = next(results, None)
            self._worked += self.seconds() - self._since
            self._since = None
            if result is None:
                return
            yield result

    def _take(self, refs: np.ndarray, keys: np.ndarray, valid: np.ndarray) -> Iterator[pa.RecordBatch]:
        self._rows += len(refs)
        if not self.drained and self._window is None and self.seconds() - self._noted > INTERVAL:
            self._tune()  # w may be more than comes in a long time
        yield from super()._take(refs, keys, valid)

    def _observe(self) -> Observed:
        """The state of things before an iteration."""
        now = self.seconds()
        passed = now - self._noted
        if passed > INTERVAL:
            worked = self._worked + (now - self._since if self._since is not None else 0.0)
            rate, busy = self._rows / passed, min(1.0, worked / passed)
            fresh = MEMORY if self._rate else 1.0
            self._rate += fresh * (rate - self._rate)
            self._busy += fresh * (busy - self._busy)
            self._noted, self._rows, self._worked = now, 0, 0.0
            self._since = now if self._since is not None else None
        statistics = self.relation.statistics
        page = statistics.bytes / max(1, statistics.segments) + 64
        return Observed(
            rate=self._rate,
            busy=self._busy,
            page_seconds=self._page_seconds,
            row_seconds=self._row_seconds,
            pages=max(1, self.scan.pages),
            page_bytes=page,
            row_bytes=self.window.row_bytes + self.window.tuple_bytes,
            largest_buffer=self._most,
            memory=int(0.9 * self._room),
            w=self.w,
            b=self.b,
            buffers=self.scan.buffers,
        )

    # -- an iteration ------------------------------------------------------------------------------------------

    def _iterate(self, needed: int) -> Iterator[pa.RecordBatch]:
        if not self.drained:
            self._tune()
        began, b = self.seconds(), self.b
        yield from super()._iterate(needed)
        each = max(1e-9, (self.seconds() - began - READ_SECONDS) / b)
        self._page_seconds += MEMORY * (each - self._page_seconds)

    def _tune(self) -> None:
        w, b = self.tuner.choose(self._observe())
        self.w, self.b = max(1, w), max(1, min(b, max(1, self.scan.pages)))
        self._fit_memory()

    def _fit_memory(self) -> None:
        """Let table and disk buffer follow w and b."""
        if isinstance(self.scan, SegmentCycle):
            page = self.relation.statistics.bytes / max(1, self.relation.statistics.segments) + 64
            size = int(min(self._most, max(self._least, self.b * page)))
            if not 0.8 < size / self.disk_buffer < 1.25:
                need = self.scanned.buffer_bytes(self.brought, size)
                if need - self.ledger.components["disk buffer"] <= self.ledger.free:
                    self.scan.resize(size)
                    self.disk_buffer = size
                    self._book_buffers(self.brought)
        if self.ordered or self.matcher is not None:
            return
        target = max(LEAST_ROWS, self.w * self._iterations(self.b))
        there = self.window.table.capacity
        if target > there or there > 1.5 * max(target, len(self.window)):
            row = self.window.row_bytes + self.window.tuple_bytes
            most = int((self.ledger.free + self.ledger.components["stream table"] - LEAST_BYTES) / row)
            self.window.resize(max(LEAST_ROWS, min(target, most)))

    def _grown(self) -> bool:
        return False
