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

SEGMENTS = 65_536  # that keys are taken from
NEIGHBOURS = 64  # of them, to be read together
KEYS = 2_000_000  # as many as a window may hold tuples: with fewer, each would be in it many times
ROWS = 3_000_000
BATCH_ROWS = 16_384
BATCH_RESULTS = 4 * BATCH_ROWS  # a batch is the least that a run can take: with many rows for a key it is smaller
LEAST_BATCH = 8
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
        self._most = max(LEAST_BATCH, int(BATCH_RESULTS / max(1.0, master.statistics.rows_per_key)))
        self._made: dict[float, pa.RecordBatch] = {}

    @property
    def keys(self) -> int:
        return self._keys.num_rows

    def batches(self, skew: float, *, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Batches without end, all of so many rows or, if their results would be too many, of fewer.

        They come again after `ROWS` rows, sooner if R has few keys.
        """
        rows = min(rows, self._most)
        if skew not in self._made:
            number = max(BATCH_ROWS, min(ROWS, 4 * self.keys))
            self._made[skew] = self._rows(Zipf(self.keys, skew).sample(self._rng, number) - 1)
        made = self._made[skew]
        while True:
            for first in range(0, made.num_rows - rows + 1, rows):
                yield made.slice(first, rows)

    def _rows(self, at: np.ndarray) -> pa.RecordBatch:
        keys = self._keys.take(pa.array(at)).combine_chunks().to_batches()[0]
        payload = [_zeros(field.type, len(at)) for field in list(self.schema)[self._columns :]]
        return pa.RecordBatch.from_arrays([*keys.columns, *payload], schema=self.schema)


def _zeros(type_: pa.DataType, rows: int) -> pa.Array:
    data = pa.py_buffer(np.zeros(rows * type_.bit_width // 8, dtype=np.uint8))
    return pa.Array.from_buffers(type_, rows, [None, data])


def _some_keys(master: Master, rng: np.random.Generator) -> Iterator[pa.RecordBatch]:
    """Some keys of segments from all over R."""
    reader = master.reader()
    pages = PageTable(Layout.of(master.stored_schema))
    buffer = DiskBuffer(reader, pages, (1 << 20) + master.statistics.max_segment_bytes + 6 * 4096)
    columns = [master.stored_schema.get_field_index(name) for name in master.key]
    schema = pa.schema([master.stored_schema.field(i) for i in columns])
    wanted = _spread(len(reader.index))
    share = min(1.0, KEYS / max(1, int(reader.index.rows[wanted].sum())))
    while len(wanted):
        held = buffer.fit(wanted)
        numbers, rows = buffer.load(wanted[:held])
        wanted = wanted[held:]
        refs = np.concatenate([np.arange(n) + (page << 32) for page, n in zip(numbers.tolist(), rows, strict=True)])
        refs = refs[rng.random(len(refs)) < share] if share < 1 else refs
        if len(refs):
            yield pa.RecordBatch.from_arrays(pages.measure(refs, columns).columns(), schema=schema)
    reader.close()


def _spread(count: int) -> np.ndarray:
    """All segments, or some of so many: groups of neighbours at equal distances."""
    if count <= SEGMENTS:
        return np.arange(count, dtype=np.int64)
    first = np.linspace(0, count - NEIGHBOURS, SEGMENTS // NEIGHBOURS).astype(np.int64)
    return np.unique(first[:, None] + np.arange(NEIGHBOURS))
