"""R as the joins that scan see it: the segments of a master, or the row groups of Parquet that nobody prepared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..kernels.layout import Layout
from ..kernels.pages import PageTable
from ..master import Master, ParquetScan
from ..master.cycle import Cycle, SegmentCycle, buffers
from ..master.parquet_cycle import ParquetCycle, decoded_row_bytes
from ..master.part_files import HUGE, PAGE
from .base import Operator

DISK_BUFFER = 4 << 20  # more is no faster: what was read first has left the caches of the processor
READ_BYTES = 450_000  # what the page cache gives while a step of any size is prepared
DIRECT_BYTES = 120_000  # and a disk
LEAST_HUGE = 3_500_000  # with less to spare, a huge page of buffers takes more from the window than it is worth
PARQUET_BUFFER = 16 << 20


class Scanned(ABC):
    """Sizes are in bytes; `brought` are the columns that the join needs beside the key."""

    @staticmethod
    def of(relation: Master | ParquetScan) -> Scanned:
        return RowGroups(relation) if isinstance(relation, ParquetScan) else Segments(relation)

    @abstractmethod
    def least_buffer(self, brought: Sequence[str]) -> int:
        """The smallest disk buffer that works."""

    @abstractmethod
    def default_buffer(self, spare: int, *, fill: bool) -> int:
        """One that needs no tuning, when the least of everything leaves so many bytes to spare; if they are to `fill`
        huge pages, for a disk that reads to these, all buffers together do.
        """

    @abstractmethod
    def buffer_bytes(self, brought: Sequence[str], size: int) -> int:
        """Memory of all disk buffers, if each holds `size` bytes, at most."""

    @abstractmethod
    def row_bytes(self, columns: Sequence[str]) -> float:
        """About how much of a row some columns are."""

    @abstractmethod
    def pages_of(self, scan: Cycle, brought: Sequence[str], size: int) -> int:
        """b: how many pages of R a buffer of that size holds."""

    @abstractmethod
    def cycle(self, pages: PageTable, needed: Sequence[str], size: int, *, keyless: bool) -> Cycle:
        """The scan, of the key too unless it is `keyless`."""


class Segments(Scanned):
    """Of a master."""

    def __init__(self, master: Master) -> None:
        self.master = master

    def least_buffer(self, brought: Sequence[str]) -> int:
        return Operator.least_disk_buffer(self.master)

    def default_buffer(self, spare: int, *, fill: bool) -> int:
        """What reading in larger pieces saves is no more than what the rows lose.

        A turn of R takes R / s steps and the time to read R; the window has what the buffers leave of the memory M. The
        rate of (M - n s) / (R / s * step + R / disk) tuples a second is the highest at s = sqrt(c (c + M / n)) - c with
        c = step * disk.
        """
        direct = self.master.direct
        c = DIRECT_BYTES if direct else READ_BYTES
        number = buffers(direct=direct)
        best = (c * (c + spare / number)) ** 0.5 - c
        size = Operator.least_disk_buffer(self.master) + min(DISK_BUFFER, int(best))
        if not direct or not fill or spare < LEAST_HUGE:
            return size
        return max(1, round(number * size / HUGE)) * HUGE // number // PAGE * PAGE  # all of them fill huge pages

    def buffer_bytes(self, brought: Sequence[str], size: int) -> int:
        columns = Layout.of(self.master.stored_schema).columns
        least = sum(max(0.125, node.width if not node.children else 0.125) for node in columns)  # bytes of a row
        return SegmentCycle.bytes_for(size, least, direct=self.master.direct)

    def row_bytes(self, columns: Sequence[str]) -> float:
        return self.master.statistics.average_row_bytes * len(columns) / max(1, len(self.master.stored_schema))

    def pages_of(self, scan: Cycle, brought: Sequence[str], size: int) -> int:
        return scan.step

    def cycle(self, pages: PageTable, needed: Sequence[str], size: int, *, keyless: bool) -> Cycle:
        reader = self.master.scan_reader(null_keys=keyless)  # rows without a key may fulfil the condition
        return SegmentCycle(reader, pages, key=None if keyless else self.master.cluster_column, size=size)


class RowGroups(Scanned):
    """Of Parquet."""

    def __init__(self, scan: ParquetScan) -> None:
        self.parquet = scan

    def least_buffer(self, brought: Sequence[str]) -> int:
        return ParquetCycle.least_buffer(self.parquet, [*self.parquet.key, *brought])

    def default_buffer(self, spare: int, *, fill: bool) -> int:
        return min(PARQUET_BUFFER, spare // 6)

    def buffer_bytes(self, brought: Sequence[str], size: int) -> int:
        return ParquetCycle.bytes_for(self.parquet, list(dict.fromkeys([*self.parquet.key, *brought])), size)

    def row_bytes(self, columns: Sequence[str]) -> float:
        return decoded_row_bytes(self.parquet, columns)

    def pages_of(self, scan: Cycle, brought: Sequence[str], size: int) -> int:
        page = self.parquet.rows / max(1, scan.total) * self.row_bytes([*self.parquet.key, *brought])
        return max(1, min(max(1, scan.pages), int(size / max(1.0, page))))

    def cycle(self, pages: PageTable, needed: Sequence[str], size: int, *, keyless: bool) -> Cycle:
        return ParquetCycle(self.parquet, pages, key=[] if keyless else self.parquet.key, rest=needed, size=size)
