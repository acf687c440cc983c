"""Which master rows `auto` keeps in its cache, and how much memory the cache gets.

Frequency decides. A cached key counts its hits; a sketch counts how often keys that are not cached were waited for, so
a candidate comes with a history too, and a key that goes back to disk leaves its hits in the sketch. When the cache is
full its oldest pages are cleaned: keys with at most `threshold` hits go, and candidates must have been seen more often
than that. The threshold is where the coldest part of the cache lies. All counts are halved from time to time, so old
fame fades and a drifting hot set gets in.
"""

from __future__ import annotations

import numpy as np

from ..kernels.sketch import FrequencySketch
from ..master import Master
from .cache import MasterCache
from .ledger import Ledger

COLD_SHARE = 0.25
AGE_AFTER = 32  # probes for each cached key between two halvings
FLAT = 1.5  # a cache that is hit less than this times its share of R earns nothing from skew


class CachePolicy:
    """Feeds and cleans one cache."""

    def __init__(self, cache: MasterCache, master: Master, ledger: Ledger, *, fits: bool) -> None:
        self.cache = cache
        self.fits = fits
        self.keys = max(1, master.statistics.distinct_keys)
        self.waiting_share = 0.1 if fits else 0.25
        self.threshold = 0
        size = 64 if fits else min(ledger.budget // 24, 4 * self.keys)
        self.sketch = FrequencySketch(size)
        ledger.book("frequency sketch", self.sketch.nbytes)
        self._probes = 0
        self._window_probes = 0
        self._window_hits = 0
        self._flat = 0

    def note(self, probes: int, hits: int) -> None:
        """Count probes and hits of the cache."""
        self._probes += probes
        self._window_probes += probes
        self._window_hits += hits

    def offer(self, keys: np.ndarray, first: np.ndarray, rows: np.ndarray, waiting: np.ndarray, limit: int) -> None:
        """Candidates with their master rows in the disk buffer and the number of stream rows that waited for each."""
        seen = self.sketch.add(keys, waiting)
        if self._flat >= 2:
            some = keys % 64 == 0
            keys, first, rows, seen = keys[some], first[some], rows[some], seen[some]
            limit //= 16
        if self.cache.bytes > 0.95 * limit or self.cache.table.room < len(keys):
            good = seen > self.threshold
            keys, first, rows, seen = keys[good], first[good], rows[good], seen[good]
        done = 0
        tries = 0
        while done < len(keys) and tries < 4:
            done += self.cache.admit(keys[done:], first[done:], rows[done:], seen[done:], limit)
            if done < len(keys):
                tries += 1
                self._clean(limit)

    def _clean(self, limit: int) -> None:
        if self._probes > AGE_AFTER * max(1024, self.cache.table.used):
            self._probes = 0
            self.cache.table.halve()
            self.sketch.halve()
        self.threshold = self._coldest()
        self.cache.clean(max(1, min(self.cache.bytes // 8, limit // 16)), self.threshold)

    def _coldest(self) -> int:
        """The number of hits that the coldest part of the cache does not pass, from a sample."""
        table = self.cache.table
        step = max(1, table.capacity // 65_536)
        used = table.rows[::step] >= 0
        hits = table.hits[::step][used]
        return int(np.quantile(hits, COLD_SHARE, method="lower")) if len(hits) else 0

    def end_window(self) -> None:
        """After a pass: tidy up, and see whether the cache earns its memory."""
        if len(self.cache.order) > 256:
            self.cache.repack(small=max(32 * 1024, self.cache.bytes // 128))
        if self.fits or self._window_probes < 4 * 16_384:
            return
        covered = self.cache.table.used / self.keys
        earned = self._window_hits / self._window_probes
        flat = covered < 0.5 and earned < FLAT * covered + 0.01 and self.cache.table.used > 1024
        self._flat = min(4, self._flat + 1) if flat else max(0, self._flat - 1)
        self.waiting_share = 0.85 if self._flat >= 2 else 0.25
        self._window_probes = self._window_hits = 0
