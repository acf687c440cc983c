"""The disk-resident relation R: a versioned directory of segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..kernels.keys import KeyCodec
from ..kernels.layout import Layout as ColumnLayout
from ..kernels.pages import PageTable
from . import manifest as manifests
from .chunks import ScanReader
from .files import Store
from .index import KeyFilter, SegmentIndex, index_bytes, load_filter, load_index, load_scan_index, scan_bytes
from .manifest import Layout, Manifest, Part, Statistics
from .parts import DENSE_SCHEMA, stored_schema
from .reader import DiskBuffer, SegmentReader
from .scan import ParquetScan


class Master:
    """One version of a master, open for reading. Opening reads the manifest only."""

    def __init__(self, store: Store, manifest: Manifest, *, direct: bool = False) -> None:
        self.store = store
        self.manifest = manifest
        self.direct = direct

    @classmethod
    def open(cls, path: str | Path, *, version: int | None = None, direct: bool = False) -> Master:
        """Open the newest or a given version. `direct` keeps reads of local files out of the page cache."""
        store = Store(path)
        return cls(store, manifests.load(store, version), direct=direct)

    @staticmethod
    def scan(
        path: str | Path | Sequence[str | Path], *, key: str | Sequence[str] = (), columns: Sequence[str] | None = None
    ) -> ParquetScan:
        """Plain Parquet - a folder, a file or some files - as the relation R of scan joins; nothing is prepared.

        `key` names the columns of an equality; leave it out for a join by a condition alone. `columns` limits what
        there is to bring. The files are those that are there now.
        """
        return ParquetScan.open(path, key=key, columns=columns)

    @staticmethod
    def latest_version(path: str | Path) -> int:
        """The newest version that is there, without opening it."""
        store = Store(path)
        known = manifests.versions(store)
        return known[-1] if known else manifests.load(store).version

    @property
    def path(self) -> str:
        return self.store.path

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def versions(self) -> list[int]:
        """All versions in the directory now."""
        return manifests.versions(self.store)

    @property
    def rows(self) -> int:
        return self.manifest.statistics.rows

    @property
    def schema(self) -> pa.Schema:
        return self.manifest.schema

    @property
    def key(self) -> list[str]:
        return list(self.manifest.key)

    @property
    def layout(self) -> Layout:
        return self.manifest.layout

    @property
    def statistics(self) -> Statistics:
        return self.manifest.statistics

    @cached_property
    def codec(self) -> KeyCodec:
        return KeyCodec.of(self.schema, self.key)

    @cached_property
    def stored_schema(self) -> pa.Schema:
        """The columns of a segment: the user's, behind the hash of the key if there is one."""
        return stored_schema(self.schema, self.codec)

    @property
    def cluster_column(self) -> str:
        return self.stored_schema.names[0] if self.codec.hashed else self.key[0]

    @cached_property
    def index(self) -> SegmentIndex:
        return load_index(self.store, self.manifest.parts)

    @cached_property
    def dense_index(self) -> SegmentIndex:
        """Where the segments of the on-disk index lie (layout "frequency")."""
        return load_index(self.store, self.manifest.dense_parts)

    @property
    def index_bytes(self) -> int:
        """Memory that the index takes once loaded."""
        parts = (*self.manifest.parts, *self.manifest.dense_parts)
        return index_bytes(parts, self.statistics.max_segment_bytes)

    @property
    def scan_bytes(self) -> int:
        """Memory that the index takes for a scan, which needs no keys."""
        return scan_bytes(self.manifest.parts, self.statistics.max_segment_bytes)

    def load_filter(self) -> KeyFilter:
        """The membership filter over all keys."""
        return load_filter(self.store, self._clustered_parts)

    @property
    def _clustered_parts(self) -> tuple[Part, ...]:
        return self.manifest.dense_parts if self.layout == "frequency" else self.manifest.parts

    def reader(self) -> SegmentReader:
        """A reader of the segments that hold the rows."""
        return SegmentReader(self.store, self.manifest.parts, self.index, direct=self.direct)

    def scan_reader(self, *, null_keys: bool = False) -> ScanReader:
        """A reader for scans of all segments, on request also of those with rows whose key is NULL."""
        parts = (*self.manifest.parts, *(self.manifest.null_parts if null_keys else ()))
        return ScanReader(self.store, parts, load_scan_index(self.store, parts), direct=self.direct)

    def dense_reader(self) -> SegmentReader:
        """A reader of the on-disk index (layout "frequency")."""
        return SegmentReader(self.store, self.manifest.dense_parts, self.dense_index, direct=self.direct)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Read every segment and check it; the number of segments. `progress(done, total)` is called now and then."""
        groups = [
            (self.manifest.parts, self.stored_schema),
            (self.manifest.null_parts, self.stored_schema),
            (self.manifest.dense_parts, DENSE_SCHEMA),
        ]
        total = sum(part.segments for parts, _ in groups for part in parts)
        done = 0
        for parts, schema in groups:
            if not parts:
                continue
            index = load_index(self.store, parts)
            reader = SegmentReader(self.store, parts, index, direct=self.direct)
            largest = int(index.length.max(initial=0))
            buffer = DiskBuffer(reader, PageTable(ColumnLayout.of(schema)), max(1 << 22, largest + 4 * 4096))
            at = 0
            while at < len(index):
                wanted = np.arange(at, min(at + 4096, len(index)), dtype=np.int64)
                wanted = wanted[: buffer.fit(wanted)]
                buffer.load(wanted)
                at += len(wanted)
                done += len(wanted)
                if progress is not None:
                    progress(done, total)
            reader.close()
        if self.statistics.filter_bytes:
            self.load_filter()
        return total

    def __repr__(self) -> str:
        return (
            f"Master({self.path!r}, version={self.version}, rows={self.rows:,}, key={self.key}, layout={self.layout!r})"
        )
