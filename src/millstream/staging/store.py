"""All streams of a staging directory: found again after a start, made when first asked for. Knows no network."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from ..errors import InputError, StagingFailed, StagingFull, StagingLocked, UnknownStream
from . import columns
from .block import Limits
from .durable import TEMPORARY, put_manifest, read_manifest, sync_directory
from .metrics import Metrics
from .names import check_name
from .stream import MANIFEST, Retention, Stream

FORMAT = 1
MARKER = "staging.json"
STREAMS = "streams"
MOST_STREAMS = 1_000


class Store:
    """The streams in a directory, which this process holds alone while the store is open.

    Directories of streams are numbered: a name from outside never becomes a path.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        limits: Limits | None = None,
        retention: Retention | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.limits = limits or Limits()
        self.metrics = metrics or Metrics()
        self._retention = retention or Retention()
        self._lock = threading.Lock()
        self._streams: dict[str, Stream] = {}
        self.failure: StagingFailed | None = None
        self.on_failure: Callable[[StagingFailed], None] = lambda _: None
        self._prepare()
        self._held = self._hold()
        try:
            for place in sorted((self.directory / STREAMS).iterdir()):
                self._load(place)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Make everything durable and let the directory go."""
        for stream in self._streams.values():
            stream.close()
        os.close(self._held)

    def streams(self) -> list[Stream]:
        """All streams by name."""
        return [stream for _, stream in sorted(self._streams.copy().items())]

    def stream(self, name: object) -> Stream:
        """One stream."""
        stream = self._streams.get(check_name(name, what="stream"))
        if stream is None:
            raise UnknownStream(f"staging has no stream {name}; a source makes it with its first session")
        return stream

    def open(self, name: object, schema: pa.Schema) -> Stream:
        """The stream of this name with these columns: made, widened or left as it is."""
        name = check_name(name, what="stream")
        offered = columns.stored_schema(schema)
        with self._lock:
            if name not in self._streams:
                self._create(name, columns.widened(None, offered))
        stream = self._streams[name]
        stream.widen(offered)
        return stream

    def _prepare(self) -> None:
        """Make the directory a staging directory, unless something else is there."""
        if self.directory.exists() and not self.directory.is_dir():
            raise InputError(f"{self.directory} is not a directory")
        marker = self.directory / MARKER
        if not marker.exists():
            if self.directory.exists() and any(one.name != STREAMS for one in self.directory.iterdir()):
                raise InputError(f"{self.directory} holds something else; give an empty or new directory for staging")
            self.directory.mkdir(parents=True, exist_ok=True)
            put_manifest(marker, {"format": FORMAT})
        elif (found := read_manifest(marker)["format"]) != FORMAT:
            raise InputError(f"{self.directory} has format {found}, where {FORMAT} is known; update Millstream")
        (self.directory / STREAMS).mkdir(exist_ok=True)
        sync_directory(self.directory)

    def _hold(self) -> int:
        number = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(number)
            raise StagingLocked(f"another process serves {self.directory}; stop it first, or use its url") from None
        return number

    def _load(self, place: Path) -> Stream | None:
        if not (place / MANIFEST).exists():
            # a crash came between the directory and its manifest: no source has heard of this stream
            for left in place.glob(f"*{TEMPORARY}"):
                left.unlink()
            place.rmdir()
            return None
        stream = Stream(place, limits=self.limits, retention=self._retention, metrics=self.metrics)
        stream.log.on_failure = self._failed
        self._streams[stream.name] = stream
        return stream

    def _create(self, name: str, schema: pa.Schema) -> None:
        if len(self._streams) >= MOST_STREAMS:
            raise InputError(f"staging has {MOST_STREAMS:,} streams already; remove some")
        taken = [int(place.name) for place in (self.directory / STREAMS).iterdir()]
        place = self.directory / STREAMS / f"{max(taken, default=0) + 1:06d}"
        try:
            place.mkdir()
            Stream.create(place, name, schema)
            sync_directory(place.parent)
            self._load(place)
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StagingFull(f"no room for a new stream {name}: {problem.strerror}") from problem
            raise

    def _failed(self, problem: StagingFailed) -> None:
        self.failure = self.failure or problem
        self.on_failure(problem)
