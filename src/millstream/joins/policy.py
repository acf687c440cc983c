"""Which master rows `auto` keeps in its cache, and how the memory is split between cache and waiting rows.

Frequency decides what is kept. A cached key counts its hits; a sketch counts how often keys that are not cached were
waited for, so a candidate comes with a history. When the cache is full its oldest pages are cleaned: keys with at most
`threshold` hits go, and candidates must have been seen more often than that. The threshold is where the coldest part
of the cache lies. All counts are halved from time to time, so old fame fades and a drifting hot set gets in.

Cost decides the split, after each pass that was started because the waiting rows had filled their share W:

    cost of a stream row = miss(C) * (c_miss + t_pass(n) / n)       C = memory - W,  n = rows resolved in a round
    miss(C) = 1 - (keys cached with C / keys of R) ** a             a fitted to the hit rate of the last window
    t_pass(n) = t_segment * segments * (1 - exp(-n / segments))     t_segment as measured in the last pass

With a flat stream a is 1, caching buys next to nothing and the waiting rows get the memory; with skew or a slow disk
the balance is elsewhere. Passes started by `flush` need only what they used, and leave the rest to the cache.
"""

from __future__ import annotations

import math

import numpy as np

from ..kernels.sketch import FrequencySketch
from ..master import Master
from .cache import PAGE_OVERHEAD, MasterCache
from .ledger import Ledger

COLD_SHARE = 0.25
FULL = 0.95  # of the cache's memory: from here on candidates must earn their place
ROOMY = 0.6  # a cache that was full once is choosy above this, so that cleaning makes room for frequent keys alone
AGE_AFTER = 32  # probes for each cached key between two halvings
MISS_SECONDS = 0.6e-6  # to let a row wait and join it later, reading apart
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88)
LEAST_WINDOW = 65_536  # probes before a hit rate means something


class CachePolicy:
    """Feeds and cleans one cache. `waiting_share` is W as a share of the memory for both."""

    def __init__(self, cache: MasterCache, master: Master, ledger: Ledger, *, spare: int, fits: bool) -> None:
        self.cache = cache
        self.fits = fits
        self.keys = max(1, master.statistics.distinct_keys)
        self.segments = max(1, master.statistics.segments)
        self.waiting_share = 0.1 if fits else 0.3
        self.threshold = 0
        size = 64 if fits else min(spare // 24, 4 * self.keys)
        self.sketch = FrequencySketch(size)
        ledger.book("frequency sketch", self.sketch.nbytes)
        self._cleaned = False
        self._probes = 0
        self._window_probes = 0
        self._window_hits = 0

    def note(self, probes: int, hits: int) -> None:
        """Count probes and hits of the cache."""
        self._probes += probes
        self._window_probes += probes
        self._window_hits += hits

    def offer(self, keys: np.ndarray, first: np.ndarray, rows: np.ndarray, waiting: np.ndarray, limit: int) -> None:
        """Candidates with their master rows in the disk buffer and the number of stream rows that waited for each."""
        seen = self.sketch.add(keys, waiting)
        fill = ROOMY if self._cleaned else FULL
        if self.cache.bytes > fill * limit or self.cache.table.room < len(keys):
            good = seen > self.threshold
            keys, first, rows, seen = keys[good], first[good], rows[good], seen[good]
        done = 0
        tries = 0
        while done < len(keys) and tries < 4:
            done += self.cache.admit(keys[done:], first[done:], rows[done:], seen[done:], limit)
            if done < len(keys):
                tries += 1
                self._clean(limit)
        if len(self.cache.order) > 8 and 4 * PAGE_OVERHEAD * len(self.cache.order) > self.cache.bytes:
            self.cache.repack(small=self.cache.bytes // 4)

    def _clean(self, limit: int) -> None:
        self._cleaned = True
        if self._probes > AGE_AFTER * max(1024, self.cache.table.used):
            self._probes = 0
            self.cache.table.halve()
            self.sketch.halve()
        self.threshold = self.cache.coldest(COLD_SHARE)
        self.cache.clean(max(1, min(self.cache.bytes // 8, limit // 32)), self.threshold)

    def end_pass(self, *, rows: int, size: int, share: int, segments: int, seconds: float, full: bool) -> None:
        """After a pass over `rows` waiting rows of `size` bytes: tidy up, and split the memory anew.

        The pass read `segments` in `seconds`. `share` is the memory for both sides; `full` says whether the pass came
        because the waiting rows had no room.
        """
        if self.cache.scattered:
            self.cache.repack(small=max(32 * 1024, self.cache.bytes // 128))
        if self.fits or not rows:
            return
        if not full:
            self.waiting_share = min(self.waiting_share, max(SHARES[0], 1.5 * size / share))
        elif self._window_probes >= LEAST_WINDOW and segments:
            self.waiting_share = self._best_share(size / rows, share, seconds / segments)
            self._window_probes = self._window_hits = 0

    def _best_share(self, row_bytes: float, share: int, segment_seconds: float) -> float:
        """The split with the lowest cost, at most a step away from the present one."""
        cached = max(1, self.cache.table.used)
        key_bytes = max(16.0, self.cache.bytes / cached)
        hit_rate = min(0.999, max(1e-6, self._window_hits / max(1, self._window_probes)))
        covered = min(0.999, cached / self.keys)
        exponent = min(1.0, math.log(hit_rate) / math.log(covered))

        def cost(waiting: float) -> float:
            keys = min(self.keys, self.cache.table.capacity, share * (1 - waiting) / key_bytes)
            n = max(1.0, 1.75 * waiting * share / row_bytes)
            touched = self.segments * (1 - math.exp(-n / self.segments))
            miss = 1 - (keys / self.keys) ** exponent
            return miss * (MISS_SECONDS + segment_seconds * touched / n)

        best = min(SHARES, key=cost)
        return min(max(best, self.waiting_share - 0.2), self.waiting_share + 0.2)
