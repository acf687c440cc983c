"""The cyclic scan of unprepared Parquet: row group after row group, decoded to Arrow by the thread that reads ahead.

The key columns come first. Where rows of a row group match, its other columns follow; when most row groups have matches
they are decoded ahead as well. A row group that is too large for the buffer is decoded a stretch of rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import CorruptMaster, MillstreamError
from ..kernels.layout import Layout
from ..kernels.pages import PageTable, aligned
from .cycle import Cycle, Piece
from .scan import ParquetScan, column_of

LEAST_ROWS = 64  # of a stretch
STRETCH_BUFFER = 64 * 1024  # bytes of a column's file read at a time when a row group is decoded in stretches
LARGEST_PAGE = 2 << 20  # a dictionary and a data page of a column, as Parquet writers make them
KEPT_OPEN = 8


@dataclass
class _Unit:
    """A decoded stretch of a row group, all of it or the next part."""

    page: int
    rows: int
    key: pa.RecordBatch | None
    rest: pa.RecordBatch | None
    codes: np.ndarray
    valid: np.ndarray | None  # rows that have a key, None if all have
    last: bool
    nbytes: int


class ParquetCycle(Cycle):
    """Over the row groups of a scan: `key` and `rest` are the columns to decode, `size` bytes at a time."""

    def __init__(
        self, scan: ParquetScan, pages: PageTable, *, key: Sequence[str], rest: Sequence[str], size: int
    ) -> None:
        super().__init__(scan.pages)
        self.scan = scan
        self.table = pages
        self.key = [name for name in scan.schema.names if name in key]
        self.rest = [name for name in scan.schema.names if name in rest and name not in key]
        self.size = size
        self.row_bytes = decoded_row_bytes(scan, [*self.key, *self.rest])
        self.largest = 0  # bytes of the largest stretch so far
        self._numbers = [pages.reserve(None), pages.reserve(None)]
        self._turn = 0
        self._present: _Unit | None = None
        self._ahead: Future[_Unit] | None = None
        self._open: dict[tuple[int, int], pq.ParquetFile] = {}
        self._stretches: Iterator[pa.RecordBatch] | None = None
        self._done = 0
        self._read_at = self.low
        self._wanted = 1.0  # share of row groups whose other columns were needed, lately

    @staticmethod
    def bytes_for(scan: ParquetScan, columns: Sequence[str], size: int) -> int:
        """Memory to decode these columns in two buffers of that size."""
        held = [min(scan.sizes[name].encoded, LARGEST_PAGE) for name in columns if name in scan.sizes]
        largest = max((scan.sizes[name].stored for name in columns if name in scan.sizes), default=0)
        group = int(scan.page_rows.max(initial=0)) * decoded_row_bytes(scan, columns)
        whole = min(largest, size) + 2 * max(held, default=0) if group < 2 * size else 0
        stretched = sum(held) + len(columns) * STRETCH_BUFFER if 2 * group > size else 0
        return 2 * size + max(whole, stretched)

    @staticmethod
    def least_buffer(scan: ParquetScan, columns: Sequence[str]) -> int:
        return int(LEAST_ROWS * decoded_row_bytes(scan, columns)) + 4096

    def next(self, limit: int, needed: int) -> Piece:
        ahead = self._ahead if self._ahead is not None else self.thread.submit(self._read)
        self._ahead = None
        unit = ahead.result()
        if needed > 1 or not unit.last:
            self._ahead = self.thread.submit(self._read)
        self.largest = max(self.largest, unit.nbytes)
        number = self._numbers[self._turn]
        self._turn = 1 - self._turn
        if unit.key is not None:
            self.table.fill(number, unit.key, self._positions(self.key))
        if unit.rest is not None:
            self.table.fill(number, unit.rest, self._positions(self.rest))
        self._present = unit
        if unit.last:
            self._wanted *= 0.9
            self._advance(1)
        base = number << 32

        def refs(rows: np.ndarray) -> np.ndarray:
            return base + (rows if unit.valid is None else unit.valid[rows])

        def complete() -> None:
            if self.rest and unit.rest is None:
                unit.rest = self.thread.submit(self._columns_of, unit.page, self.rest).result()
                self.table.fill(number, unit.rest, self._positions(self.rest))
                self.largest = max(self.largest, unit.nbytes + unit.rest.nbytes)
            if unit.last:
                self._wanted += 0.1

        return Piece(int(unit.last), unit.rows, unit.codes, refs, complete)

    def _positions(self, names: Sequence[str]) -> list[int]:
        return [self.table.layout.schema.get_field_index(name) for name in names]

    # -- in the thread that reads ahead ------------------------------------------------------------------------

    def _read(self) -> _Unit:
        page = self._read_at
        rows = int(self.scan.page_rows[page])
        whole = self._stretches is None and rows * self.row_bytes <= self.size
        try:
            if whole:
                key = self._columns_of(page, self.key) if self.key else None
                rest = self._columns_of(page, self.rest) if self.rest and (self._wanted > 0.5 or not self.key) else None
                unit = self._unit(page, key, rest, last=True)
            else:
                unit = self._stretch(page, rows)
        except MillstreamError:
            raise
        except (pa.ArrowException, OSError) as error:
            file = self.scan.files[int(self.scan.page_file[page])].path
            raise CorruptMaster(f"row group {self.scan.page_group[page]} of {file} cannot be read: {error}") from error
        if unit.last:
            self._read_at = page + 1 if page + 1 < self.high else self.low
        return unit

    def _stretch(self, page: int, rows: int) -> _Unit:
        """The next rows of a row group that does not fit."""
        if self._stretches is None:
            names = [name for name in [*self.key, *self.rest] if name not in self._folder_values(page)]
            step = max(LEAST_ROWS, min(rows, int(self.size / max(1.0, self.row_bytes))))
            self._stretches = self._file(page, STRETCH_BUFFER).iter_batches(
                batch_size=step, row_groups=[int(self.scan.page_group[page])], columns=names, use_threads=False
            )
            self._done = 0
        batch = next(self._stretches)
        self.reads += 1
        self._done += batch.num_rows
        last = self._done == rows
        key, rest = (self._conformed(page, batch, names) if names else None for names in (self.key, self.rest))
        if last:
            self._stretches = None
            self.bytes_read += self._stored(page, self._file(page, STRETCH_BUFFER), [*self.key, *self.rest])
        return self._unit(page, key, rest, last=last)

    def _unit(self, page: int, key: pa.RecordBatch | None, rest: pa.RecordBatch | None, *, last: bool) -> _Unit:
        codes, valid = np.empty(0, dtype=np.int64), None
        if key is not None and self.scan.key:
            codes, there = self.scan.codec.codes([key.column(name) for name in self.scan.key])
            if not there.all():
                valid = np.flatnonzero(there)
                codes = codes[valid]
            codes = np.ascontiguousarray(codes)
        rows = next((part.num_rows for part in (key, rest) if part is not None), int(self.scan.page_rows[page]))
        nbytes = sum(part.nbytes for part in (key, rest) if part is not None)
        if rows and (rest is not None or not self.rest):
            self.row_bytes = max(0.9 * self.row_bytes, nbytes / rows)
        return _Unit(page, rows, key, rest, codes, valid, last, nbytes + codes.nbytes)

    def _columns_of(self, page: int, names: Sequence[str]) -> pa.RecordBatch:
        """Some columns of a whole row group."""
        stored = [name for name in names if name not in self._folder_values(page)]
        file = self._file(page, 0)
        table = file.read_row_group(int(self.scan.page_group[page]), columns=stored, use_threads=False)
        self.reads += 1
        self.bytes_read += self._stored(page, file, stored)
        if table.num_columns:
            (batch,) = table.combine_chunks().to_batches(max_chunksize=None)
        else:
            batch = pa.RecordBatch.from_arrays([pa.nulls(int(self.scan.page_rows[page]))], names=[""])
        return self._conformed(page, batch, names)

    def _conformed(self, page: int, batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Columns in the types of the scan, those that stand in folder names made, all starting at row 0."""
        columns = []
        values = self._folder_values(page)
        for name in names:
            entry = self.scan.schema.field(name)
            if name in values:
                columns.append(pa.repeat(pa.scalar(values[name], entry.type), batch.num_rows))
            else:
                column = batch.column(name)
                columns.append(column if column.type == entry.type else column.cast(entry.type))
        schema = pa.schema([self.scan.schema.field(name) for name in names])
        return aligned(pa.RecordBatch.from_arrays(columns, schema=schema))

    def _folder_values(self, page: int) -> dict[str, object]:
        return self.scan.files[int(self.scan.page_file[page])].folder_values

    def _stored(self, page: int, file: pq.ParquetFile, names: Sequence[str]) -> int:
        """How many bytes these columns take in the file."""
        group = file.metadata.row_group(int(self.scan.page_group[page]))
        columns = (group.column(i) for i in range(group.num_columns))
        return sum(one.total_compressed_size for one in columns if column_of(one.path_in_schema, names) is not None)

    def _file(self, page: int, buffer_size: int) -> pq.ParquetFile:
        wanted = (int(self.scan.page_file[page]), buffer_size)
        if wanted not in self._open:
            while len(self._open) >= KEPT_OPEN:
                self._open.pop(next(iter(self._open))).close(force=True)
            self._open[wanted] = self.scan.files[wanted[0]].open(buffer_size=buffer_size)
        return self._open[wanted]

    def restrict(self, share: int, shares: int) -> None:
        super().restrict(share, shares)
        self._read_at = self.low

    def _forget(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
            self._ahead.exception() if not self._ahead.cancelled() else None
            self._ahead = None
        self._stretches = None
        self._present = None
        self._read_at = self.position

    def close(self) -> None:
        super().close()
        for file in self._open.values():
            file.close(force=True)
        self._open = {}


def decoded_row_bytes(scan: ParquetScan, columns: Sequence[str]) -> float:
    """About how many bytes a decoded row takes, before any is seen."""
    layout = Layout.of(scan.schema)
    total = 8.0
    most = max(1, int(scan.page_rows.max(initial=1)))
    for name in columns:
        node = layout.column(name)
        encoded = scan.sizes[name].encoded / most if name in scan.sizes else 8.0
        total += node.width + 0.125 if node.kind == "fixed" else max(8.0, encoded) + 1
    return total
