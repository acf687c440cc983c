"""A stream over the keys of any master, to calibrate with: real keys from all over R, flat or skewed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ..kernels.layout import Layout
from ..kernels.pages import PageTable
from ..master import Master
from ..master.reader import DiskBuffer
from ..workloads import Zipf

SEGMENTS = 4096
KEYS_OF_SEGMENT = 64
BATCH_ROWS = 16_384
STREAM_ROW_BYTES = 20  # of a stream tuple in the papers


def stream_schema(master: Master, row_bytes: int = STREAM_ROW_BYTES) -> pa.Schema:
    """A stream tuple of the key and a payload, of about `row_bytes` bytes."""
    fields = [master.schema.field(name) for name in master.key]
    rest = row_bytes - sum(_width(field.type) for field in fields)
    payload = [("payload 8", pa.int64(), 8), ("payload 4", pa.int32(), 4)]
    for name, kind, width in payload:
        if rest >= width:
            fields.append(pa.field(name, kind))
            rest -= width
    if rest > 0:
        fields.append(pa.field("payload", pa.binary(rest)))
    return pa.schema(fields)


def _width(type_: pa.DataType) -> int:
    try:
        return type_.bit_width // 8
    except ValueError:
        return 16


class SampleStream:
    """Batches of stream rows whose keys are in R. The same keys come in the same order each time."""

    def __init__(self, master: Master, row_bytes: int = STREAM_ROW_BYTES) -> None:
        self.schema = stream_schema(master, row_bytes)
        self._rng = np.random.default_rng(2008)
        self._keys = pa.Table.from_batches(list(_some_keys(master, self._rng))).combine_chunks()
        order = self._rng.permutation(self._keys.num_rows)
        self._keys = self._keys.take(pa.array(order))
        self._columns = len(master.key)
        self._payload = [_zeros(field.type) for field in self.schema][self._columns :]

    @property
    def keys(self) -> int:
        return self._keys.num_rows

    def batches(self, skew: float, *, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Batches without end, of at most `BATCH_ROWS` rows."""
        zipf = Zipf(self.keys, skew)
        made = [self._batch(zipf.sample(self._rng, rows) - 1) for _ in range(64)]
        while True:
            yield from made

    def _batch(self, at: np.ndarray) -> pa.RecordBatch:
        keys = self._keys.take(pa.array(at)).combine_chunks()
        columns = [keys.column(i).combine_chunks() for i in range(self._columns)]
        columns = [column.chunk(0) if isinstance(column, pa.ChunkedArray) else column for column in columns]
        payload = [column[: len(at)] for column in self._payload]
        return pa.RecordBatch.from_arrays([*columns, *payload], schema=self.schema)


def _zeros(type_: pa.DataType) -> pa.Array:
    data = pa.py_buffer(np.zeros(BATCH_ROWS * type_.bit_width // 8, dtype=np.uint8))
    return pa.Array.from_buffers(type_, BATCH_ROWS, [None, data])


def _some_keys(master: Master, rng: np.random.Generator) -> Iterator[pa.RecordBatch]:
    """Some keys of segments from all over R."""
    reader = master.reader()
    pages = PageTable(Layout.of(master.stored_schema))
    buffer = DiskBuffer(reader, pages, master.statistics.max_segment_bytes + 6 * 4096)
    columns = [master.stored_schema.get_field_index(name) for name in master.key]
    schema = pa.schema([master.stored_schema.field(i) for i in columns])
    count = len(reader.index)
    wanted = np.sort(rng.choice(count, min(count, SEGMENTS), replace=False))
    for segment in wanted.tolist():
        numbers, rows = buffer.load(np.array([segment], dtype=np.int64))
        most = max(KEYS_OF_SEGMENT, 2 * 16_384 // max(1, len(wanted)))
        at = np.sort(rng.choice(int(rows[0]), min(int(rows[0]), most), replace=False))
        found = pages.measure(at.astype(np.int64) + (int(numbers[0]) << 32), columns).columns()
        yield pa.RecordBatch.from_arrays(found, schema=schema)
    reader.close()
