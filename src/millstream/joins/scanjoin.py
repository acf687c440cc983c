"""What the joins share that scan R instead of looking keys up: the window of the stream against the pages of R.

    stream --> packet --> window: H and queue --oldest packet--> leaves after one turn of R
                             ^ joined with
               R: [ page ][ page ][ page ] ... [ page ] and again from the first

Each iteration takes in w stream rows and joins the window with the next b pages. A row stays until the clock, which
counts pages, has gone once round R since it came: it has then met every page exactly once, whatever w and b did in the
meantime. Rows that match nothing are known when they leave.

Legend: w = `w`; b = `b`, as many pages as fit into `disk_buffer` bytes; N_R = `scan.pages`; H = `window.table`; Q =
`window.packets`; currPage = `scan.position`; startPage of a packet = the page at its `began`.

`process` never drains: rows stay until later rows push the scan on. `flush` completes the turn of all rows held. A join
that is `drained`, flushed after every batch, reads only when memory is full or at `flush`, so a batch that fits into
memory takes one turn of R.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from ..errors import InputError
from ..kernels.window_table import WindowTable
from ..master import Master, ParquetScan
from ..master.cycle import Piece, SegmentCycle
from ..master.parquet_cycle import ParquetCycle
from ..units import parse_bytes
from .base import Operator
from .conditions import Condition, as_condition
from .scanned import Scanned
from .theta import SORTED_BYTES, Matcher, gathered
from .window import PAGE_OVERHEAD, HeldResults, Packet, Window

LEAST_ROWS = 64
LEAST_BYTES = 32 * 1024
PACKET_BUDGET = 64 * PAGE_OVERHEAD  # memory for each packet of the window, at least
FOREVER = 1 << 62


class ScanJoin(Operator):
    """Invariants: 1. every row of the window has met the pages from its packet's beginning up to the clock, each once;
    2. a row is resolved when its packet ends; 3. pages of R are read in their order, round and round.
    """

    options: ClassVar[tuple[str, ...]] = ("disk_buffer", "window", "ordered", "condition", "drained")
    output_share: ClassVar[int] = 32  # every row more in the window saves as much of R
    borrows: ClassVar[bool] = False  # whether the window's table lies in what the disk buffers leave of huge pages

    def __init__(
        self,
        master: Master | ParquetScan,
        *,
        on: Any,
        disk_buffer: int | str | None = None,
        window: int | None = None,
        ordered: bool = False,
        condition: Condition | Callable[..., Any] | None = None,
        drained: bool = False,
        **arguments: Any,
    ) -> None:
        self.relation = master
        self.scanned = Scanned.of(master)
        self.condition = as_condition(condition) if condition is not None else None
        if on is None and self.condition is None:
            raise InputError("give on=, the key, or condition=, or both")
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise InputError(f"window must be a number of stream rows, at least 1, not {window!r}")
        self.ordered = ordered
        self.drained = drained
        self._window = window
        self._size = parse_bytes(disk_buffer, what="disk_buffer") if disk_buffer is not None else None
        self.clock = 0
        self._reserve = 0  # bytes that rows do not take
        self._restricted: tuple[int, int] | None = None
        super().__init__(cast(Master, master), on=on, **arguments)

    # -- memory ------------------------------------------------------------------------------------------------

    @staticmethod
    def _index_bytes(master: Master | ParquetScan) -> int:
        return master.scan_bytes

    @classmethod
    def _least_index(cls, master: Master) -> int:
        return 0

    @classmethod
    def _least_own(cls, master: Master | ParquetScan, brought: Sequence[str]) -> int:
        window = WindowTable.bytes_for(LEAST_ROWS) + LEAST_BYTES
        scanned = Scanned.of(master)
        return window + scanned.buffer_bytes(brought, scanned.least_buffer(brought))

    def _open(self, master: Master) -> None:
        """The disk buffers wait for the columns that a condition needs."""

    def _start(self) -> None:
        plan, master = self.plan, self.relation
        assert plan is not None
        keyless = self.on is None
        self.residual = self.condition
        mine: list[str] = []
        theirs: list[str] = []
        self.matcher: Matcher | None = None
        if self.condition is not None:
            schema = self.stream.layout.schema
            own = pa.schema([schema.field(name) for name in plan.stream.names])
            mine, theirs = self.condition.columns(own, master.schema)
            if keyless:
                self.matcher = Matcher(self.condition, own, master.schema)
                self.residual = self.matcher.rest
        self.condition_columns = mine, theirs
        needed = list(dict.fromkeys([*self.brought, *theirs]))
        size = self._size if self._size is not None else self.default_disk_buffer(master, self.spare)
        self.disk_buffer = max(self.scanned.least_buffer(needed), size)
        self.scan = self.scanned.cycle(self.pages, needed, self.disk_buffer, keyless=keyless)
        self.scan.loan = self._table_bytes() if self.borrows and self._window is None else 0
        self._book_buffers(needed)
        self._extra = 0
        self.held: HeldResults | None = None
        if self.ordered:
            self.held = HeldResults(self.pages, list(plan.brought), self.ledger)
        self._make_memory()
        self._pairs_found = np.empty((2, self._step), dtype=np.int64)
        capacity = self._capacity()
        room = self.scan.lend(WindowTable.bytes_for(capacity, wide=plan.hashed)) if self.scan.loan else None
        self.window = Window(self.stream, self.ledger, capacity=capacity, wide=plan.hashed, room=room)
        self._plan_iterations()

    def _book_buffers(self, needed: Sequence[str]) -> None:
        """Book the disk buffers as they are; those of Parquet as they will be."""
        planned = self.scanned.buffer_bytes(needed, self.disk_buffer)
        self.ledger.book("disk buffer", self.scan.nbytes if isinstance(self.scan, SegmentCycle) else planned)

    def _make_memory(self) -> None:
        """Set up what is kept beside the window; the plain algorithm has nothing."""

    @classmethod
    def default_disk_buffer(cls, master: Master | ParquetScan, spare: int) -> int:
        return Scanned.of(master).default_buffer(spare, fill=not cls.borrows)

    def _table_bytes(self) -> int:
        """Bytes that the window's table will have, about."""
        assert self.plan is not None
        buffers = self.scan.buffers * self.disk_buffer
        share = WindowTable.tuple_bytes(wide=self.plan.hashed) / self._tuple_bytes()
        return int(share * max(0, self.ledger.free - buffers - LEAST_BYTES))

    def _tuple_bytes(self) -> float:
        """Bytes that a row of the window takes, with all that is kept for it."""
        assert self.plan is not None
        row = _row_bytes(self.stream.layout.schema) + WindowTable.tuple_bytes(wide=self.plan.hashed)
        if self.matcher is not None and self.matcher.driver is not None:
            row += SORTED_BYTES
        if self.ordered:
            row += 2 * (16 + self._result_bytes())
        return row

    def _capacity(self) -> int:
        """Rows that the window is made for."""
        capacity = max(LEAST_ROWS, int((self.ledger.free - LEAST_BYTES) / self._tuple_bytes()))
        if self.matcher is not None and self.matcher.driver is not None:
            self.ledger.book("condition", min(self.ledger.free // 2, capacity * SORTED_BYTES))
        if self._window is not None and not self.drained:
            capacity = max(1, min(capacity, self._window * self._iterations(self._pages_of_buffer)))
        return capacity

    def _result_bytes(self) -> float:
        """About how many bytes of R the results of a stream row have."""
        return self.scanned.row_bytes(self.brought) * max(1.0, self.relation.statistics.rows_per_key)

    @property
    def _pages_of_buffer(self) -> int:
        """b, before it is made of whole reads."""
        return self.scanned.pages_of(self.scan, self.brought, self.disk_buffer)

    def _iterations(self, b: int) -> int:
        """k: iterations of a turn, of whole reads unless b is smaller than one."""
        if b < self.scan.step:
            return max(1, -(-self.scan.pages // b))
        return max(1, -(-self.scan.chunks // -(-b // self.scan.step)))

    def _plan_iterations(self) -> None:
        """Fix w and b: the window holds the rows of as many iterations as a turn has.

        In a small memory an iteration is longer than a read, so that what a packet takes beside its rows stays small.
        It is made of whole reads: w belongs to all the pages that it joins.
        """
        packets, read = max(1, self.ledger.budget // PACKET_BUDGET), self.scan.step
        b = max(self._pages_of_buffer, -(-self.scan.pages // packets) if self._window is None else 1)
        self.b = b if b < read else max(1, round(b * self.scan.chunks / max(1, self.scan.pages))) * read
        self.w = self._window or max(1, self.window.table.capacity // self._iterations(self.b))

    def restrict(self, share: int, shares: int) -> None:
        """Join with one of so many shares of R alone; nothing may be held."""
        if self.plan is None:
            self._restricted = share, shares
            return
        assert not len(self.window)
        self.scan.restrict(share, shares)
        self._plan_iterations()

    def _bind(self, schema: pa.Schema) -> Any:
        fresh = self.plan is None
        try:
            plan = super()._bind(schema)
        except BaseException:
            if fresh:
                self.plan = None  # nothing was taken: a flush has nothing to do
            raise
        if fresh and self._restricted is not None:
            self.restrict(*self._restricted)
        return plan

    # -- arrival -----------------------------------------------------------------------------------------------

    def _take(self, refs: np.ndarray, keys: np.ndarray, valid: np.ndarray) -> Iterator[pa.RecordBatch]:
        if not self.ordered:
            yield from super()._take(refs, keys, valid)
            return
        self.stats.null_keys += int(len(refs) - valid.sum())
        yield from self._enter(refs, keys, valid)

    def _arrive(self, refs: np.ndarray, keys: np.ndarray) -> Iterator[pa.RecordBatch]:
        if self.on is not None and self.relation.statistics.filter_bytes:
            refs, keys = yield from self._without_absent(refs, keys)
        yield from self._enter(refs, keys, np.ones(len(refs), dtype=np.bool_))

    def _enter(self, refs: np.ndarray, keys: np.ndarray, hashed: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Take rows into the window, w for each iteration."""
        window = self.window
        if not window.table.holds(keys) and not window.table.holds(keys[hashed]):
            yield from self._drain()
            window.widen(_row_bytes(self.stream.layout.schema))
            self._plan_iterations()
        while len(refs):
            there = window.packets[-1].rows if window.packets and window.packets[-1].began == self.clock else 0
            limit = FOREVER if self.drained else self.w - there
            taken = window.add(
                refs, keys, hashed, clock=self.clock, turn=self.scan.pages, limit=limit, reserve=self._reserve
            )
            refs, keys, hashed = refs[taken:], keys[taken:], hashed[taken:]
            if taken == limit or (len(refs) and window.packets and not self._grown()):
                yield from self._iterate(FOREVER)
            elif len(refs) and not window.packets and not self._give_up_memory():
                self.ledger.add("stream table", window.least(refs))  # says how much would be needed

    def _give_up_memory(self) -> bool:
        """Free what is kept beside the window, if there is anything."""
        return False

    def _make_room(self, size: int) -> bool:
        return self.ledger.free - size >= max(LEAST_BYTES, self.ledger.budget // 8)

    def _grown(self) -> bool:
        """Give the table more room, if rows turn out to be so small that it is full while memory is not."""
        table = self.window.table
        fixed = self.ordered or self.matcher is not None or self._window is not None
        if fixed or table.room or self.ledger.free < self.ledger.budget // 5:
            return False
        row = self.window.bytes / max(1, len(self.window)) + self.window.tuple_bytes
        more = int(0.5 * self.ledger.free / row)
        grown = more > table.capacity // 8 and self.window.resize(table.capacity + more)
        if grown:
            self._plan_iterations()
        return grown

    def _drain(self) -> Iterator[pa.RecordBatch]:
        while self.window.packets:
            yield from self._iterate(self.window.packets[-1].ends - self.clock)

    # -- an iteration ------------------------------------------------------------------------------------------

    def _iterate(self, needed: int) -> Iterator[pa.RecordBatch]:
        """Join the next b pages with the window; `needed` pages will be read from here on, at least."""
        self.stats.iterations += 1
        yield from self._pages(self.b, needed)

    def _pages(self, b: int, needed: int) -> Iterator[pa.RecordBatch]:
        """Join b pages with the window; packets that have met all of R leave in between."""
        yield from self._expire()
        packets, done = self.window.packets, 0
        while done < b and packets:
            limit = packets[0].ends - self.clock  # nobody is there who began within a chunk, unless b is smaller
            piece = self.scan.next(min(limit, b - done) if b < self.scan.step else limit, needed - done)
            self._book_pieces()
            yield from self._join(piece)
            self.clock += piece.pages
            done += piece.pages
            yield from self._expire()
        self.stats.disk_reads = self.scan.reads
        self.stats.bytes_read = self.scan.bytes_read
        self.stats.segments_read = self.scan.pages_read

    def _book_pieces(self) -> None:
        """Row groups that decode to more than was planned for take their bytes from the window's."""
        if isinstance(self.scan, ParquetCycle):
            extra = max(0, 2 * (self.scan.largest - self.disk_buffer))
            if extra > self._extra:
                self.ledger.add("disk buffer", extra - self._extra)
                self._extra = extra

    def _join(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Output the pairs of the window and a piece of R."""
        if self.matcher is not None:
            piece.complete()
            right = piece.refs(np.arange(piece.rows, dtype=np.int64))
            for numbers, at in self.matcher.pairs(self.window, self.pages, right, self._step):
                yield from self._matches(numbers % self.window.table.capacity, right[at])
            return
        at = np.array([0, -2], dtype=np.int64)
        slots, rows = self._pairs_found
        while True:
            found = self.window.table.match(piece.codes, at, slots, rows)
            if found:
                piece.complete()
                self._book_pieces()
                self._found(piece, slots[:found], rows[:found])
                yield from self._matches(slots[:found], piece.refs(rows[:found]))
            if at[0] == len(piece.codes):
                return

    @property
    def _step(self) -> int:
        """Pairs that are looked at together."""
        return max(1, self.slice_rows // 2)

    def _found(self, piece: Piece, slots: np.ndarray, rows: np.ndarray) -> None:
        """Pairs with equal clustering keys, while their rows are in memory: for those who keep some."""

    def _matches(self, slots: np.ndarray, right: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Check candidate pairs, note which stream rows have matched, and give the results or hold them back."""
        left = self.window.table.refs(slots)
        keep = self._checked(left, right)
        if keep is not None:
            slots, left, right = slots[keep], left[keep], right[keep]
        self.window.table.matched[slots] = True
        if self.how in ("inner", "left") and len(left):
            if self.held is not None:
                self.held.attach(self.window.numbers(slots), right)
            else:
                yield from self._output(left, right)

    def _checked(self, left: np.ndarray, right: np.ndarray) -> np.ndarray | None:
        """Which candidate pairs are results; None if all are."""
        keep = self.comparison.equal(self.stream, self.pages, left, right) if self.comparison is not None else None
        if self.residual is None:
            return keep
        if keep is None:
            keep = np.ones(len(left), dtype=np.bool_)
        at = np.flatnonzero(keep)
        if len(at):
            mine, theirs = self.condition_columns
            keep[at] = self.residual.holds(
                gathered(self.stream, left[at], mine), gathered(self.pages, right[at], theirs)
            )
        return keep

    # -- leaving -----------------------------------------------------------------------------------------------

    def _expire(self) -> Iterator[pa.RecordBatch]:
        """Resolve and drop the packets that have met all of R."""
        while self.window.packets and self.window.packets[0].ends <= self.clock:
            packet = self.window.packets[0]
            for first in range(packet.first, packet.stop, self.slice_rows):
                yield from self._leave(packet, first, min(packet.stop, first + self.slice_rows))
            self.window.drop()
            if self.held is not None:
                self.held.release(packet.stop)

    def _leave(self, packet: Packet, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Results of rows that leave, as far as they were not given yet."""
        table = self.window.table
        slots = table.slots(first, stop)
        matched, refs = table.matched[slots], table.refs(slots)
        known = int(matched.sum())
        self.stats.matched += known
        self._absent += len(slots) - known
        if self.held is not None and self.how in ("inner", "left"):
            self.stats.unmatched += len(slots) - known
            yield from self._in_order(first, stop, refs, matched)
        elif self.how == "left_semi":
            self.stats.unmatched += len(slots) - known
            yield from self._output(refs[matched], None)
        else:
            yield from self._unmatched(refs[~matched])

    def _in_order(self, first: int, stop: int, refs: np.ndarray, matched: np.ndarray) -> Iterator[pa.RecordBatch]:
        """The results of rows in the order of the stream, those that match nothing among them."""
        assert self.held is not None
        numbers, right = self.held.of(stop)
        here = numbers >= first
        numbers, right = numbers[here], right[here]
        if self.how == "left":
            alone = np.flatnonzero(~matched) + first
            numbers = np.concatenate([numbers, alone])
            right = np.concatenate([right, np.full(len(alone), -1, dtype=np.int64)])
        order = np.argsort(numbers, kind="stable")
        yield from self._output(refs[numbers[order] - first], right[order])

    # -- results -----------------------------------------------------------------------------------------------

    def _at_once(self, left: np.ndarray, right: np.ndarray | None) -> Iterator[pa.RecordBatch]:
        """With a `marker` one column more says whether a row matched."""
        if self.marker is None or right is None:
            yield from super()._at_once(left, right)
            return
        for matched in (True, False):
            some = right >= 0 if matched else right < 0
            for batch in super()._at_once(left[some], right[some]):
                yield batch.append_column(self.marker, pa.repeat(pa.scalar(matched), batch.num_rows))

    # -- end ---------------------------------------------------------------------------------------------------

    def _note_memory(self) -> None:
        self.stats.memory_used = self.ledger.used
        self.stats.memory_peak = self.ledger.peak

    def close(self) -> None:
        if self.plan is not None:
            self.scan.close()


def _row_bytes(schema: pa.Schema) -> float:
    """About how many bytes a row of the window takes, before any is seen."""
    total = 2.0
    for entry in schema:
        try:
            total += entry.type.bit_width / 8 + 0.125
        except ValueError:
            total += 24
    return total
