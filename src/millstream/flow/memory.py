"""What activities remember from batch to batch: numbers of keys, keys that were there, last contents of rows.

Keys are 128 bits of hash (`high`, `low`) of the real key. Each memory is one durable log in a directory, with the whole
of it as a table in the memory of the process that runs the flow. Answers are the same when a batch, or a task, is
repeated, because an answer is durable before it is given.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from ..kernels.key_table import KeyTable
from .rowlog import RowLog

NEW, CHANGED, SAME = range(3)


class Numbers:
    """Surrogate keys: 1, 2, 3, ... in the order in which keys were first asked for, the same for ever."""

    def __init__(self, path: Path) -> None:
        self._log = RowLog(path, columns=2)
        self._table = KeyTable()
        known = self._log.read()
        self._table.add(known[:, 0].copy(), known[:, 1].copy())
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._table)

    def assign(self, high: np.ndarray, low: np.ndarray) -> np.ndarray:
        """The number of each key; new keys get the next ones."""
        with self._lock:
            before = len(self._table)
            entries = self._table.find(high, low)
            missing = entries < 0
            if missing.any():
                entries[missing] = self._table.add(high[missing], low[missing])
                added = slice(before, len(self._table))
                self._log.append(np.column_stack([self._table.high[added], self._table.low[added]]))
            return entries + 1

    def close(self) -> None:
        self._log.close()


class Claims:
    """Which row may stand for a key: the first that asked, for at least the last `horizon` keys.

    Two generations of at most `horizon` keys each: when the younger is full it becomes the older, and what was the
    older is forgotten, so nothing depends on a clock.
    """

    def __init__(self, folder: Path, *, horizon: int) -> None:
        self.folder, self.horizon = folder, horizon
        folder.mkdir(parents=True, exist_ok=True)
        numbers = sorted(int(path.stem) for path in folder.glob("*.log"))[-2:] or [0]
        self._generations = [_Owners(folder / f"{number}.log", number) for number in numbers]
        self._lock = threading.Lock()

    def claim(self, high: np.ndarray, low: np.ndarray, owner: np.ndarray) -> np.ndarray:
        """Whether each row (`owner` is its identity) has its key to itself; keys of one call are all different."""
        with self._lock:
            granted = np.zeros(len(high), dtype=np.bool_)
            unknown = np.ones(len(high), dtype=np.bool_)
            for generation in self._generations:
                entries = generation.table.find(high, low)
                found = entries >= 0
                granted[found] = generation.owner(entries[found]) == owner[found]
                unknown &= ~found
            if unknown.any():
                self._youngest().add(high[unknown], low[unknown], owner[unknown])
                granted |= unknown
            return granted

    def _youngest(self) -> _Owners:
        if len(self._generations[-1].table) >= self.horizon:
            number = self._generations[-1].number + 1
            self._generations.append(_Owners(self.folder / f"{number}.log", number))
            while len(self._generations) > 2:
                self._generations.pop(0).forget()
        return self._generations[-1]

    def close(self) -> None:
        for generation in self._generations:
            generation.log.close()


class _Owners:
    """One generation of claims."""

    def __init__(self, path: Path, number: int) -> None:
        self.number = number
        self.log = RowLog(path, columns=3)
        self.table = KeyTable()
        self._owners = np.empty(1024, dtype=np.int64)
        known = self.log.read()
        self._note(self.table.add(known[:, 0].copy(), known[:, 1].copy()), known[:, 2])

    def owner(self, entries: np.ndarray) -> np.ndarray:
        return self._owners[entries]

    def add(self, high: np.ndarray, low: np.ndarray, owner: np.ndarray) -> None:
        self.log.append(np.column_stack([high, low, owner]))
        self._note(self.table.add(high, low), owner)

    def _note(self, entries: np.ndarray, owner: np.ndarray) -> None:
        self._owners = _grown(self._owners, len(self.table))
        self._owners[entries] = owner

    def forget(self) -> None:
        self.log.close()
        self.log.path.unlink(missing_ok=True)


class Contents:
    """The last content (a hash of it) of each key, and the one before the present batch, so that it can be repeated."""

    def __init__(self, path: Path) -> None:
        self._log = RowLog(path, columns=4)
        self._table = KeyTable()
        self._now = np.empty(1024, dtype=np.int64)
        self._before = np.empty(1024, dtype=np.int64)
        self._batch = np.empty(1024, dtype=np.int64)  # in which `_now` was noted
        self._first = np.empty(1024, dtype=np.int64)  # in which the key was first seen
        self._lock = threading.Lock()
        known = self._log.read()
        for batch in np.unique(known[:, 3]):
            rows = known[known[:, 3] == batch]
            self._note(self._entries(rows[:, 0].copy(), rows[:, 1].copy(), int(batch)), rows[:, 2], int(batch))
        if len(known) > 4 * len(self._table) + 1024:
            self._compact()

    def compare(
        self, batch: int, high: np.ndarray, low: np.ndarray, *, first: np.ndarray, last: np.ndarray
    ) -> np.ndarray:
        """NEW, CHANGED or SAME for the `first` content of each key in a batch; its `last` one is then remembered.

        Keys of one call are all different, and no other call of the batch has them.
        """
        with self._lock:
            entries = self._entries(high, low, batch)
            repeated = self._batch[entries] == batch
            known = np.where(repeated, self._before[entries], self._now[entries])
            state = np.where(known == first, SAME, CHANGED)
            state[self._first[entries] == batch] = NEW
            noted = ~repeated & ((state != SAME) | (first != last)) | (repeated & (self._now[entries] != last))
            if noted.any():
                rows = np.column_stack([high[noted], low[noted], last[noted], np.full(int(noted.sum()), batch)])
                self._log.append(rows)
                self._note(entries[noted], last[noted], batch)
            return state

    def _entries(self, high: np.ndarray, low: np.ndarray, batch: int) -> np.ndarray:
        before = len(self._table)
        entries = self._table.add(high, low)
        for name in ("_now", "_before", "_batch", "_first"):
            setattr(self, name, _grown(getattr(self, name), len(self._table)))
        new = slice(before, len(self._table))
        self._now[new], self._before[new], self._batch[new], self._first[new] = 0, 0, -1, batch
        return entries

    def _note(self, entries: np.ndarray, content: np.ndarray, batch: int) -> None:
        later = self._batch[entries] != batch
        self._before[entries[later]] = self._now[entries[later]]
        self._now[entries] = content
        self._batch[entries] = batch

    def _compact(self) -> None:
        """Rewrite the log with the present and the previous content of each key only."""
        used = len(self._table)
        high, low = self._table.high[:used], self._table.low[:used]
        now, before, batch, first = (a[:used] for a in (self._now, self._before, self._batch, self._first))
        older = first < batch
        old = np.column_stack([high, low, before, np.minimum(first, batch - 1)])[older]
        self._log.replace(np.concatenate([old, np.column_stack([high, low, now, batch])]))

    def close(self) -> None:
        self._log.close()


def _grown(array: np.ndarray, size: int) -> np.ndarray:
    if size <= len(array):
        return array
    grown = np.empty(1 << (size - 1).bit_length(), dtype=array.dtype)
    grown[: len(array)] = array
    return grown
