"""Writing one part of a master: sorted rows in, a file of segments with its index and filter out, in bounded memory.

A part file is a plain Arrow IPC stream, so any Arrow reader can open it: the schema, then one record batch for each
segment. `docs/master-format.md` specifies all files.
"""

from __future__ import annotations

import heapq
import itertools
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import InputError
from ..kernels import membership, segments
from ..kernels.checksum import block_checksum
from ..kernels.hashing import checksum
from ..kernels.keys import KeyCodec
from .files import Store
from .manifest import HASH_COLUMN, Layout, Part
from .part_files import PAGE
from .row_sizes import nested, row_bytes

HEAVIEST = 16
PADDING = 16  # at most a sixteenth of a segment
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
INDEX_SCHEMA = pa.schema(
    [
        ("first_key", pa.int64()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("rows", pa.int32()),
        ("checksum", pa.uint64()),
    ]
)
FILTER_SCHEMA = pa.schema([("first_key", pa.int64()), ("blocks", pa.binary())])
DENSE_SCHEMA = pa.schema(
    [("key", pa.int64()), ("part", pa.int32()), ("segment", pa.int32()), ("row", pa.int32()), ("rows", pa.int32())]
)


@dataclass(frozen=True)
class BuildSpec:
    """What a task needs to know to write a part; travels pickled."""

    root: str
    folder: str
    key: tuple[str, ...]
    schema: pa.Schema
    layout: Layout
    segment_bytes: int

    @property
    def codec(self) -> KeyCodec:
        return KeyCodec.of(self.schema, list(self.key))

    @property
    def whole_pages(self) -> bool:
        """Whether segments fill whole pages of the disk, if they can: a read then touches no page in vain."""
        return self.segment_bytes >= PAGE

    @property
    def hash_column(self) -> str | None:
        """The int64 column with Spark's xxhash64 of the key that batches must carry, if the key is not one integer."""
        return HASH_COLUMN if self.codec.hashed else None

    @property
    def cluster_column(self) -> str:
        """By which rows must come sorted, in layout "key"; in layout "frequency" its equal values must be adjacent."""
        return self.hash_column or self.key[0]

    @property
    def stored_schema(self) -> pa.Schema:
        return stored_schema(self.schema, self.codec)


def stored_schema(schema: pa.Schema, codec: KeyCodec) -> pa.Schema:
    """The columns of a part file: the user's, behind the hash of the key if there is one."""
    fields = [pa.field(HASH_COLUMN, pa.int64(), nullable=False)] if codec.hashed else []
    return pa.schema([*fields, *schema])


class _SegmentFile:
    """A part file while it is written: segments go out, their index entries stay.

    With `whole_pages` a segment that nearly reaches the end of a page is padded up to it.
    """

    def __init__(self, store: Store, folder: str, name: str, schema: pa.Schema, *, whole_pages: bool) -> None:
        self.store = store
        self.whole_pages = whole_pages
        self.name = f"{folder}/{name}.arrow"
        self.index_name = f"{folder}/{name}.index"
        self.filter_name = f"{folder}/{name}.filter"
        self.sink = store.open_output(self.name)
        header = schema.serialize()
        if whole_pages:
            header = _padded(header, -header.size % PAGE)
        self.sink.write(header)
        self.offset = len(header)
        self.entries: list[tuple[int, int, int, int, int]] = []
        self.rows = 0
        self.largest = 0

    def write(self, batch: pa.RecordBatch, first_key: int) -> None:
        message = batch.serialize()
        missing = -(self.offset + len(message)) % PAGE
        if self.whole_pages and PADDING * missing <= len(message):
            message = _padded(message, missing)
        self.sink.write(message)
        size = message.size
        checked = int(block_checksum(message.address, size))
        self.entries.append((first_key, self.offset, size, batch.num_rows, checked))
        self.offset += size
        self.rows += batch.num_rows
        self.largest = max(self.largest, size)

    def close(self, number: int, chunks: list[tuple[int, bytes]] | None) -> Part:
        self.sink.write(END_OF_STREAM)
        self.sink.close()
        self.store.sync(self.name)
        columns: list[tuple[int, ...]] = list(zip(*self.entries, strict=True)) or [() for _ in INDEX_SCHEMA]
        arrays = [pa.array(column, entry.type) for column, entry in zip(columns, INDEX_SCHEMA, strict=True)]
        index_checksum, _ = self._write_table(self.index_name, pa.RecordBatch.from_arrays(arrays, schema=INDEX_SCHEMA))
        part = Part(number, self.name, self.offset, self.rows, len(self.entries), self.index_name, index_checksum)
        if chunks is None:
            return part
        blocks = pa.RecordBatch.from_arrays(
            [pa.array([key for key, _ in chunks], pa.int64()), pa.array([block for _, block in chunks], pa.binary())],
            schema=FILTER_SCHEMA,
        )
        filter_checksum, size = self._write_table(self.filter_name, blocks)
        return Part(
            **{**asdict(part), "filter": self.filter_name, "filter_bytes": size, "filter_checksum": filter_checksum}
        )

    def _write_table(self, name: str, batch: pa.RecordBatch) -> tuple[int, int]:
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, batch.schema) as writer:
            writer.write_batch(batch)
        content = buffer.getvalue()
        with self.store.open_output(name) as stream:
            stream.write(content)
        self.store.sync(name)
        return checksum(content), content.size


def _padded(message: pa.Buffer, size: int) -> pa.Buffer:
    """An IPC message with so many bytes of padding more between its metadata and its body."""
    padded = pa.allocate_buffer(message.size + size)
    segments.pad_message(message.address, message.size, size, padded.address)
    return padded


class _FilterChunks:
    """The membership filter of a part, grown by sorted distinct keys and cut into chunks."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, bytes]] = []
        self.keys: list[np.ndarray] = []
        self.count = 0

    def add(self, keys: np.ndarray) -> None:
        self.keys.append(keys)
        self.count += len(keys)
        if self.count >= membership.CHUNK_KEYS:
            self._cut()

    def _cut(self) -> None:
        if self.count:
            keys = np.concatenate(self.keys)
            blocks = np.zeros((membership.blocks_for(len(keys)), 8), dtype=np.uint32)
            membership.insert_keys(keys, blocks)
            self.chunks.append((int(keys[0]), blocks.tobytes()))
            self.keys, self.count = [], 0

    def finish(self) -> list[tuple[int, bytes]]:
        self._cut()
        return self.chunks


class PartWriter:
    """Cuts sorted rows into segments at key boundaries.

    Invariant: rows held back (`_carry`) all belong to the segment that is not finished yet.
    """

    def __init__(self, spec: BuildSpec, number: int) -> None:
        self.spec = spec
        self.number = number
        self.store = Store(spec.root)
        self.schema = spec.stored_schema
        self.codec = spec.codec
        name = f"part-{number:05d}-{uuid.uuid4().hex[:12]}"
        self.file = _SegmentFile(self.store, spec.folder, name, self.schema, whole_pages=spec.whole_pages)
        self.nulls: _SegmentFile | None = None
        self.filter = _FilterChunks() if spec.layout == "key" else None
        self.dense: _SegmentFile | None = None
        if spec.layout == "frequency":
            self.dense = _SegmentFile(
                self.store,
                spec.folder,
                f"entries-{number:05d}-{uuid.uuid4().hex[:12]}",
                DENSE_SCHEMA,
                whole_pages=spec.whole_pages,
            )
        self._entries: list[list[np.ndarray]] = []
        self._carry: list[pa.RecordBatch] = []
        self._carry_sizes: list[np.ndarray] = []
        self._carry_bytes = 0
        self._last_key: int | None = None
        self._distinct = 0
        self._max_key_rows = 0
        self._max_row_bytes = 0
        self._heaviest: list[tuple[int, str]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        batch = batch.select(self.schema.names).cast(self.schema)
        batch = self._split_nulls(batch)
        if not batch.num_rows:
            return
        keys = self._keys(batch)
        if self.spec.layout == "key" and (
            bool((keys[1:] < keys[:-1]).any()) or (self._last_key is not None and keys[0] < self._last_key)
        ):
            raise InputError(f"rows of part {self.number} do not come sorted by {self.spec.cluster_column}")
        sizes = row_bytes(batch)
        self._max_row_bytes = max(self._max_row_bytes, int(sizes.max()))
        room = self._room(batch, sizes)
        if self._carry and keys[0] != self._last_key and self._carry_bytes + int(sizes[0]) > room:
            self._flush()
        if self._carry:
            batch, keys, sizes = self._join_carry(batch, keys, sizes)
            if batch is None:
                return
        cuts = np.empty(len(keys), dtype=np.int64)
        count = segments.cut_points(keys, sizes, room, cuts)
        start = int(cuts[count - 1]) if count else 0
        self._write_segments(batch, keys, [0, *cuts[:count].tolist()])
        self._carry, self._carry_sizes = [batch.slice(start)], [sizes[start:]]
        self._carry_bytes = int(sizes[start:].sum())
        self._last_key = int(keys[-1])

    def _room(self, batch: pa.RecordBatch, sizes: np.ndarray) -> int:
        """Bytes of rows in a segment: what fills whole pages beside the metadata, as some rows show."""
        wanted = self.spec.segment_bytes
        if not self.spec.whole_pages:
            return wanted
        some = max(1, int(np.searchsorted(np.cumsum(sizes), wanted)))
        beside = len(batch.slice(0, some).serialize()) - int(sizes[:some].sum()) + 8 * len(self.schema)
        pages = max(1, round((wanted + beside) / PAGE))
        return pages * PAGE - beside

    def _join_carry(
        self, batch: pa.RecordBatch, keys: np.ndarray, sizes: np.ndarray
    ) -> tuple[pa.RecordBatch | None, np.ndarray, np.ndarray]:
        """Put what was held back before the new rows; nothing, while a single key still goes on."""
        if keys[-1] == self._last_key and keys[0] == self._last_key and len(self._carry) > 0 and self._one_key():
            self._carry.append(batch)
            self._carry_sizes.append(sizes)
            self._carry_bytes += int(sizes.sum())
            return None, keys, sizes
        whole = pa.concat_batches([*self._carry, batch])
        sizes = np.concatenate([*self._carry_sizes, sizes])
        self._carry, self._carry_sizes = [], []
        return whole, self._keys(whole), sizes

    def _one_key(self) -> bool:
        return int(self._keys(self._carry[0])[0]) == self._last_key

    def _keys(self, batch: pa.RecordBatch) -> np.ndarray:
        column = batch.column(self.spec.cluster_column)
        return column.cast(pa.int64()).to_numpy()

    def _split_nulls(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        valid = np.ones(batch.num_rows, dtype=np.bool_)
        for name in self.spec.key:
            if batch.column(name).null_count:
                valid &= batch.column(name).is_valid().to_numpy(zero_copy_only=False)
        if valid.all():
            return batch
        if self.nulls is None:
            self.nulls = _SegmentFile(
                self.store,
                self.spec.folder,
                f"nulls-{self.number:05d}-{uuid.uuid4().hex[:12]}",
                self.schema,
                whole_pages=self.spec.whole_pages,
            )
        rows = batch.filter(pa.array(~valid))
        step = max(1, int(rows.num_rows * self.spec.segment_bytes / max(1, rows.nbytes)))
        for start in range(0, rows.num_rows, step):
            self.nulls.write(rows.slice(start, step), 0)
        return batch.filter(pa.array(valid))

    def _flush(self) -> None:
        if self._carry:
            batch = self._carry[0] if len(self._carry) == 1 else pa.concat_batches(self._carry)
            self._write_segments(batch, self._keys(batch), [0, batch.num_rows])
            self._carry, self._carry_sizes, self._carry_bytes = [], [], 0

    def _write_segments(self, batch: pa.RecordBatch, keys: np.ndarray, cuts: list[int]) -> None:
        """Write the rows between each two cuts as a segment; no key lies on both sides of a cut."""
        keys = keys[: cuts[-1]]
        if not len(keys):
            return
        segment = len(self.file.entries)
        for start, end in itertools.pairwise(cuts):
            self.file.write(batch.slice(start, end - start), int(keys[start]))
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        counts = np.diff(np.append(starts, len(keys)))
        self._distinct += len(starts)
        self._max_key_rows = max(self._max_key_rows, int(counts.max()))
        self._note_heaviest(batch, starts, counts)
        if self.filter is not None:
            self.filter.add(keys[starts])
        if self.dense is not None:
            inside = np.searchsorted(cuts, starts, side="right") - 1
            self._entries.append([keys[starts], segment + inside, starts - np.array(cuts)[inside], counts])
            if sum(len(block[0]) for block in self._entries) >= membership.CHUNK_KEYS:
                self._write_entries()

    def _write_entries(self) -> None:
        if self.dense is not None and self._entries:
            keys, segment, starts, counts = (np.concatenate(column) for column in zip(*self._entries, strict=True))
            columns = [keys, np.full(len(keys), self.number), segment, starts, counts]
            arrays = [pa.array(column, entry.type) for column, entry in zip(columns, DENSE_SCHEMA, strict=True)]
            self.dense.write(pa.RecordBatch.from_arrays(arrays, schema=DENSE_SCHEMA), 0)
            self._entries = []

    def _note_heaviest(self, batch: pa.RecordBatch, starts: np.ndarray, counts: np.ndarray) -> None:
        floor = self._heaviest[0][0] if len(self._heaviest) == HEAVIEST else 1
        heavy = np.flatnonzero(counts > floor)
        for at in heavy[np.argsort(-counts[heavy], kind="stable")][:HEAVIEST].tolist():
            row = int(starts[at])
            text = ", ".join(str(batch.column(name)[row].as_py()) for name in self.spec.key)
            heapq.heappush(self._heaviest, (int(counts[at]), text))
            if len(self._heaviest) > HEAVIEST:
                heapq.heappop(self._heaviest)

    def close(self) -> dict[str, Any]:
        """Finish the files; a summary that is small and plain enough to travel as JSON."""
        self._flush()
        self._write_entries()
        summary: dict[str, Any] = {
            "part": asdict(self.file.close(self.number, self.filter.finish() if self.filter else None)),
            "distinct_keys": self._distinct,
            "max_key_rows": self._max_key_rows,
            "max_row_bytes": self.file.largest if nested(self.schema) else self._max_row_bytes,
            "max_segment_bytes": self.file.largest,
            "heaviest": sorted(((key, rows) for rows, key in self._heaviest), key=lambda pair: -pair[1]),
            "nulls": asdict(self.nulls.close(self.number, None)) if self.nulls else None,
            "entries": asdict(self.dense.close(self.number, None)) if self.dense else None,
        }
        return summary


def write_part(spec: BuildSpec, batches: Iterable[pa.RecordBatch], number: int) -> dict[str, Any]:
    """Write one part from sorted batches; the summary that `Build.commit` wants."""
    writer = PartWriter(spec, number)
    for batch in batches:
        writer.write(batch)
    return writer.close()


def dense_spec(spec: BuildSpec) -> BuildSpec:
    """How the on-disk index of a master in order of frequency is itself written: a relation clustered by key."""
    return BuildSpec(spec.root, spec.folder, ("key",), DENSE_SCHEMA, "key", spec.segment_bytes)


def read_entries(spec: BuildSpec, summary: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """The index entries that one task of a "frequency" build has written, not yet sorted by key."""
    store = Store(spec.root)
    with store.fs.open_input_file(store.full(summary["entries"]["file"])) as file:
        yield from pa.ipc.open_stream(file)
