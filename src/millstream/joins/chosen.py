"""Values on their way into the cache of SSBJ: their rows of R are copied as the scan comes by them, for one turn of R.

    chosen at page   3        7        11
    group            A        B        C       each ends one turn after it was chosen
    copies           [A] [B A] [C] [A B] ...   put together now and then

A value is marked by one of its rows in the window, which came when it was chosen and so meets all of R. Groups are
chosen many times a turn and end in the order in which they were chosen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..kernels.pages import PageTable
from ..master.cycle import Piece
from .cache import PAGE_OVERHEAD
from .ledger import Ledger

COMPONENT = "collected rows"
COPIES = 16  # before they are put together
ROW_BYTES = 17  # of a copied row beside its columns: key, reference and mark
MARKS = 255  # groups that there can be at a time

_NOTHING = np.empty(0, dtype=np.int64)
_NO_MARKS = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True)
class Group:
    """Values that were chosen together, in order, with their number of rows in the window then."""

    mark: int
    ends: int
    keys: np.ndarray
    counts: np.ndarray
    slots: np.ndarray


class ChosenValues:
    """At most `limit` bytes of marks and copies, booked in the ledger; `places` are those of the window's rows.

    Invariants: 1. `_marks[slot]` is the mark of the group that a row of the window stands for, or 0; 2. of each value
    of a group all rows that came by since it was chosen are copied.
    """

    def __init__(self, pages: PageTable, columns: Sequence[int], ledger: Ledger, *, places: int, limit: int) -> None:
        self.pages = pages
        self.columns = list(columns)
        self.ledger = ledger
        self.limit = limit
        self.places = places
        self.groups: deque[Group] = deque()
        self._marks = np.zeros(places, dtype=np.uint8)
        self._turn = 0
        self._here: list[tuple[np.ndarray, np.ndarray]] = []  # rows of the piece in hand, and their marks
        self._forget_copies()

    def _forget_copies(self) -> None:
        self._codes, self._refs, self._of = [_NOTHING], [_NOTHING], [_NO_MARKS]
        self._numbers: list[int] = []
        self._copied = 0
        self._size = self.places
        self.ledger.book(COMPONENT, self._size)

    @property
    def keys(self) -> np.ndarray:
        """The values of all groups."""
        return np.concatenate([_NOTHING, *(group.keys for group in self.groups)])

    def choose(self, keys: np.ndarray, counts: np.ndarray, slots: np.ndarray, *, ends: int) -> None:
        """Collect the rows of some values, marked by rows at `slots`, until the clock reads `ends`."""
        if len(self.groups) < MARKS:
            self._turn = self._turn % MARKS + 1
            self._marks[slots] = self._turn
            self.groups.append(Group(self._turn, ends, keys, counts, slots))

    def note(self, slots: np.ndarray, rows: np.ndarray) -> None:
        """Rows of the piece in hand that equal some rows of the window."""
        marks = self._marks[slots]
        there = np.flatnonzero(marks)
        if len(there):
            self._here.append((rows[there], marks[there]))

    def copy(self, piece: Piece) -> None:
        """Copy what was noted of a piece; if that takes too much memory, all groups are given up."""
        if not self._here:
            return
        rows, marks = (np.concatenate(parts) for parts in zip(*self._here, strict=True))
        self._here.clear()
        self._add(piece.codes[rows], piece.refs(rows), marks)
        if len(self._numbers) > COPIES:
            self._put_together()

    def _add(self, codes: np.ndarray, refs: np.ndarray, marks: np.ndarray) -> None:
        plan = self.pages.measure_page(refs, self.columns)
        size = plan.nbytes + PAGE_OVERHEAD + ROW_BYTES * len(refs)
        if size > self.ledger.free or self._size + size > self.limit:
            self.clear()
            return
        self.ledger.add(COMPONENT, size)
        self._size += size
        page = self.pages.keep(plan)
        self._numbers.append(page)
        self._codes.append(codes)
        self._refs.append(np.arange(len(refs), dtype=np.int64) + (page << 32))
        self._of.append(marks)
        self._copied += len(refs)

    def _put_together(self) -> None:
        """Make one copy of all that are still wanted."""
        numbers, size = self._numbers, self._size - self.places
        codes, refs, marks = self._all()
        self._codes, self._refs, self._of, self._numbers, self._copied = [_NOTHING], [_NOTHING], [_NO_MARKS], [], 0
        if len(codes):
            self._add(codes, refs, marks)
        for number in numbers:
            self.pages.release(number)
        if self._numbers:
            self._size -= size
            self.ledger.add(COMPONENT, -size)
        else:
            self._forget_copies()

    def _all(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.concatenate(self._codes), np.concatenate(self._refs), np.concatenate(self._of)

    def ended(self, clock: int) -> Iterator[tuple[Group, np.ndarray, np.ndarray]]:
        """Groups whose turn is over, with the keys of all their rows in order, and where these rows are copied."""
        while self.groups and self.groups[0].ends <= clock:
            group = self.groups.popleft()
            codes, refs, marks = self._all()
            mine = np.flatnonzero(marks == group.mark)
            mine = mine[np.argsort(codes[mine], kind="stable")]
            yield group, codes[mine], refs[mine]
            self._marks[group.slots] = 0
            others = marks != group.mark
            self._codes, self._refs, self._of = [codes[others]], [refs[others]], [marks[others]]
            if 2 * len(self._codes[0]) < self._copied:
                self._put_together()

    def clear(self) -> None:
        """Give up all groups and copies."""
        for group in self.groups:
            self._marks[group.slots] = 0
        self.groups.clear()
        self._here.clear()
        for number in self._numbers:
            self.pages.release(number)
        self._forget_copies()

    def close(self) -> None:
        """The same, and the marks."""
        self.clear()
        self.ledger.book(COMPONENT, 0)
