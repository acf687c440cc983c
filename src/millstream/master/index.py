"""What is known about the segments of a master without reading them: where each lies, and which keys there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import CorruptMaster, MasterNotFound
from ..kernels.hashing import checksum
from .files import Store
from .manifest import Part

KEY_BYTES = 8
NARROW = (np.uint32, np.uint16, np.uint16)  # offset, length, rows
WIDE = (np.int64, np.int64, np.int64)


@dataclass(frozen=True)
class SegmentIndex:
    """The sparse index: for each segment its first key and where it lies. Global segment number = position.

    An index without keys serves who reads all of R. Numbers are as narrow as those of all segments allow, so do not
    calculate with them: `places` gives them in full width.
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
        return np.searchsorted(self.first_key, keys, side="right") - 1

    def places(self, wanted: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """File, offset and length of some segments, given by a number or an array of them."""
        file = np.searchsorted(self.part_start, wanted, side="right") - 1
        return file, self.offset[wanted].astype(np.int64), self.length[wanted].astype(np.int64)

    def contents(self, wanted: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Length, checksum and rows of some segments."""
        return self.length[wanted].astype(np.int64), self.checksum[wanted], self.rows[wanted].astype(np.int64)


def index_bytes(parts: tuple[Part, ...], largest: int, *, keys: bool = True) -> int:
    """Memory that the index of some parts takes, whose largest segment has so many bytes."""
    narrow = largest < 1 << 16 and all(part.bytes < 1 << 32 for part in parts)
    entry = sum(np.dtype(kind).itemsize for kind in (NARROW if narrow else WIDE)) + 4 + (KEY_BYTES if keys else 0)
    return sum(part.segments * entry + 8 for part in parts) + 16


def load_index(store: Store, parts: tuple[Part, ...], *, keys: bool = True) -> SegmentIndex:
    """Read the index files of some parts, checked."""
    tables = [_read_checked(store, part.index, part.index_checksum) for part in parts]
    counts = [table.num_rows for table in tables]

    def column(name: str) -> np.ndarray:
        arrays = [table.column(name).to_numpy() for table in tables]
        return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)

    offset, length, rows = (column(name) for name in ("offset", "length", "rows"))
    largest = max(int(length.max(initial=0)), int(rows.max(initial=0)))
    narrow = largest < 1 << 16 and int(offset.max(initial=0)) + largest < 1 << 32
    of_offset, of_length, of_rows = NARROW if narrow else WIDE
    return SegmentIndex(
        first_key=np.ascontiguousarray(column("first_key"), dtype=np.int64) if keys else np.empty(0, dtype=np.int64),
        offset=offset.astype(of_offset),
        length=length.astype(of_length),
        rows=rows.astype(of_rows),
        checksum=column("checksum").astype(np.uint64).astype(np.uint32),
        part_start=np.concatenate(([0], np.cumsum(counts, dtype=np.int64))) if parts else np.zeros(1, dtype=np.int64),
    )


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
