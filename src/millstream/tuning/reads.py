"""What reading R costs: a partition from anywhere, over its bytes."""

from __future__ import annotations

import time

import numpy as np

from ..kernels.layout import Layout
from ..kernels.pages import PageTable
from ..master import Master
from ..master.reader import DiskBuffer
from .curves import Curve

LARGEST_READ = 16 << 20


def random_reads(master: Master, seconds: float) -> Curve:
    """Seconds to load a partition from anywhere in R (read, check, map), over its bytes."""
    reader = master.reader()
    pages = PageTable(Layout.of(master.stored_schema))
    index = reader.index
    rng = np.random.default_rng(0)
    average = float(index.length.mean())
    points: dict[float, float] = {}
    number = 1
    while not points or (number * average <= LARGEST_READ and 2 * number <= len(index)):
        buffer = DiskBuffer(reader, pages, (number + 2) * int(index.length.max()) + 8 * 4096)
        size = 0.0
        took: list[float] = []
        buffer.load(np.arange(min(number, len(index)), dtype=np.int64))
        while sum(took) < seconds / 12 or len(took) < 8:
            low = int(rng.integers(0, max(1, len(index) - number + 1)))
            wanted = np.arange(low, min(low + number, len(index)), dtype=np.int64)
            file = index.places(wanted)[0]
            wanted = wanted[file == file[0]]
            begun = time.perf_counter()
            buffer.load(wanted)
            took.append(time.perf_counter() - begun)
            size += float(index.length[wanted].sum())
        points[size / len(took)] = float(np.mean(np.sort(took)[: max(4, len(took) * 9 // 10)]))
        number *= 2
    reader.close()
    return Curve.of(points, grows=True)
