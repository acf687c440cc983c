"""Building a version of a master: begin, write parts anywhere, commit once.

Nothing of a build is seen before its manifest is created, which happens in one atomic step; a build that dies leaves
the versions that were there, and its files are swept away by a later build.
"""

from __future__ import annotations

import contextlib
import datetime
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from ..errors import BuildConflict, InputError, UnknownColumn
from ..kernels.keys import KeyCodec
from ..kernels.layout import Layout as ColumnLayout
from ..kernels.layout import plain
from . import manifest as manifests
from .files import BuilderLock, Store
from .manifest import HASH_COLUMN, Layout, Manifest, Part, Statistics
from .master import Master
from .parts import DENSE_SCHEMA, HEAVIEST, BuildSpec, dense_spec, read_entries, write_part
from .retention import sweep

SEGMENT_BYTES = 8 * 1024


class Build:
    """One attempt to make the next version; a context manager that aborts on an error."""

    def __init__(self, store: Store, lock: BuilderLock, spec: BuildSpec, base: int, *, new: bool) -> None:
        self.store = store
        self._new = new
        self.spec = spec
        self.base = base
        self._lock = lock
        self._open = True

    @classmethod
    def begin(
        cls,
        path: str | Path,
        schema: pa.Schema,
        *,
        key: str | Sequence[str],
        layout: Layout = "key",
        segment_bytes: int = SEGMENT_BYTES,
    ) -> Build:
        """Check everything that can be checked and take the builder's lock."""
        names = check_key(schema, key)
        if layout not in ("key", "frequency"):
            raise InputError(f"unknown layout {layout!r}; choose 'key' or 'frequency'")
        if not isinstance(segment_bytes, int) or segment_bytes < 256:
            raise InputError(f"segment_bytes must be a whole number of at least 256, not {segment_bytes}")
        schema = plain_schema(schema)
        KeyCodec.of(schema, names)
        ColumnLayout.of(schema)
        store = Store(path)
        if store.exists() and not manifests.versions(store) and store.names("") not in ([], [".builder"]):
            leftovers = set(store.names("")) - {".builder", "data", manifests.FOLDER, "pins"}
            if leftovers:
                raise InputError(f"{store.path} exists and is not a master; give a new or empty directory")
        if store.is_file():
            raise InputError(f"{store.path} is a file; a master needs a directory")
        new = not store.exists()
        store.make_folder(manifests.FOLDER)
        lock = BuilderLock(store)
        known = manifests.versions(store)
        folder = f"data/{uuid.uuid4().hex}"
        store.make_folder(folder)
        spec = BuildSpec(store.path, folder, tuple(names), schema, layout, segment_bytes)
        return cls(store, lock, spec, known[-1] if known else 0, new=new)

    def commit(self, summaries: Sequence[dict[str, Any]], dense: Sequence[dict[str, Any]] = ()) -> Master:
        """Make the parts the next version. `dense` are the parts of the on-disk index of a "frequency" build."""
        summaries = sorted(summaries, key=lambda summary: summary["part"]["number"])
        clustered = dense if self.spec.layout == "frequency" else summaries
        parts = _filled(Part(**summary["part"]) for summary in summaries)
        nulls = tuple(Part(**summary["nulls"]) for summary in summaries if summary["nulls"])
        null_rows = sum(part.rows for part in nulls)
        heaviest = sorted(
            (tuple(pair) for summary in summaries for pair in summary["heaviest"]), key=lambda pair: -pair[1]
        )
        statistics = Statistics(
            rows=sum(part.rows for part in parts) + null_rows,
            bytes=sum(part.bytes for part in parts),
            segments=sum(part.segments for part in parts),
            distinct_keys=sum(summary["distinct_keys"] for summary in summaries),
            null_key_rows=null_rows,
            max_segment_bytes=max((summary["max_segment_bytes"] for summary in (*summaries, *dense)), default=0),
            max_row_bytes=max((summary["max_row_bytes"] for summary in summaries), default=0),
            max_key_rows=max((summary["max_key_rows"] for summary in summaries), default=0),
            filter_bytes=sum(summary["part"]["filter_bytes"] for summary in clustered),
            heaviest_keys=tuple(heaviest[:HEAVIEST]),
        )
        new = Manifest(
            version=self.base + 1,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            key=self.spec.key,
            layout=self.spec.layout,
            segment_bytes=self.spec.segment_bytes,
            schema=self.spec.schema,
            statistics=statistics,
            parts=parts,
            null_parts=nulls,
            dense_parts=_filled(
                Part(**summary["part"]) for summary in sorted(dense, key=lambda s: s["part"]["number"])
            ),
        )
        self.store.sync(self.spec.folder)
        if manifests.versions(self.store)[-1:] not in ([self.base], []) or not self.store.create(
            manifests.name_of(new.version), new.to_json()
        ):
            self.abort()
            raise BuildConflict(
                f"another builder made version {new.version} of the master at {self.store.path} in the meantime; "
                "nothing was changed, build again on top of it"
            )
        self._open = False  # the version is there: whatever happens from here on, its files stay
        try:
            self._delete_stray(new)
            sweep(self.store)
        finally:
            self._finish()
        return Master(self.store, new)

    def _delete_stray(self, new: Manifest) -> None:
        """Remove the files of attempts that were not the ones to count."""
        named = set(new.files())
        for name in self.store.names(self.spec.folder):
            if f"{self.spec.folder}/{name}" not in named:
                self.store.delete(f"{self.spec.folder}/{name}")

    def abort(self) -> None:
        """Remove what this build has written, and the directory if it was not there before."""
        if self._open:
            with contextlib.suppress(OSError):
                self.store.delete(self.spec.folder if not self._new or manifests.versions(self.store) else "")
            self._finish()

    def _finish(self) -> None:
        self._open = False
        self._lock.release()

    def __enter__(self) -> Build:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abort()


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The same columns in plain types, with what is noted on each."""
    return pa.schema([pa.field(entry.name, plain(entry.type), entry.nullable, entry.metadata) for entry in schema])


def _filled(parts: Iterable[Part]) -> tuple[Part, ...]:
    return tuple(part for part in parts if part.rows)


def check_key(schema: pa.Schema, key: str | Sequence[str]) -> list[str]:
    """The key columns as a list, if the schema has them and can be a master's."""
    names = [key] if isinstance(key, str) else list(key)
    if not names:
        raise InputError("key is empty; name at least one column")
    if len(set(names)) != len(names):
        raise InputError(f"key names a column twice: {names}")
    if len(set(schema.names)) != len(schema.names):
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        raise InputError(f"the data has more than one column named {', '.join(twice)}; rename them first")
    for name in names:
        if name not in schema.names:
            raise UnknownColumn(f"key column {name!r} is not in the data, which has {', '.join(schema.names)}")
    if HASH_COLUMN in schema.names:
        raise InputError(f"the column name {HASH_COLUMN} is taken by Millstream; rename it first")
    return names


def build_local(
    data: pa.Table | Iterable[pa.RecordBatch],
    path: str | Path,
    *,
    key: str | Sequence[str],
    layout: Layout = "key",
    frequency: str | None = None,
    segment_bytes: int = SEGMENT_BYTES,
) -> Master:
    """Build a master from Arrow data in this process, without Spark; the data is sorted in memory."""
    if not isinstance(data, pa.Table):
        batches = list(data)
        if not batches:
            raise InputError("there is no data to build a master from, not even an empty batch with its columns")
        data = pa.Table.from_batches(batches)
    table = data
    schema = plain_schema(table.schema)
    names = check_key(schema, key)
    check_frequency(schema, layout, frequency)
    table = table.cast(schema)
    with Build.begin(path, schema, key=names, layout=layout, segment_bytes=segment_bytes) as build:
        spec = build.spec
        codes, valid = _codes(spec, table)
        if spec.hash_column is not None:
            table = table.add_column(0, pa.field(HASH_COLUMN, pa.int64(), nullable=False), pa.array(codes, pa.int64()))
        if layout == "frequency":
            order = frequency_order(codes, valid, table.column(frequency).to_numpy(zero_copy_only=False))
            summary = write_part(spec, _slices(table, order), 0)
            entries = pa.Table.from_batches(read_entries(spec, summary), schema=DENSE_SCHEMA)
            by_key = np.argsort(entries.column("key").to_numpy(), kind="stable")
            dense = write_part(dense_spec(spec), _slices(entries, by_key), 1)
            return build.commit([summary], [dense])
        order = np.argsort(codes, kind="stable")
        return build.commit([write_part(spec, _slices(table, order), 0)])


def check_frequency(schema: pa.Schema, layout: Layout, frequency: str | None) -> None:
    """The column of access frequencies belongs to layout "frequency" and to no other."""
    if layout == "frequency" and frequency is None:
        raise InputError("layout 'frequency' needs frequency=, the column that says how often a row is asked for")
    if layout != "frequency" and frequency is not None:
        raise InputError("frequency= is only for layout='frequency'")
    if frequency is not None and frequency not in schema.names:
        raise UnknownColumn(f"frequency column {frequency!r} is not in the data, which has {', '.join(schema.names)}")
    if frequency is not None:
        type_ = schema.field(frequency).type
        if not (pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_)):
            raise InputError(f"frequency column {frequency!r} is {type_}; it must be a number")


def frequency_order(codes: np.ndarray, valid: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """Rows by falling frequency of their key (that of its most frequent row), rows of a key together."""
    weights = np.where(valid, np.nan_to_num(np.asarray(frequency, dtype=np.float64)), -np.inf)
    _, key_number = np.unique(codes, return_inverse=True)
    most = np.full(int(key_number.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(most, key_number, weights)
    return np.lexsort((codes, -most[key_number]))


def _codes(spec: BuildSpec, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    columns = [table.column(name).combine_chunks() for name in spec.key]
    arrays = [column.chunk(0) if isinstance(column, pa.ChunkedArray) else column for column in columns]
    return spec.codec.codes(arrays)


def _slices(table: pa.Table, order: np.ndarray, rows: int = 65_536) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(order), rows):
        taken = table.take(pa.array(order[start : start + rows]))
        yield from taken.combine_chunks().to_batches()
