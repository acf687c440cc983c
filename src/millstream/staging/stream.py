"""A stream: its log, its columns, which record each source sends next, and what the flows have consumed."""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from ..errors import (
    BlockRefused,
    CorruptLog,
    InputError,
    PositionGone,
    RecordGap,
    StagingFull,
    StagingUnavailable,
)
from . import columns
from .block import Block, Header, Limits, decode, payload_of, unpack
from .durable import put_manifest, read_manifest
from .log import Log
from .metrics import Metrics
from .names import check_name

FORMAT = 1
MANIFEST = "stream.json"
FLOWS = "flows.json"
SEGMENT_BYTES = 64 << 20
MOST_SOURCES = 100_000
MOST_FLOWS = 1_000


@dataclass(frozen=True)
class Retention:
    """What is kept of each stream.

    Segments that every registered flow has consumed are removed while the log is larger than `keep` bytes. `limit` is
    the most that a log may take: `when_full="refuse"` then holds the sources back until flows have caught up (or for
    ever, if there is none), `"drop"` removes the oldest segments even though flows still want them.
    """

    keep: int = 256 << 20
    limit: int | None = None
    when_full: Literal["refuse", "drop"] = "refuse"

    def __post_init__(self) -> None:
        if self.when_full not in ("refuse", "drop"):
            raise InputError(f"when_full is 'refuse' or 'drop', not {self.when_full!r}")
        if self.keep < 0 or (self.limit is not None and self.limit < 1 << 20):
            raise InputError("retention keeps at least 0 bytes, and its limit is at least 1 MiB")

    @property
    def segment_bytes(self) -> int:
        """Segments small enough for the limit to be kept closely."""
        return SEGMENT_BYTES if self.limit is None else min(SEGMENT_BYTES, self.limit // 8)


@dataclass(frozen=True)
class Stored:
    """What became of a block: the source's next record, a mark for `sync`, and how many records were new."""

    next: int
    mark: int
    rows: int


class Stream:
    """A stream in its directory. Safe for use by several threads."""

    def __init__(self, directory: Path, *, limits: Limits, retention: Retention, metrics: Metrics) -> None:
        manifest = read_manifest(directory / MANIFEST)
        if manifest["format"] != FORMAT:
            raise CorruptLog(f"{directory} has format {manifest['format']}, where {FORMAT} is known; update Millstream")
        self.name: str = manifest["name"]
        self._directory, self._limits, self._retention, self._metrics = directory, limits, retention, metrics
        self._columns = columns.from_list(manifest["columns"])
        self.log = Log(directory, log=manifest["log"], stream=self.name, segment_bytes=retention.segment_bytes)
        self._lock = threading.Lock()
        self._claims: dict[tuple[str, str], int] = {}
        self._last_claim = 0
        flows = directory / FLOWS
        self._flows: dict[str, int] = read_manifest(flows)["flows"] if flows.exists() else {}
        metrics.recovered(self.name, self.log.cut)

    @classmethod
    def create(cls, directory: Path, name: str, schema: pa.Schema) -> None:
        """Write what makes an empty directory a stream."""
        put_manifest(
            directory / MANIFEST,
            {"format": FORMAT, "name": name, "log": uuid.uuid4().hex, "columns": columns.to_list(schema)},
        )

    # columns

    @property
    def columns(self) -> pa.Schema:
        return self._columns

    def widen(self, offered: pa.Schema) -> pa.Schema:
        """Let a source with this schema in; the stream's columns from then on."""
        with self._lock:
            wider = columns.widened(self._columns, offered)
            if wider is not self._columns:
                if len(wider) > columns.MOST_COLUMNS:
                    raise BlockRefused(f"stream {self.name} would have more than {columns.MOST_COLUMNS} columns")
                manifest = read_manifest(self._directory / MANIFEST)
                self._put(MANIFEST, {**manifest, "columns": columns.to_list(wider)})
                self._columns = wider
            return wider

    # sources

    def next(self, source: str, incarnation: str) -> int:
        """The number of the record that is due from a source."""
        return self.log.sources.get((source, incarnation), 0)

    def claim(self, source: str, incarnation: str) -> int:
        """Make whoever holds this number the only one who may send for a source, until the next claim."""
        with self._lock:
            self._last_claim += 1
            self._claims[source, incarnation] = self._last_claim
            return self._last_claim

    def release(self, source: str, incarnation: str, claim: int) -> None:
        """Give a claim back."""
        with self._lock:
            if self._claims.get((source, incarnation)) == claim:
                del self._claims[source, incarnation]

    def accept(self, content: pa.Buffer, *, source: str, incarnation: str, claim: int) -> Stored:
        """Check a block as it came and append what is new of it; durable after `log.sync` of the mark."""
        header = unpack(memoryview(content))
        if (header.stream, header.source, header.incarnation) != (self.name, source, incarnation):
            raise BlockRefused(f"a block of {header.stream}/{header.source} in a session of {self.name}/{source}")
        self._limits.check(payload=header.payload, expanded=header.expanded, rows=header.rows)
        if header.rows <= 0 or header.end >= 1 << 62:
            raise BlockRefused(f"a block with records {header.first} to {header.end}")
        if header.columns > len(self._columns):
            raise BlockRefused(f"a block with {header.columns} columns, where {len(self._columns)} are registered")
        payload = payload_of(header, content)
        schema = pa.schema(list(self._columns)[: header.columns])
        return self._append(header, payload, decode(header, payload, schema), claim=claim)

    def put(self, source: str, *, incarnation: str, first: int, batch: pa.RecordBatch) -> Stored:
        """Append records that came another way than as a block; all else as with `accept`."""
        block = Block(self.name, source, incarnation, first, columns.conform(batch, self._columns))
        if block.rows == 0:
            return Stored(self.next(source, incarnation), self.log.mark, 0)
        header, payload = block.encode()
        self._limits.check(payload=header.payload, expanded=header.expanded, rows=header.rows)
        return self._append(header, payload, block.batch, claim=None)

    def _append(self, header: Header, payload: pa.Buffer, batch: pa.RecordBatch, *, claim: int | None) -> Stored:
        who = (header.source, header.incarnation)
        with self._lock:
            if claim is not None and self._claims.get(who) != claim:
                raise StagingUnavailable(f"another session of source {header.source} has taken over")
            due = self.log.sources.get(who, 0)
            if header.first > due:
                raise RecordGap(
                    f"source {header.source} of stream {self.name} sends record {header.first}, but {due} is due",
                    expected=due,
                )
            if header.end <= due:
                self._metrics.repeated(self.name, header.rows)
                return Stored(due, self.log.mark, 0)
            if who not in self.log.sources and len(self.log.sources) >= MOST_SOURCES:
                raise BlockRefused(f"stream {self.name} has {MOST_SOURCES:,} sources and incarnations already")
            if header.first < due:
                self._metrics.repeated(self.name, due - header.first)
                block = Block(self.name, *who, header.first, batch).after(due)
                header, payload = block.encode()
            self._make_room(header.block_length)
            mark = self.log.append(header, payload)
            self._metrics.stored(self.name, records=header.rows, size=header.block_length)
            return Stored(header.end, mark, header.rows)

    # flows

    def register(self, flow: str) -> None:
        """Keep what this flow has not consumed, from the oldest record on."""
        check_name(flow, what="flow")
        with self._lock:
            if flow not in self._flows:
                if len(self._flows) >= MOST_FLOWS:
                    raise InputError(f"stream {self.name} has {MOST_FLOWS:,} flows already; forget some")
                self._put(FLOWS, {"flows": {**self._flows, flow: self.log.start}})
                self._flows[flow] = self.log.start

    def consumed(self, flow: str, position: int) -> None:
        """A flow will not read below this position again."""
        self.register(flow)
        with self._lock:
            if not 0 <= position <= self.log.durable:
                raise PositionGone(
                    f"flow {flow} says it consumed up to {position}, but stream {self.name} ends at {self.log.durable}"
                )
            if position > self._flows[flow]:
                self._put(FLOWS, {"flows": {**self._flows, flow: position}})
                self._flows[flow] = position
                self._drop_consumed(self._retention.keep)

    def forget(self, flow: str) -> None:
        """Keep nothing for this flow any more."""
        with self._lock:
            if flow in self._flows:
                left = {name: position for name, position in self._flows.items() if name != flow}
                self._put(FLOWS, {"flows": left})
                self._flows = left
                self._drop_consumed(self._retention.keep)

    def backlog(self, flow: str) -> tuple[int, int]:
        """The positions that a flow has not consumed: from, up to."""
        return max(self._flows.get(flow, 0), self.log.start), self.log.durable

    def read(self, start: int, end: int) -> Iterator[tuple[Header, pa.Buffer]]:
        """The blocks with these positions."""
        return self.log.read(start, end)

    def describe(self) -> dict[str, Any]:
        """The stream in plain data."""
        return {
            "name": self.name,
            "log": self.log.log,
            "start": self.log.start,
            "end": self.log.durable,
            "bytes": self.log.size,
            "columns": columns.to_list(self._columns),
            "flows": dict(self._flows),
        }

    # inside; the lock is held

    def _make_room(self, size: int) -> None:
        limit = self._retention.limit
        if limit is None or self.log.size + size <= limit:
            return
        self._drop_consumed(limit - size)
        while self._retention.when_full == "drop" and self.log.size + size > limit:
            segments = self.log.segments()
            if len(segments) == 1:
                break
            self.log.drop_before(segments[0][1])
        if self.log.size + size > limit:
            wait = "until flows have consumed some" if self._flows else "and no flow is registered to consume it"
            raise StagingFull(f"stream {self.name} has reached its limit of {limit:,} bytes {wait}")

    def _drop_consumed(self, most: int) -> None:
        """Remove consumed segments, the oldest first, until the log has at most so many bytes."""
        if not self._flows:
            return
        done = min(self._flows.values())
        size = self.log.size
        for _, end, bytes_ in self.log.segments()[:-1]:
            if end > done or size <= most:
                break
            self.log.drop_before(end)
            size -= bytes_

    def _put(self, name: str, content: dict[str, Any]) -> None:
        try:
            put_manifest(self._directory / name, content)
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StagingFull(f"no room to write {name} of stream {self.name}: {problem.strerror}") from problem
            raise

    def close(self) -> None:
        self.log.close()
