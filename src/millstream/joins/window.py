"""The sliding window over the stream: packets of rows in the order of their arrival, each staying for one turn of R.

    oldest packet                                   youngest packet
    [ began at page 7 ] [ began at page 8 ] ... [ began at page 6 ]        clock: pages of R read so far
      leaves next                                   just came

A packet is what came between two reads. It has met all of R when the clock stands `turn` pages after it began.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from ..errors import BudgetTooSmall
from ..kernels.pages import PageTable
from ..kernels.window_table import WindowTable
from ..units import format_bytes
from .ledger import Ledger

PAGE_OVERHEAD = 2048  # Python and numpy objects of a page


@dataclass
class Packet:
    """Rows number `first` to `stop` of the window; they have met all of R when the clock reads `ends`."""

    first: int
    stop: int
    began: int
    ends: int
    pages: list[int] = field(default_factory=list)
    size: int = 0

    @property
    def rows(self) -> int:
        return self.stop - self.first


class Window:
    """The rows that are being joined, with their hash table.

    Invariants: 1. packets hold the rows of the table, one after the other; 2. `ends` never falls from one packet to the
    next; 3. the ledger has the bytes of the table and of all pages, and always those of `room`, where the first table
    lies.
    """

    def __init__(
        self,
        stream: PageTable,
        ledger: Ledger,
        *,
        capacity: int,
        wide: bool,
        room: np.ndarray | None = None,
        component: str = "stream table",
    ) -> None:
        self.stream = stream
        self.ledger = ledger
        self.component = component
        self.columns = range(len(stream.layout.columns))
        self._room = room
        self.table = WindowTable(capacity, wide=wide, room=room)
        self.packets: deque[Packet] = deque()
        self.row_bytes = 64.0
        self.bytes = 0
        ledger.book(component, self.table.nbytes)

    def __len__(self) -> int:
        return self.table.tuples

    def add(
        self,
        refs: np.ndarray,
        keys: np.ndarray,
        hashed: np.ndarray,
        *,
        clock: int,
        turn: int,
        limit: int,
        reserve: int = 0,
    ) -> int:
        """Copy rows into the packet of this time, as many as fit and at most `limit`; how many.

        Of the memory `reserve` bytes stay free, if there are packets that make room by leaving.
        """
        rows = min(len(refs), self.table.room, limit)
        free = self.ledger.free - (reserve if self.packets else 0) - PAGE_OVERHEAD
        while rows > 0:
            rows = min(rows, max(1, int(free / self.row_bytes)))
            plan = self.stream.measure_page(refs[:rows], self.columns)
            self.row_bytes = max(8.0, plan.nbytes / rows)
            if plan.nbytes <= free:
                break
            rows //= 2
        if rows <= 0:
            return 0
        self.ledger.add(self.component, plan.nbytes)
        page = self.stream.keep(plan)
        size = plan.retained + PAGE_OVERHEAD
        self.ledger.add(self.component, size - plan.nbytes)
        self.bytes += size
        first = self.table.next
        self.table.insert(keys[:rows], page, hashed[:rows])
        if not self.packets or self.packets[-1].began != clock:
            self.packets.append(Packet(first, first, clock, clock + turn))
        packet = self.packets[-1]
        packet.stop += rows
        packet.pages.append(page)
        packet.size += size
        return rows

    def least(self, refs: np.ndarray) -> int:
        """Bytes that the first of some rows needs."""
        return self.stream.measure_page(refs[:1], self.columns).nbytes + PAGE_OVERHEAD

    def drop(self) -> None:
        """Let the oldest packet go."""
        packet = self.packets.popleft()
        self.table.expire(packet.stop)
        for page in packet.pages:
            self.stream.release(page)
        self.bytes -= packet.size
        self.ledger.add(self.component, -packet.size)

    def numbers(self, slots: np.ndarray) -> np.ndarray:
        """The numbers of the rows at some places of the table."""
        oldest = self.table.oldest
        return oldest + (slots - oldest) % self.table.capacity

    def resize(self, capacity: int) -> bool:
        """Give the table room for more or fewer rows; False if there is no memory to move them in."""
        capacity = max(capacity, self.table.tuples, 1)
        if capacity == self.table.capacity:
            return True
        old = self.table
        new = WindowTable.bytes_for(capacity, wide=old.wide)
        if new > self.ledger.free:
            return False
        self.ledger.add(self.component, new)
        self.table = old.resized(capacity)
        self.ledger.add(self.component, old.room_bytes - old.nbytes)
        return True

    def widen(self, row_bytes: float) -> None:
        """Have room for keys of 64 bits, and for fewer rows, of about so many bytes; none may be there."""
        assert not self.packets
        narrow, wide = (WindowTable.tuple_bytes(wide=wide) for wide in (False, True))
        before, rows = self.table.nbytes, self.table.capacity
        room = self._room if self.table.room_bytes else None
        self.table = WindowTable(0)  # the old one goes before the new one comes
        rows = min(int(rows * (row_bytes + narrow) / (row_bytes + wide)), (self.ledger.free + before - 1024) // wide)
        self.table = WindowTable(max(1, rows), room=room)
        self.ledger.add(self.component, self.table.nbytes - before)

    @property
    def tuple_bytes(self) -> int:
        """Memory of a row beside its own bytes."""
        return WindowTable.tuple_bytes(wide=self.table.wide)


@dataclass
class _Block:
    """Results held back: number of the stream row and copied master row of each."""

    numbers: np.ndarray
    refs: np.ndarray
    page: int
    size: int


class HeldResults:
    """Master rows attached to rows of the window until these leave, for output in the order of the stream."""

    def __init__(self, pages: PageTable, columns: list[int], ledger: Ledger, *, component: str = "results") -> None:
        self.pages = pages
        self.columns = columns
        self.ledger = ledger
        self.component = component
        self.blocks: list[_Block] = []
        ledger.book(component, 0)

    def attach(self, numbers: np.ndarray, right: np.ndarray) -> None:
        """Copy master rows for rows of the window."""
        plan = self.pages.measure_page(right, self.columns)
        size = plan.nbytes + PAGE_OVERHEAD + 16 * len(right)
        if size > self.ledger.free:
            least = self.ledger.used + size
            raise BudgetTooSmall(
                f"memory of {format_bytes(self.ledger.budget)} is too small to hold back results for ordered=True: "
                f"give at least {format_bytes(least)} ({least} bytes), or smaller batches between two flushes",
                least=least,
            )
        self.ledger.add(self.component, size)
        page = self.pages.keep(plan)
        kept = plan.retained + PAGE_OVERHEAD + 16 * len(right)
        self.ledger.add(self.component, kept - size)
        refs = np.arange(len(right), dtype=np.int64) + (page << 32)
        self.blocks.append(_Block(numbers, refs, page, kept))

    def of(self, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Results of the rows with numbers below `stop`: numbers and master rows."""
        numbers = [block.numbers[block.numbers < stop] for block in self.blocks]
        refs = [block.refs[block.numbers < stop] for block in self.blocks]
        nothing = np.empty(0, dtype=np.int64)
        return np.concatenate([nothing, *numbers]), np.concatenate([nothing, *refs])

    def release(self, stop: int) -> None:
        """Forget the results of rows with numbers below `stop`; a copy goes when all its rows have gone."""
        kept = []
        for block in self.blocks:
            stay = block.numbers >= stop
            if stay.all():
                kept.append(block)
            elif stay.any():
                kept.append(_Block(block.numbers[stay], block.refs[stay], block.page, block.size))
            else:
                self.pages.release(block.page)
                self.ledger.add(self.component, -block.size)
        self.blocks = kept
