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
from ..master.reader import DiskBuffer
from .base import Remaining
from .hybridjoin import HybridJoin


class XHybridJoin(HybridJoin):
    """Invariant: `table` has every key of the segments in the non-swappable part, once that is loaded."""

    name: ClassVar[str] = "xhybridjoin"
    most_read: ClassVar[int] = 16 << 20
    table: CacheTable | None = None

    def _make_memory(self) -> None:
        self.popularity: dict[int, int] = {}
        self.kept_part: DiskBuffer | None = None
        statistics = self.master.statistics
        rows = int(self.disk_buffer / max(16.0, statistics.average_row_bytes)) + 64
        room = self.disk_buffer + 8192 + CacheTable.bytes_for(rows)
        self.room = (rows, room) if room * 3 < self.ledger.free else None
        if self.room:
            self.ledger.book("non-swappable part", room)

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

    def _matched(
        self, segment: int, keys: np.ndarray, first: np.ndarray, counts: np.ndarray, waiting: np.ndarray
    ) -> None:
        if self.table is None and self.room:
            home = int(self._partition(segment)[0])
            self.popularity[home] = self.popularity.get(home, 0) + int(waiting.sum())

    def _fill_kept_part(self) -> None:
        """Load the most popular partition, as soon as it is known which that is."""
        if self.master.layout == "frequency":
            best = 0
        elif self.stats.rows_in > 2 * self.waiting.table.capacity and self.popularity:
            best = max(self.popularity, key=self.popularity.__getitem__)
        else:
            return
        if not len(self.reader.index):
            return
        assert self.room
        part = DiskBuffer(self.reader, self.pages, self.disk_buffer)
        wanted = self._partition(best)
        keys, first, counts = self._groups(*part.load(wanted[: part.fit(wanted)]))
        table = CacheTable(self.room[0])
        take = min(len(keys), table.room)
        table.insert(keys[:take], first[:take], counts[:take].astype(np.int32), np.zeros(take, dtype=np.int32))
        self.kept_part, self.table = part, table
        self.buffer.reads += part.reads
        self.buffer.bytes_read += part.bytes_read
        self.stats.cached_rows = int(counts[:take].sum())
        self.popularity = {}
