"""What is known about the segments of a master without reading them: where each lies, and which keys there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import CorruptMaster, MasterNotFound
from ..kernels.hashing import checksum
from ..kernels.runs import MARKED, offset_of
from ..kernels.search import last_not_above
from .files import Store
from .manifest import Part

KEY_BYTES = 8
NARROW = (np.uint32, np.uint16, np.uint16)  # offset, length, rows
WIDE = (np.int64, np.int64, np.int64)


@dataclass(frozen=True)
class SegmentIndex:
    """The sparse index: for each segment its first key and where it lies. Global segment number = position.

    Numbers are as narrow as those of all segments allow, so do not calculate with them: `places` gives them in full
    width.
    """

    first_key: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    rows: np.ndarray
    checksum: np.ndarray  # its lower half
    part_start: np.ndarray

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def nbytes(self) -> int:
        arrays = (self.first_key, self.offset, self.length, self.rows, self.checksum, self.part_start)
        return sum(array.nbytes for array in arrays)

    def segment_of(self, keys: np.ndarray) -> np.ndarray:
        """The only segment that can hold each key, -1 for keys before the first one."""
        positions = np.empty(len(keys), dtype=np.int64)
        last_not_above(self.first_key, np.ascontiguousarray(keys, dtype=np.int64), positions)
        return positions

    def places(self, wanted: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """File, offset and length of some segments, given by a number or an array of them."""
        file = np.searchsorted(self.part_start, wanted, side="right") - 1
        return file, self.offset[wanted].astype(np.int64), self.length[wanted].astype(np.int64)

    def place(self, segment: int) -> tuple[int, int, int]:
        """File, offset and length of a segment."""
        file, offset, length = (int(value) for value in self.places(segment))
        return file, offset, length

    def contents(self, wanted: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Length, checksum and rows of some segments."""
        return self.length[wanted].astype(np.int64), self.checksum[wanted], self.rows[wanted].astype(np.int64)


@dataclass(frozen=True)
class ScanIndex:
    """For who reads all of R: the segments of a part lie one after the other, so their lengths tell where.

    Marks spare adding up all of them: `mark[i]` is the offset of segment 64 i in its file, and `begin[p]` that of the
    first segment of part p.
    """

    length: np.ndarray
    checksum: np.ndarray  # its lower half
    mark: np.ndarray
    part_start: np.ndarray
    begin: np.ndarray
    rows: int
    most_rows: int  # of a segment
    density: float  # most rows of a byte

    def __len__(self) -> int:
        return len(self.length)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self.length, self.checksum, self.mark, self.part_start, self.begin))

    def place(self, segment: int) -> tuple[int, int, int]:
        """File, offset and length of a segment."""
        file = int(np.searchsorted(self.part_start, segment, side="right")) - 1
        offset = offset_of(segment, file, self.part_start, self.begin, self.mark, self.length)
        return file, int(offset), int(self.length[segment])


def index_bytes(parts: tuple[Part, ...], largest: int) -> int:
    """Memory that the index of some parts takes, whose largest segment has so many bytes."""
    narrow = largest < 1 << 16 and all(part.bytes < 1 << 32 for part in parts)
    entry = sum(np.dtype(kind).itemsize for kind in (NARROW if narrow else WIDE)) + 4 + KEY_BYTES
    return sum(part.segments * entry + 8 for part in parts) + 16


def scan_bytes(parts: tuple[Part, ...], largest: int) -> int:
    """Memory that the index for a scan of some parts takes, at most."""
    segments = sum(part.segments for part in parts)
    return segments * (4 + _of_length(largest).itemsize) + 8 * (segments // MARKED + 1) + 16 * len(parts) + 8


def _of_length(largest: int) -> np.dtype[Any]:
    return np.dtype(np.uint16 if largest < 1 << 16 else np.int64)


def load_index(store: Store, parts: tuple[Part, ...]) -> SegmentIndex:
    """Read the index files of some parts, checked."""
    table, part_start = _load_entries(store, parts)
    offset, length, rows = (table[name] for name in ("offset", "length", "rows"))
    largest = max(int(length.max(initial=0)), int(rows.max(initial=0)))
    narrow = largest < 1 << 16 and int(offset.max(initial=0)) + largest < 1 << 32
    of_offset, of_length, of_rows = NARROW if narrow else WIDE
    return SegmentIndex(
        first_key=np.ascontiguousarray(table["first_key"], dtype=np.int64),
        offset=offset.astype(of_offset),
        length=length.astype(of_length),
        rows=rows.astype(of_rows),
        checksum=table["checksum"].astype(np.uint64).astype(np.uint32),
        part_start=part_start,
    )


def load_scan_index(store: Store, parts: tuple[Part, ...]) -> ScanIndex:
    """Read the index files of some parts for a scan, checked."""
    table, part_start = _load_entries(store, parts)
    offset, length, rows = (table[name].astype(np.int64) for name in ("offset", "length", "rows"))
    follows = offset[1:] == offset[:-1] + length[:-1]
    inner = part_start[(part_start > 0) & (part_start < len(offset))]
    follows[inner - 1] = True
    if not follows.all():
        part = parts[int(np.searchsorted(part_start, np.argmin(follows) + 1, side="right")) - 1]
        raise CorruptMaster(f"{store.full(part.index)} is damaged: segments overlap; build the master again")
    return ScanIndex(
        length=length.astype(_of_length(int(length.max(initial=0)))),
        checksum=table["checksum"].astype(np.uint64).astype(np.uint32),
        mark=offset[::MARKED].copy(),
        part_start=part_start,
        begin=np.append(offset, 0)[part_start[:-1]],
        rows=int(rows.sum()),
        most_rows=int(rows.max(initial=0)),
        density=float((rows / np.maximum(1, length)).max(initial=0)),
    )


def _load_entries(store: Store, parts: tuple[Part, ...]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The entries of all segments, column by column, and the number of the first segment of each part, and of all."""
    tables = [_read_checked(store, part.index, part.index_checksum) for part in parts]
    columns = {
        name: np.concatenate([table.column(name).to_numpy() for table in tables])
        if tables
        else np.empty(0, dtype=np.int64)
        for name in ("first_key", "offset", "length", "rows", "checksum")
    }
    part_start = np.concatenate(([0], np.cumsum([table.num_rows for table in tables], dtype=np.int64)))
    return columns, part_start


@dataclass(frozen=True)
class KeyFilter:
    """The membership filter over all keys, in memory."""

    first_key: np.ndarray
    begin: np.ndarray
    blocks: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.first_key.nbytes + self.begin.nbytes + self.blocks.nbytes


def load_filter(store: Store, parts: tuple[Part, ...]) -> KeyFilter:
    """Read the filters of some parts, checked."""
    firsts: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    total = sum(part.filter_bytes for part in parts)
    blocks = np.empty(total // 32 + 1, dtype="V32")
    used = 0
    for part in parts:
        assert part.filter is not None
        table = _read_checked(store, part.filter, part.filter_checksum)
        firsts.append(table.column("first_key").to_numpy())
        for chunk in table.column("blocks"):
            raw = np.frombuffer(chunk.as_buffer(), dtype="V32")
            blocks[used : used + len(raw)] = raw
            used += len(raw)
            sizes.append(np.array([len(raw)]))
    begin = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]) if sizes else np.zeros(1)
    return KeyFilter(
        first_key=np.ascontiguousarray(np.concatenate(firsts) if firsts else [], dtype=np.int64),
        begin=begin.astype(np.int64),
        blocks=blocks[:used].view(np.uint32).reshape(-1, 8),
    )


def _read_checked(store: Store, name: str, expected: int) -> pa.Table:
    try:
        content = store.read(name)
    except FileNotFoundError as error:
        raise MasterNotFound(
            f"{store.full(name)} is gone: this version of the master was dropped; open the master again"
        ) from error
    if checksum(content) != expected:
        raise CorruptMaster(f"{store.full(name)} is damaged: its checksum does not fit; build the master again")
    return pa.ipc.open_stream(content).read_all()
