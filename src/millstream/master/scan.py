"""Unprepared Parquet as the relation R: its files and row groups, found once; nothing is copied, sorted or written.

A page of such a relation is a row group. What joins need to know of it - schema, key, sizes - is what they ask of a
`Master` too, so scan joins take either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..errors import CorruptMaster, InputError, MasterNotFound, NotAMaster, UnknownColumn
from ..kernels.keys import KeyCodec
from ..kernels.layout import Layout, plain
from .files import Store
from .manifest import Statistics

BYTES_PER_PAGE = 4 + 4 + 8
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class ParquetFile:
    """A file as it was found: where, its row groups, and the values of the columns in its folders' names."""

    fs: pafs.FileSystem
    path: str
    groups: int
    rows: int
    folder_values: dict[str, Any] = field(default_factory=dict)

    def open(self, *, buffer_size: int = 0) -> pq.ParquetFile:
        """Open it; refused if it is no longer the file that was found."""
        try:
            opened = pq.ParquetFile(
                self.fs.open_input_file(self.path),
                buffer_size=buffer_size,
                pre_buffer=False,
                coerce_int96_timestamp_unit="us",
            )
        except FileNotFoundError as error:
            raise MasterNotFound(f"{self.path} is gone since it was scanned; call Master.scan again") from error
        except (pa.ArrowInvalid, OSError) as error:
            raise CorruptMaster(f"{self.path} cannot be read as Parquet: {error}") from error
        if (opened.metadata.num_row_groups, opened.metadata.num_rows) != (self.groups, self.rows):
            raise MasterNotFound(f"{self.path} has changed since it was scanned; call Master.scan again")
        return opened


@dataclass(frozen=True)
class ColumnSizes:
    """Bytes of a column in one row group, at most: as stored, and as encoded before compression."""

    stored: int
    encoded: int


class ParquetScan:
    """Parquet files that joins read from end to end, again and again. The files are those that were there at first."""

    version = 0  # files that nobody prepared have no versions
    layout = "scan"
    direct = False

    def __init__(
        self,
        path: str,
        files: tuple[ParquetFile, ...],
        schema: pa.Schema,
        key: list[str],
        pages: tuple[np.ndarray, np.ndarray, np.ndarray],
        sizes: dict[str, ColumnSizes],
        encoded_bytes: int,
    ) -> None:
        self.path = path
        self.files = files
        self.schema = schema
        self.key = key
        self.page_file, self.page_group, self.page_rows = pages
        self.sizes = sizes
        self.encoded_bytes = encoded_bytes

    @classmethod
    def open(
        cls, path: str | Path | Sequence[str | Path], *, key: str | Sequence[str] = (), columns: Sequence[str] | None
    ) -> ParquetScan:
        """Find the files of a folder (or take those given) and read their footers."""
        places = [path] if isinstance(path, str | Path) else list(path)
        if not places:
            raise InputError("there are no files to scan: give a folder or at least one file")
        found = [one for place in places for one in _files(place)]
        folders, folder_schema = _folder_columns([one.folder for one in found])
        names = [key] if isinstance(key, str) else list(key)
        schema: pa.Schema | None = None
        files: list[ParquetFile] = []
        sizes: dict[str, ColumnSizes] = {}
        encoded = 0
        page_file, page_group, page_rows = [], [], []
        for number, one in enumerate(found):
            name = one.path
            metadata, own = _footer(one.fs, name)
            own = pa.schema([*own, *(entry for entry in folder_schema if entry.name not in own.names)])
            if schema is None:
                schema = _chosen(own, names, columns, name)
            _check_schema(schema, own, found[0].path, name)
            files.append(ParquetFile(one.fs, name, metadata.num_row_groups, metadata.num_rows, folders[number]))
            for group in range(metadata.num_row_groups):
                about = metadata.row_group(group)
                if about.num_rows:
                    page_file.append(number)
                    page_group.append(group)
                    page_rows.append(about.num_rows)
                    encoded += _add_sizes(sizes, about, schema)
        assert schema is not None
        pages = (np.array(page_file, np.int32), np.array(page_group, np.int32), np.array(page_rows, np.int64))
        return cls(
            ", ".join(str(Store(place).path) for place in places[:3]),
            tuple(files),
            schema,
            names,
            pages,
            sizes,
            encoded,
        )

    @property
    def rows(self) -> int:
        return int(self.page_rows.sum())

    @property
    def pages(self) -> int:
        return len(self.page_rows)

    @cached_property
    def codec(self) -> KeyCodec:
        return KeyCodec.of(self.schema, self.key)

    @property
    def stored_schema(self) -> pa.Schema:
        return self.schema

    @property
    def index_bytes(self) -> int:
        return self.pages * BYTES_PER_PAGE

    @property
    def scan_bytes(self) -> int:
        return self.index_bytes

    @cached_property
    def statistics(self) -> Statistics:
        """What is known without reading: sizes are those of the encoded columns, which is an estimate."""
        average = int(self.encoded_bytes / max(1, self.rows))
        return Statistics(rows=self.rows, bytes=self.encoded_bytes, segments=self.pages, max_row_bytes=4 * average)

    def __repr__(self) -> str:
        return f"Master.scan({self.path!r}, files={len(self.files)}, rows={self.rows:,}, key={self.key})"


@dataclass(frozen=True)
class _Found:
    """A file, and the folders between the place that was given and it."""

    fs: pafs.FileSystem
    path: str
    folder: str = ""


def _files(place: str | Path) -> list[_Found]:
    """The Parquet files at a place, in the order of their names; hidden files and those of committers are left out."""
    store = Store(place)
    info = store.fs.get_file_info(store.root)
    if info.type == pafs.FileType.NotFound:
        raise MasterNotFound(f"there is nothing to scan at {store.path}: the path does not exist")
    if info.type == pafs.FileType.File:
        return [_Found(store.fs, store.root)]
    if store.exists("manifests"):
        raise InputError(f"{store.path} is a master, not Parquet; open it with millstream.Master.open")
    infos = store.fs.get_file_info(pafs.FileSelector(store.root, recursive=True))
    below = len(store.root.rstrip("/")) + 1
    files = [
        _Found(store.fs, one.path, one.path[below:].rpartition("/")[0])
        for one in sorted(infos, key=lambda one: one.path)
        if one.type == pafs.FileType.File and not any(part[0] in "._" for part in one.path[below:].split("/") if part)
    ]
    if not files:
        raise NotAMaster(f"there are no Parquet files at {store.path}")
    return files


def _folder_columns(folders: list[str]) -> tuple[list[dict[str, Any]], pa.Schema]:
    """Values of columns that stand in the names of folders (`country=DE`), for each file, and the columns.

    A column whose values all are whole numbers is one of numbers, as Spark has it; others are text.
    """
    texts: list[dict[str, str | None]] = []
    for folder in folders:
        pairs = (part.partition("=") for part in folder.split("/") if "=" in part)
        texts.append({unquote(name): None if value == NO_VALUE else unquote(value) for name, _, value in pairs})
    names = list(dict.fromkeys(name for text in texts for name in text))
    for folder, text in zip(folders, texts, strict=True):
        if list(text) != names:
            raise InputError(f"the folders of {folder!r} do not name the columns {', '.join(names)} that others name")
    whole = {
        name: all(text[name] is None or re.fullmatch(r"-?[0-9]{1,9}", str(text[name])) for text in texts)
        for name in names
    }
    values = [
        {name: int(value) if whole[name] and value is not None else value for name, value in text.items()}
        for text in texts
    ]
    return values, pa.schema([(name, pa.int32() if whole[name] else pa.string()) for name in names])


def _footer(fs: pafs.FileSystem, name: str) -> tuple[pq.FileMetaData, pa.Schema]:
    try:
        with fs.open_input_file(name) as file:
            opened = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
            return opened.metadata, opened.schema_arrow.remove_metadata()
    except (pa.ArrowInvalid, OSError) as error:
        raise NotAMaster(f"{name} is not a Parquet file: {error}") from error


def _chosen(schema: pa.Schema, key: list[str], columns: Sequence[str] | None, name: str) -> pa.Schema:
    """The columns that are asked for, and the key, in plain types."""
    twice = sorted({one for one in schema.names if schema.names.count(one) > 1})
    if twice:
        raise InputError(f"{name} has more than one column named {', '.join(twice)}")
    if isinstance(columns, str):
        raise InputError(f"columns must be a list of names, not the text {columns!r}")
    wanted = list(dict.fromkeys([*key, *columns])) if columns is not None else schema.names
    for one in [*key, *wanted]:
        if one not in schema.names:
            raise UnknownColumn(f"column {one!r} is not in {name}, which has {', '.join(schema.names)}")
    chosen = pa.schema([pa.field(one, plain(schema.field(one).type)) for one in wanted])
    Layout.of(chosen)  # refuses types that have no plain layout,
    KeyCodec.of(chosen, key)  # and those that cannot be a key
    return chosen


def _check_schema(schema: pa.Schema, own: pa.Schema, first: str, name: str) -> None:
    for entry in schema:
        if entry.name not in own.names:
            raise InputError(f"{name} has no column {entry.name!r}, but {first} has; scan files of one schema")
        if plain(own.field(entry.name).type) != entry.type:
            raise InputError(
                f"column {entry.name!r} is {own.field(entry.name).type} in {name} and {entry.type} in {first}; "
                "scan files of one schema"
            )


def _add_sizes(sizes: dict[str, ColumnSizes], group: pq.RowGroupMetaData, schema: pa.Schema) -> int:
    """Remember the largest size of each column, nested ones under the name of their column; all bytes of the group."""
    stored = dict.fromkeys(schema.names, 0)
    encoded = dict.fromkeys(schema.names, 0)
    for i in range(group.num_columns):
        column = group.column(i)
        name = column_of(column.path_in_schema, schema.names)
        if name is not None:
            stored[name] += column.total_compressed_size
            encoded[name] += column.total_uncompressed_size
    for name in schema.names:
        old = sizes.get(name, ColumnSizes(0, 0))
        sizes[name] = ColumnSizes(max(old.stored, stored[name]), max(old.encoded, encoded[name]))
    return sum(encoded.values())


def column_of(path: str, names: Sequence[str]) -> str | None:
    """The column that a path of Parquet (`address.street`) belongs to, None if it is none of those named."""
    name = path if path in names else path.partition(".")[0]
    return name if name in names else None
