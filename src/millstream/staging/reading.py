"""From stored blocks to rows: the wanted positions, in the columns that the reader knows."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ..errors import CorruptLog, MillstreamError
from . import columns
from .block import Header, decode, payload_of, unpack

_GATHERED = 8192  # rows of a batch that is handed on: small blocks are put together
_COLUMNS = b"columns"


def blocks_schema(stream_columns: pa.Schema) -> pa.Schema:
    """How blocks travel to a reader: as they are stored, so that the source's checksum reaches the end.

    The columns of the stream come along, as those that a block has are the first so many of them.
    """
    told = {_COLUMNS: json.dumps(columns.to_list(stream_columns)).encode()}
    return pa.schema([pa.field("block", pa.large_binary(), nullable=False)], metadata=told)


class Rows:
    """Turns stored blocks, as they come in order, into batches of rows.

    `wanted` are the stream's columns as the reader knows them: blocks from before a column was added have nulls there,
    and columns added since are left out.
    """

    def __init__(self, stream: str, wanted: pa.Schema, *, start: int, end: int) -> None:
        self._stream, self._next, self._end = stream, start, end
        self._schema = columns.read_schema(wanted)
        self._held: list[pa.RecordBatch] = []
        self._count = 0

    def add(self, blocks: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take some blocks; gives the batches that are ready."""
        stored = columns.from_list(json.loads(blocks.schema.metadata[_COLUMNS]))
        for content in blocks.column(0):
            buffer = content.as_buffer()
            try:
                header = unpack(memoryview(buffer))
                batch = decode(header, payload_of(header, buffer), pa.schema(list(stored)[: header.columns]))
            except MillstreamError as problem:
                raise CorruptLog(f"stream {self._stream}, position {self._next}: {problem.message}") from None
            rows = self._rows(header, batch)
            self._held.append(rows)
            self._count += rows.num_rows
            if self._count >= _GATHERED:
                yield self._hand_on()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The rows that are still held; all positions asked for have come by now."""
        if self._held:
            yield self._hand_on()
        if self._next < self._end:
            raise CorruptLog(f"stream {self._stream}: positions {self._next} to {self._end} are missing from the log")

    def _rows(self, header: Header, batch: pa.RecordBatch) -> pa.RecordBatch:
        skip = self._next - header.position
        if not 0 <= skip < header.rows:
            raise CorruptLog(f"stream {self._stream}: position {self._next} is due, but {header.position} comes")
        taken = min(header.rows, self._end - header.position) - skip
        self._next += taken
        batch = batch.slice(skip, taken)
        number = header.first + skip
        made = {
            "_source": lambda: pa.repeat(pa.scalar(header.source, pa.string()), taken),
            "_sequence": lambda: pa.array(np.arange(number, number + taken, dtype=np.int64)),
        }
        arrays = [
            batch.column(field.name)
            if field.name in batch.schema.names
            else made[field.name]()
            if field.name in made
            else pa.nulls(taken, field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _hand_on(self) -> pa.RecordBatch:
        batch = pa.concat_batches(self._held) if len(self._held) > 1 else self._held[0]
        self._held, self._count = [], 0
        return batch
