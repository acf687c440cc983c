"""What all join operators share: batches in, keys, exact output for every kind of join, and the ledger.

Every stream row is resolved exactly once, by `_resolve` with the master rows of its key (all of them: they lie in one
segment) or by none. Subclasses decide when, and from where the master rows come.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from ..errors import BudgetTooSmall, InputError
from ..kernels import membership
from ..kernels.layout import Layout
from ..kernels.pages import PageTable
from ..master import Master
from ..master.index import KeyFilter
from ..stats import JoinStats
from ..units import format_bytes, parse_bytes
from .collected import CollectedResults
from .ledger import Ledger
from .locate import Locator, make_locator
from .plan import JoinPlan, KeyComparison, On, check_how, master_columns, stream_keys

WORK_BYTES = 128  # of working arrays for each stream row in hand
LEAST_SLICE = 64
LEAST_OUTPUT = 16 * 1024
PAGE_SLACK = 3 * 4096  # alignment of a disk buffer
MANY = 4096  # results that are worth a record batch of their own


# Gives results while it runs and returns the stream rows (references, keys) that it left for others.
Remaining = Generator[pa.RecordBatch, None, tuple[np.ndarray, np.ndarray]]


class Operator(ABC):
    """A semi-stream join inside a memory budget.

    `process` takes a batch and gives results as they come, holding rows back if that saves disk reads; `flush` gives
    the rest, after which nothing is held and the operator can go on. Both are generators: results are made while
    they are consumed. Not thread-safe.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()  # further arguments that the algorithm takes
    output_share: ClassVar[int] = 16  # one part of so many of the memory to spare is for results
    marker: str | None = None  # a column more of results, that says whether a row matched

    def __init__(
        self,
        master: Master,
        *,
        on: On | None,
        how: str = "inner",
        memory: int | str = "256MB",
        columns: Sequence[str] | None = None,
    ) -> None:
        check_how(how)
        self.master = master
        self.on = on
        self.how = how
        self.columns = columns
        self.stream_keys = stream_keys(on, master)
        self.brought = master_columns(master, columns, on=on) if how in ("inner", "left") else []
        budget = parse_bytes(memory)
        least = self.least_memory(master, self.brought)
        if budget < least:
            raise BudgetTooSmall(
                f"memory of {format_bytes(budget)} is too small for {self.name} on {master.path}: "
                f"give at least {format_bytes(least)} ({least} bytes)",
                least=least,
            )
        self.ledger = Ledger(budget)
        self.stats = JoinStats(memory_budget=budget)
        self.spare = (
            budget - least
        )  # what optional parts are scaled by, so that the least budget holds the least of each
        self.output_bytes, self.slice_rows = self.output_and_slice(master, self.spare)
        self.ledger.book("index", self._index_bytes(master))
        self.ledger.book("output", self.output_bytes)
        self.ledger.book("work", self.slice_rows * WORK_BYTES)
        self.pages = PageTable(Layout.of(master.stored_schema))
        self._open(master)
        self.plan: JoinPlan | None = None
        self.filter: KeyFilter | None = None
        self.collected: CollectedResults | None = None
        self._absent = 0
        self._row_bytes = 256.0

    @classmethod
    def output_and_slice(cls, master: Master, spare: int) -> tuple[int, int]:
        """Bytes for results, and stream rows that are in hand at a time, with so many bytes to spare."""
        output = cls._least_output(master) + min(spare // cls.output_share, 2 << 20)
        return output, LEAST_SLICE + min(spare // (32 * WORK_BYTES), 16_384 - LEAST_SLICE)

    def _open(self, master: Master) -> None:
        """Get ready to find segments by key."""
        self.key_node = self.pages.layout.column(master.cluster_column)
        self.reader = master.reader()
        self.locator: Locator = make_locator(master, self.ledger, self.spare)

    @classmethod
    def least_memory(cls, master: Master, brought: Sequence[str]) -> int:
        """The smallest budget that works."""
        fixed = cls._index_bytes(master) + cls._least_output(master) + LEAST_SLICE * WORK_BYTES
        return fixed + cls._least_index(master) + cls._least_own(master, brought)

    @staticmethod
    def _index_bytes(master: Master) -> int:
        """Memory of the index of segments."""
        return master.index_bytes

    @classmethod
    def _least_index(cls, master: Master) -> int:
        """What finding segments by key needs at least."""
        return Locator.least_memory(master)

    @classmethod
    @abstractmethod
    def _least_own(cls, master: Master, brought: Sequence[str]) -> int:
        """What the algorithm's own components need at least."""

    @staticmethod
    def _least_output(master: Master) -> int:
        """Room for the largest row of R beside a stream row."""
        return LEAST_OUTPUT + 2 * master.statistics.max_row_bytes

    @staticmethod
    def least_disk_buffer(master: Master) -> int:
        return master.statistics.max_segment_bytes + 2 * PAGE_SLACK

    @classmethod
    def default_disk_buffer(cls, master: Master, spare: int) -> int:
        """A disk buffer that needs no tuning, when the least of everything leaves so many bytes to spare."""
        return cls.least_disk_buffer(master)

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a batch of the stream; results that are ready."""
        plan = self._bind(batch.schema)
        self.stats.rows_in += batch.num_rows
        if not batch.num_rows:
            return
        inner = plan.normalise(batch, self.stream_keys)
        page = self.stream.add(inner)
        keys = [inner.column(position) for position in plan.key_columns]
        try:
            for start in range(0, batch.num_rows, self.slice_rows):
                size = min(self.slice_rows, batch.num_rows - start)
                codes, valid = plan.codes([column.slice(start, size) for column in keys], size)
                refs = np.arange(start, start + size, dtype=np.int64) + (page << 32)
                yield from self._take(refs, np.ascontiguousarray(codes), valid)
                self._note_memory()
            yield from self._collected()
        finally:
            self.stream.release(page)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Everything that is held back."""
        if self.plan is not None:
            yield from self._drain()
            yield from self._collected()
            self._note_memory()

    def _take(self, refs: np.ndarray, keys: np.ndarray, valid: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Take stream rows; those that are not `valid` have a NULL in their key and match nothing."""
        if not valid.all():
            self.stats.null_keys += int(len(refs) - valid.sum())
            yield from self._unmatched(refs[~valid])
            refs, keys = refs[valid], keys[valid]
        yield from self._arrive(refs, keys)

    @abstractmethod
    def _arrive(self, refs: np.ndarray, keys: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Take stream rows with keys that are not NULL. Their page goes away afterwards."""

    @abstractmethod
    def _drain(self) -> Iterator[pa.RecordBatch]:
        """Resolve all rows that are held back."""

    @abstractmethod
    def _start(self) -> None:
        """Make what depends on the stream's schema; called once, before the first rows."""

    def close(self) -> None:
        """Let go of files."""
        self.reader.close()
        self.locator.close()

    def output_schema(self, stream: pa.Schema) -> pa.Schema:
        """The schema of the results for a stream of this schema."""
        return JoinPlan.of(stream, self.master, on=self.on, how=self.how, columns=self.columns).output

    def _bind(self, schema: pa.Schema) -> JoinPlan:
        if self.plan is None:
            self.plan = JoinPlan.of(schema, self.master, on=self.on, how=self.how, columns=self.columns)
            self.stream = PageTable(Layout.of(self.plan.inner))
            self.comparison = KeyComparison(self.plan, self.master) if self.plan.hashed else None
            self._start()
            if CollectedResults.possible(self.plan, self.stream, self.pages):
                self.collected = CollectedResults(
                    self.plan, self.stream, self.pages, marker=self.marker, size=self.output_bytes
                )
        elif schema.names != self.plan.stream.names or schema.types != self.plan.stream.types:
            raise InputError(f"the stream changed its schema from {_line(self.plan.stream)} to {_line(schema)}")
        return self.plan

    def _note_memory(self) -> None:
        self.stats.memory_used = self.ledger.used
        self.stats.memory_peak = self.ledger.peak
        self.stats.index_reads = self.locator.reads
        self.stats.index_bytes_read = self.locator.bytes_read

    # -- keys that are not there -------------------------------------------------------------------------------

    def _without_absent(self, refs: np.ndarray, keys: np.ndarray) -> Remaining:
        """Resolve the rows whose keys the filter turns away; the others remain.

        The filter is loaded when it pays: after many absent keys have been looked for in vain, if the budget has
        room for it.
        """
        if self.filter is None:
            self._load_filter_if_worth_it()
        if self.filter is None or not len(keys):
            return refs, keys
        present = np.empty(len(keys), dtype=np.bool_)
        membership.test_keys(keys, self.filter.first_key, self.filter.begin, self.filter.blocks, present)
        if not present.all():
            self.stats.filtered += int(len(present) - present.sum())
            yield from self._unmatched(refs[~present])
            return refs[present], keys[present]
        return refs, keys

    def _load_filter_if_worth_it(self) -> None:
        size = self.master.statistics.filter_bytes
        worth = self._absent > 64 and self._absent * 20 > self.stats.rows_in
        if worth and 4 * size < self.ledger.budget and self._make_room(size + (size >> 4)):
            self.filter = self.master.load_filter()
            self.ledger.book("filter", self.filter.nbytes)

    def _make_room(self, size: int) -> bool:
        """Try to have that many bytes free in the ledger."""
        return self.ledger.free >= size

    # -- results -----------------------------------------------------------------------------------------------

    def _unmatched(self, left: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Results for rows that match nothing."""
        self.stats.unmatched += len(left)
        if self.how == "left":
            yield from self._output(left, np.full(len(left), -1, dtype=np.int64))
        elif self.how == "left_anti":
            yield from self._output(left, None)

    def _resolve(self, left: np.ndarray, first: np.ndarray, counts: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Results for stream rows, each with the `counts` master rows of its clustering key that begin at `first`."""
        if not len(left):
            return
        if int(counts.max()) <= 1:
            yield from self._resolve_single(left, first, counts > 0)
            return
        matched = np.zeros(len(left), dtype=np.bool_)
        if self.comparison is None:
            matched = counts > 0
        if self.comparison is not None or self.how in ("inner", "left"):
            for at, right in self._pairs(first, counts):
                rows = left[at]
                if self.comparison is not None:
                    equal = self.comparison.equal(self.stream, self.pages, rows, right)
                    matched[at[equal]] = True
                    rows, right = rows[equal], right[equal]
                if self.how in ("inner", "left"):
                    yield from self._output(rows, right)
        self.stats.matched += int(matched.sum())
        if self.how == "left_semi":
            yield from self._output(left[matched], None)
        yield from self._unmatched(left[~matched])

    def _resolve_single(self, left: np.ndarray, first: np.ndarray, there: np.ndarray) -> Iterator[pa.RecordBatch]:
        """The common case: each row has one master row at most."""
        if self.comparison is not None:
            there = there & self.comparison.equal(self.stream, self.pages, left, np.where(there, first, -1))
        matched = int(there.sum())
        self.stats.matched += matched
        self.stats.unmatched += len(left) - matched
        if self.how == "left":
            yield from self._output(left, first if matched == len(left) else np.where(there, first, -1))
        elif self.how == "inner":
            yield from self._output(left, first) if matched == len(left) else self._output(left[there], first[there])
        else:
            yield from self._output(left[there if self.how == "left_semi" else ~there], None)

    def _pairs(self, first: np.ndarray, counts: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All pairs, a bounded number at a time: position of the stream row, reference of the master row."""
        ends = np.cumsum(counts, dtype=np.int64)
        total = int(ends[-1])
        step = max(1, self.slice_rows // 2)
        for start in range(0, total, step):
            pair = np.arange(start, min(start + step, total), dtype=np.int64)
            at = np.searchsorted(ends, pair, side="right")
            yield at, first[at] + (pair - (ends[at] - counts[at]))

    def _output(self, left: np.ndarray, right: np.ndarray | None) -> Iterator[pa.RecordBatch]:
        """Results: stream rows beside master rows. A few are collected until there are many."""
        while self.collected is not None and 0 < len(left) < MANY:
            taken = self.collected.add(left, right)
            left, right = left[taken:], right[taken:] if right is not None else None
            if len(left):
                yield from self._collected()
                if not taken:
                    break
        if len(left):
            yield from self._collected()
            yield from self._at_once(left, right)

    def _collected(self) -> Iterator[pa.RecordBatch]:
        """The results that were collected."""
        if self.collected is not None and self.collected.rows:
            self.stats.rows_out += self.collected.rows
            yield self.collected.take()

    def _at_once(self, left: np.ndarray, right: np.ndarray | None) -> Iterator[pa.RecordBatch]:
        """Record batches of results, none larger than the output buffer."""
        plan = self.plan
        assert plan is not None
        own = range(len(plan.stream))
        start = 0
        while start < len(left):
            rows = max(1, int(self.output_bytes / (1.25 * self._row_bytes)))
            while True:
                end = min(start + rows, len(left))
                mine = self.stream.measure(left[start:end], own)
                theirs = (
                    self.pages.measure(right[start:end], plan.brought) if right is not None and plan.brought else None
                )
                size = mine.nbytes + (theirs.nbytes if theirs is not None else 0)
                if size <= self.output_bytes or rows == 1:
                    break
                rows = max(1, (end - start) // 2)
            self._row_bytes = max(16.0, 0.5 * self._row_bytes + 0.5 * size / (end - start))
            if size > self.output_bytes:
                self.ledger.book("output", size)
            columns = mine.columns() + (theirs.columns() if theirs is not None else [])
            batch = pa.RecordBatch.from_arrays(columns, schema=plan.output)
            self.stats.rows_out += batch.num_rows
            start = end
            yield batch
            self.ledger.book("output", self.output_bytes)


def _line(schema: pa.Schema) -> str:
    return ", ".join(f"{entry.name} {entry.type}" for entry in schema)
