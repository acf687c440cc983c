"""The sender's side of a spool: blocks become batches with numbers, and what is acknowledged goes."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..errors import MillstreamError
from . import packed, records
from .rejects import Rejects
from .spool import ARROW, PACKED, ROWS, TAGGED, SegmentReader, SpooledBlock, segments
from .state import Checkpoint, State

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Piece:
    """Records to send: `first` is staging's number of the first, `after` the checkpoint once they are acknowledged."""

    batch: pa.RecordBatch
    first: int
    records: int
    after: Checkpoint

    @property
    def end(self) -> int:
        return self.first + self.batch.num_rows


class SpoolReader:
    """Reads a spool from its checkpoint on. Blocks of one segment at a time: another may have another schema."""

    def __init__(self, folder: Path, state: State) -> None:
        self._folder, self._state = folder, state
        self._rejects = Rejects(folder / "rejects.jsonl")
        self._segment: SegmentReader | None = None
        self.acknowledged = state.load() or Checkpoint()
        self._place = self.acknowledged
        self._next_block: SpooledBlock | None = None
        self.schema: pa.Schema = pa.schema([])

    @property
    def waiting(self) -> bool:
        """Whether there is something to do: a block to send, or a segment to go on with."""
        return self._open() and (self._peek() is not None or self.at_boundary)

    @property
    def at_boundary(self) -> bool:
        """Whether the segment is read to its end, and another one follows."""
        if not self._open() or self._peek() is not None:
            return False
        # the order matters: the writer ends a segment before it begins the next
        return any(number > self._place.segment for number in segments(self._folder)) and self._peek() is None

    def next(self, rows: int, size: int) -> Piece | None:
        """The next records of this segment, about as many as asked for; None if there are none (yet)."""
        if not self._open():
            return None
        blocks: list[SpooledBlock] = []
        count = weight = 0
        place = self._place
        while count < rows and weight < size and (block := self._peek()) is not None:
            if blocks and block.kind != blocks[0].kind and {block.kind, blocks[0].kind} != {ROWS, TAGGED}:
                break
            blocks.append(block)
            count, weight = count + block.count, weight + len(block.payload)
            self._place = replace(
                self._place,
                offset=block.end,
                record=block.record + block.count,
                cursor=block.cursor or self._place.cursor,
            )
            self._next_block = None
        if not blocks:
            return None
        batch = self._batch(blocks)
        self._place = replace(self._place, sequence=place.sequence + batch.num_rows)
        return Piece(batch, place.sequence, count, self._place)

    def acknowledge(self, checkpoint: Checkpoint) -> None:
        """Note that all before this place is durable; segments before it go."""
        self._state.save(checkpoint)
        before, self.acknowledged = self.acknowledged, checkpoint
        if before.segment < checkpoint.segment:
            self._clean()

    def rewind(self) -> None:
        """Begin again behind what is acknowledged."""
        if self._segment is not None and self._segment.number != self.acknowledged.segment:
            self.close()
        self._place, self._next_block = self.acknowledged, None

    def cross(self) -> bool:
        """Go on with the next segment, and whether it needs another session: its schema or incarnation differ.

        Requires `at_boundary`, and that all before is acknowledged.
        """
        before, schema = self._place, self.schema
        following = next(number for number in segments(self._folder) if number > before.segment)
        self.close()
        place = self._enter(following, before)
        self._state.save(place)
        self.acknowledged = self._place = place
        self._clean()
        return place.incarnation != before.incarnation or not schema.equals(self.schema)

    def begin_incarnation(self) -> None:
        """Number the records from 0 again, under a new incarnation."""
        self.acknowledged = replace(self.acknowledged, incarnation=uuid.uuid4().hex, sequence=0)
        self._state.save(self.acknowledged)
        self.rewind()

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _open(self) -> bool:
        """Have the segment of the present place open; False while there is none."""
        if self._segment is not None:
            return True
        known = segments(self._folder)
        number = self._place.segment
        if number not in known:
            later = [one for one in known if one > number]
            if not later:
                return False
            number = later[0]
            self._place = self.acknowledged = self._enter(number, self._place)
            self._state.save(self._place)
            return True
        self._place = self._enter(number, self._place)
        return True

    def _enter(self, number: int, place: Checkpoint) -> Checkpoint:
        """Open a segment and return the place in it: where we were, or its begin if it is new to us."""
        self._segment = SegmentReader(segments(self._folder)[number])
        header = self._segment.header
        self.schema = pa.ipc.read_schema(pa.BufferReader(header.schema))
        self._next_block = None
        if number == place.segment:
            return place
        if place.segment and header.record > place.record:
            lost = header.record - place.record
            self._state.add("lost", lost)
            _log.error(
                "%d records from %d on cannot be read: segment %012d of %s is damaged or gone",
                lost,
                place.record,
                place.segment,
                self._folder,
            )
        begun = replace(place, segment=number, offset=self._segment.begin, record=header.record)
        if header.incarnation != place.written:
            begun = replace(begun, sequence=0, incarnation=header.incarnation, written=header.incarnation)
        return begun

    def _peek(self) -> SpooledBlock | None:
        if self._next_block is None and self._segment is not None:
            self._next_block = self._segment.block(self._place.offset)
        return self._next_block

    def _batch(self, blocks: list[SpooledBlock]) -> pa.RecordBatch:
        if blocks[0].kind in (ARROW, PACKED):
            batch = self._whole(blocks)
            huge = records.oversized(batch)
            if huge:
                found = [(blocks[0].record + place, why, batch.slice(place, 1).to_pylist()) for place, why in huge]
                self._state.add("rejected", self._rejects.add(found))
                batch = records.without(batch, [place for place, _ in huge])
            return batch
        rows: list[records.Timed] = []
        numbers = []
        for block in blocks:
            if block.kind not in (ROWS, TAGGED):
                raise MillstreamError(f"{self._folder} has a block of kind {block.kind}: written by a later Millstream")
            rows += records.decode(block.payload, tagged=block.kind == TAGGED)
            numbers.append(np.arange(block.record, block.record + block.count))
        batch, bad = records.to_batch(rows, self.schema)
        if bad:
            number = np.concatenate(numbers)
            found = [(int(number[place]), reason, rows[place][0]) for place, reason in bad]
            self._state.add("rejected", self._rejects.add(found))
        return batch

    def _whole(self, blocks: list[SpooledBlock]) -> pa.RecordBatch:
        """Blocks of Arrow, or of packed records, as one batch."""
        payloads = [block.payload for block in blocks]
        if blocks[0].kind == PACKED:
            assert self._segment is not None
            return packed.to_batch(payloads, packed.dtype(self._segment.header.layout), self.schema)
        parts = [pa.ipc.read_record_batch(pa.py_buffer(payload), self.schema) for payload in payloads]
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _clean(self) -> None:
        """Remove the segments before the checkpoint's; the checkpoint is durable first."""
        old = [path for number, path in segments(self._folder).items() if number < self.acknowledged.segment]
        if old:
            self._state.sync()
            for path in old:
                path.unlink(missing_ok=True)
