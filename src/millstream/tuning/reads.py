"""What reading R costs: a partition from anywhere, over its bytes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from ..kernels.layout import Layout
from ..kernels.pages import PageTable
from ..master import Master
from ..master.reader import DiskBuffer
from .curves import Curve

LARGEST_READ = 16 << 20
LEAST_READS = 2  # of each size in a round
FAST = 0.25  # a disk that others use has slow seconds: what it can do is what it does a quarter of the time


@dataclass
class _Size:
    """Partitions of so many segments: a buffer for one, the seconds of each that was loaded and the bytes of all."""

    segments: int
    buffer: DiskBuffer
    took: list[float] = field(default_factory=list)
    bytes: float = 0.0


class RandomReads:
    """Loads partitions of all sizes (read, check, map), a few in each round."""

    def __init__(self, master: Master) -> None:
        self.reader = master.reader()
        self._rng = np.random.default_rng(0)
        pages = PageTable(Layout.of(master.stored_schema))
        index = self.reader.index
        average, largest = float(index.length.mean()), int(index.length.max())
        self._sizes: list[_Size] = []
        number = 1
        while not self._sizes or (number * average <= LARGEST_READ and 2 * number <= len(index)):
            room = int(1.25 * number * average) + 2 * largest + 8 * 4096  # a single segment may be huge
            self._sizes.append(_Size(number, DiskBuffer(self.reader, pages, room)))
            number *= 2
        for size in self._sizes:
            self._load(size)
            size.took, size.bytes = [], 0.0  # the first one opens files and touches memory

    def round(self, seconds: float) -> None:
        """Load some partitions of each size, for about so long."""
        for size in self._sizes:
            begun, number = time.perf_counter(), 0
            while number < LEAST_READS or time.perf_counter() - begun < seconds / len(self._sizes):
                self._load(size)
                number += 1

    def _load(self, size: _Size) -> None:
        index = self.reader.index
        low = int(self._rng.integers(0, max(1, len(index) - size.segments + 1)))
        wanted = np.arange(low, min(low + size.segments, len(index)), dtype=np.int64)
        file = index.places(wanted)[0]
        wanted = wanted[file == file[0]]
        wanted = wanted[: size.buffer.fit(wanted)]
        begun = time.perf_counter()
        size.buffer.load(wanted)
        size.took.append(time.perf_counter() - begun)
        size.bytes += float(index.length[wanted].sum())

    def curve(self) -> Curve:
        """Seconds of a load over its bytes."""
        points = {size.bytes / len(size.took): float(np.quantile(size.took, FAST)) for size in self._sizes}
        return Curve.of(points, grows=True)

    def close(self) -> None:
        self.reader.close()
