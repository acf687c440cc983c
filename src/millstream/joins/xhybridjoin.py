"""X-HYBRIDJOIN (Naeem, Dobbie, Weber: X-HYBRIDJOIN for Near-Real-Time Data Warehousing, section 4).

HYBRIDJOIN whose disk buffer has two parts of the same size: the swappable part works as before, the non-swappable
part keeps the most popular partition of R in memory for good, so that rows for it never wait.

Legend: 2 v_P = `disk_buffer` for each part.

The paper keeps R sorted by access frequency, so the most popular partition is the first; that is layout "frequency".
For a master clustered by key the operator learns which partition is most popular: it counts the rows that each
partition has served and takes the best once H_S has been filled twice. The paper probes H_S with the non-swappable
part in each iteration; probing that part with each arriving row gives the same result sooner and costs no room in H_S.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..kernels.cache_table import CacheTable
from ..master.part_files import PAGE
from ..master.reader import DiskBuffer
from .base import Remaining
from .hybridjoin import HybridJoin, partition_segments


class XHybridJoin(HybridJoin):
    """Invariant: `table` has every key of the segments in the non-swappable part, once that is loaded."""

    name: ClassVar[str] = "xhybridjoin"
    most_read: ClassVar[int] = 16 << 20
    table: CacheTable | None = None

    def _make_memory(self) -> None:
        self.popularity: dict[int, int] = {}
        self.kept_part: DiskBuffer | None = None
        self.room: tuple[int, int] | None = self._kept_room()
        if self.room:
            self.ledger.book("non-swappable part", self.room[0] + CacheTable.bytes_for(self.room[1]))

    def _kept_room(self) -> tuple[int, int] | None:
        """Bytes of the non-swappable part's segments, and how many keys they may have; None if it has no room."""
        rows = int(self.disk_buffer / max(16.0, self.master.statistics.average_row_bytes)) + 64
        room = self.disk_buffer + 2 * PAGE
        return (room, rows) if 3 * (room + CacheTable.bytes_for(rows)) < self.ledger.free else None

    def _probe_memory(self, refs: np.ndarray, keys: np.ndarray) -> Remaining:
        if self.table is None and self.room:
            self._fill_kept_part()
        if self.table is None:
            return refs, keys
        first = np.empty(len(keys), dtype=np.int64)
        rows = np.empty(len(keys), dtype=np.int32)
        hits = self.table.probe(keys, first, rows)
        self.stats.cache_hits += hits
        if hits:
            hit = rows >= 0
            yield from self._resolve(refs[hit], first[hit], rows[hit])
            refs, keys = refs[~hit], keys[~hit]
        return refs, keys

    def _empty_memory(self) -> bool:
        self._let_go()
        return super()._empty_memory()

    def _let_go(self) -> None:
        """Give up the non-swappable part."""
        if self.kept_part is not None:
            self.kept_part.release()
        self.table = self.kept_part = self.room = None
        self.stats.cached_rows = 0
        self.ledger.book("non-swappable part", 0)

    def _served(self, segments: np.ndarray, rows: np.ndarray) -> None:
        if self.table is None and self.room:
            homes, which = np.unique(segments // partition_segments(self.master, self.disk_buffer), return_inverse=True)
            for home, served in zip(homes.tolist(), np.bincount(which, rows).tolist(), strict=True):
                self.popularity[home] = self.popularity.get(home, 0) + int(served)

    def _fill_kept_part(self) -> None:
        """Load the most popular partition, as soon as it is known which that is."""
        assert self.room
        size, rows = self.room
        if not len(self.reader.index):
            return
        if self.master.layout == "frequency":
            wanted = np.arange(min(len(self.reader.index), 2 * rows), dtype=np.int64)  # a segment has a key at least
        elif self.stats.rows_in > 2 * self.waiting.table.capacity and self.popularity:
            best = max(self.popularity, key=self.popularity.__getitem__)
            wanted = self._partition(best * partition_segments(self.master, self.disk_buffer))
        else:
            return
        part = DiskBuffer(self.reader, self.pages, size - 2 * PAGE)
        keys, first, counts = self._groups(*part.load(wanted[: part.fit(wanted)]))
        table = CacheTable(rows)
        take = min(len(keys), table.room)
        table.insert(keys[:take], first[:take], counts[:take].astype(np.int32), np.zeros(take, dtype=np.int32))
        self.kept_part, self.table = part, table
        self.buffer.reads += part.reads
        self.buffer.bytes_read += part.bytes_read
        self.stats.cached_rows = int(counts[:take].sum())
        self.popularity = {}
