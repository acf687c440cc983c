"""Where the rows of a key are: by the sparse index in memory, or through the dense index on disk."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from ..kernels import segments as kernel
from ..kernels.layout import Layout
from ..kernels.pages import PageTable
from ..master import Master
from ..master.parts import DENSE_SCHEMA
from ..master.reader import DiskBuffer
from .ledger import Ledger


class Locator(ABC):
    """Finds the segment of each key, and which of its rows they are."""

    @abstractmethod
    def segments(self, keys: np.ndarray) -> np.ndarray:
        """The segment that holds each of some sorted distinct keys, -1 if the key is surely absent."""

    @abstractmethod
    def rows(
        self, pages: PageTable, keys: np.ndarray, which: np.ndarray, numbers: np.ndarray, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """First row (as reference) and number of rows of keys in loaded segments; 0 rows for an absent key.

        The keys are some of those of the last call of `segments`; `which[i]` is the position of key i's segment in
        `numbers` (its page) and `counts` (its rows).
        """

    @property
    def reads(self) -> int:
        """Reads of an index on disk so far."""
        return 0

    @property
    def bytes_read(self) -> int:
        """Bytes of an index on disk read so far."""
        return 0

    def close(self) -> None:  # noqa: B027 - a locator without files has nothing to do
        """Let go of files."""

    @staticmethod
    def least_memory(master: Master) -> int:
        return master.statistics.max_segment_bytes + 6 * 4096 if master.layout == "frequency" else 0


def make_locator(master: Master, ledger: Ledger, spare: int) -> Locator:
    return DenseLocator(master, ledger, spare) if master.layout == "frequency" else SparseLocator(master)


class SparseLocator(Locator):
    """R clustered by key: the segment by binary search over first keys, the row by binary search in the segment."""

    def __init__(self, master: Master) -> None:
        self.index = master.index
        node = Layout.of(master.stored_schema).column(master.cluster_column)
        self.buffer, self.width = node.first + 1, node.width

    def segments(self, keys: np.ndarray) -> np.ndarray:
        return self.index.segment_of(keys)

    def rows(
        self, pages: PageTable, keys: np.ndarray, which: np.ndarray, numbers: np.ndarray, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        refs = np.empty(len(keys), dtype=np.int64)
        found = np.empty(len(keys), dtype=np.int64)
        kernel.find_keys(pages.addresses, self.buffer, self.width, numbers, counts, keys, which, refs, found)
        return refs, found


class DenseLocator(Locator):
    """R in another order than that of its keys: an index on disk has part, segment and rows of every key."""

    def __init__(self, master: Master, ledger: Ledger, spare: int) -> None:
        self.reader = master.dense_reader()
        self.part_start = master.index.part_start
        self.part_of = {part.number: at for at, part in enumerate(master.manifest.parts)}
        self.pages = PageTable(Layout.of(DENSE_SCHEMA))
        size = master.statistics.max_segment_bytes + 3 * 4096 + min(spare // 64, 1 << 20)
        self.buffer = DiskBuffer(self.reader, self.pages, size)
        ledger.book("index buffer", self.buffer.nbytes)
        self._keys = self._row = self._rows = np.empty(0, dtype=np.int64)

    @property
    def reads(self) -> int:
        return self.buffer.reads

    @property
    def bytes_read(self) -> int:
        return self.buffer.bytes_read

    def segments(self, keys: np.ndarray) -> np.ndarray:
        segments = np.full(len(keys), -1, dtype=np.int64)
        self._row = np.zeros(len(keys), dtype=np.int64)
        self._rows = np.zeros(len(keys), dtype=np.int64)
        self._keys = keys
        if not len(self.reader.index):
            return segments
        home = self.reader.index.segment_of(keys)
        wanted = np.unique(home[home >= 0])
        while len(wanted):
            loaded = wanted[: self.buffer.fit(wanted)]
            wanted = wanted[len(loaded) :]
            numbers, counts = self.buffer.load(loaded)
            low, high = np.searchsorted(home, loaded[0]), np.searchsorted(home, loaded[-1], side="right")
            which = np.searchsorted(loaded, home[low:high])
            refs = np.empty(high - low, dtype=np.int64)
            found = np.empty(high - low, dtype=np.int64)
            kernel.find_keys(self.pages.addresses, 1, 8, numbers, counts, keys[low:high], which, refs, found)
            there = np.flatnonzero(found) + low
            at = refs[found > 0]
            part = _integers(self.pages, 1, at)
            starts = np.array([self.part_start[self.part_of[int(number)]] for number in np.unique(part)])
            segments[there] = starts[np.searchsorted(np.unique(part), part)] + _integers(self.pages, 2, at)
            self._row[there] = _integers(self.pages, 3, at)
            self._rows[there] = _integers(self.pages, 4, at)
        return segments

    def rows(
        self, pages: PageTable, keys: np.ndarray, which: np.ndarray, numbers: np.ndarray, counts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        at = np.searchsorted(self._keys, keys)
        return (numbers[which] << 32) | self._row[at], self._rows[at]

    def close(self) -> None:
        self.reader.close()


def _integers(pages: PageTable, column: int, refs: np.ndarray) -> np.ndarray:
    return pages.measure(refs, [column]).columns()[0].to_numpy().astype(np.int64)
