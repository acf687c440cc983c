"""The manifest of one version of a master: what it consists of, in one JSON file that is created once and stays."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pyarrow as pa

from ..errors import CorruptMaster, FormatTooNew, FormatTooOld, MasterNotFound, MillstreamError, NotAMaster
from ..kernels.hashing import checksum
from .files import Store

FORMAT = 2
FOLDER = "manifests"
HASH_COLUMN = "__hash__"

Layout = Literal["key", "frequency"]


@dataclass(frozen=True)
class Part:
    """A data file with its segments' index, and its share of the membership filter if it is clustered by key."""

    number: int
    file: str
    bytes: int
    rows: int
    segments: int
    index: str
    index_checksum: int
    filter: str | None = None
    filter_bytes: int = 0
    filter_checksum: int = 0


@dataclass(frozen=True)
class Statistics:
    """What planning needs to know of a master."""

    rows: int = 0
    bytes: int = 0
    segments: int = 0
    distinct_keys: int = 0
    null_key_rows: int = 0
    max_segment_bytes: int = 0
    max_row_bytes: int = 0
    max_key_rows: int = 0
    filter_bytes: int = 0
    heaviest_keys: tuple[tuple[str, int], ...] = ()

    @property
    def average_row_bytes(self) -> float:
        clustered = self.rows - self.null_key_rows
        return self.bytes / clustered if clustered else 0.0

    @property
    def rows_per_key(self) -> float:
        return (self.rows - self.null_key_rows) / self.distinct_keys if self.distinct_keys else 0.0


@dataclass(frozen=True)
class Manifest:
    """One version: `parts` hold the rows, `null_parts` those with a NULL key, `dense_parts` the on-disk index."""

    version: int
    created: str
    key: tuple[str, ...]
    layout: Layout
    segment_bytes: int
    schema: pa.Schema
    statistics: Statistics
    parts: tuple[Part, ...] = ()
    null_parts: tuple[Part, ...] = ()
    dense_parts: tuple[Part, ...] = ()
    format: int = field(default=FORMAT)

    def files(self) -> list[str]:
        """All files that this version needs."""
        names = []
        for part in (*self.parts, *self.null_parts, *self.dense_parts):
            names += [part.file, part.index, *([part.filter] if part.filter else [])]
        return names

    def to_json(self) -> bytes:
        body: dict[str, Any] = asdict(self)
        body["schema"] = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        text = json.dumps(body, sort_keys=True)
        return json.dumps(
            {"checksum": checksum(text.encode()), "format": self.format, "master": body}, indent=1, sort_keys=True
        ).encode()


def name_of(version: int) -> str:
    return f"{FOLDER}/{version:010d}.json"


def versions(store: Store) -> list[int]:
    """The versions that are there, oldest first."""
    names = [name.removesuffix(".json") for name in store.names(FOLDER) if name.endswith(".json")]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def load(store: Store, version: int | None = None) -> Manifest:
    """Read the manifest of a version, by default the newest."""
    if not store.exists():
        raise MasterNotFound(f"there is no master at {store.path}: the path does not exist")
    known = versions(store)
    if not known:
        raise NotAMaster(f"{store.path} is not a master: it has no manifest; build one with millstream.build_master")
    if version is None:
        version = known[-1]
    elif version not in known:
        raise MasterNotFound(f"the master at {store.path} has no version {version}; it has {_listed(known)}")
    return parse(store.read(name_of(version)), f"{store.path}/{name_of(version)}")


def _listed(known: list[int]) -> str:
    return ", ".join(map(str, known[-5:]))


def parse(content: bytes, where: str) -> Manifest:
    """A manifest from its JSON, checked."""
    try:
        outer = json.loads(content)
        written = int(outer["format"])
        if written > FORMAT:
            raise FormatTooNew(
                f"{where} has format {written}, but this Millstream reads formats up to {FORMAT}; install a newer one"
            )
        if 0 < written < FORMAT:
            raise FormatTooOld(
                f"{where} has format {written}, which this Millstream no longer reads; build the master again"
            )
        body = outer["master"]
        if checksum(json.dumps(body, sort_keys=True).encode()) != outer["checksum"]:
            raise CorruptMaster(f"{where} is damaged: its checksum does not fit its content; build the master again")
        statistics = dict(body["statistics"])
        statistics["heaviest_keys"] = tuple((key, rows) for key, rows in statistics["heaviest_keys"])
        return Manifest(
            version=body["version"],
            created=body["created"],
            key=tuple(body["key"]),
            layout=body["layout"],
            segment_bytes=body["segment_bytes"],
            schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(body["schema"]))),
            statistics=Statistics(**statistics),
            parts=tuple(Part(**part) for part in body["parts"]),
            null_parts=tuple(Part(**part) for part in body["null_parts"]),
            dense_parts=tuple(Part(**part) for part in body["dense_parts"]),
            format=body["format"],
        )
    except MillstreamError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptMaster(f"{where} is not a readable manifest ({error}); build the master again") from error
