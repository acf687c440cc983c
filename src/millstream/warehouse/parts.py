"""Parts on disk until their batch is committed, and the batches that were accepted and wait for their commit.

```
DIRECTORY/
  lock                            held by the server that uses the directory
  batches/<hash of the batch>/<hash of the part>.part
  accepted/<number>-<hash of the batch>.json      durable: the batch will be committed, also after a crash
```

Names that came from outside never become paths; their hashes do. A part is a line of JSON (what it is, its checksum),
padded to 4096 bytes, then the Arrow IPC stream as it came. A file under a `.tmp` name, and a batch that nobody commits,
is rubbish: the sweep takes it away.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa

from ..errors import InputError, PartDamaged, PartsMissing, WarehouseUnavailable
from ..failpoints import reach
from ..units import format_bytes
from .wire import checksum

_HEADER = 4096


@dataclass(frozen=True)
class Batch:
    """What is committed once."""

    flow: str
    batch: int
    table: str

    @property
    def hash(self) -> str:
        return hashlib.sha256(f"{self.table}\0{self.flow}\0{self.batch}".encode()).hexdigest()[:40]

    def __str__(self) -> str:
        return f"batch {self.batch} of flow {self.flow!r} for table {self.table!r}"


@dataclass(frozen=True)
class Intent:
    """A commit as it was asked for."""

    flow: str
    batch: int
    table: str
    parts: tuple[str, ...]
    counts: dict[str, int] = field(default_factory=dict)
    origin: str | None = None

    @property
    def of(self) -> Batch:
        return Batch(self.flow, self.batch, self.table)


class Parts:
    """The directory of parts. Safe for several threads; one server at a time."""

    def __init__(self, directory: Path, *, limit: int = 16 << 30) -> None:
        self.directory = directory
        self._limit = limit
        self._batches, self._accepted = directory / "batches", directory / "accepted"
        try:
            for folder in (self._batches, self._accepted):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot keep parts in {directory}: {error}; give another --parts") from error
        self._lock_file = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_file)
            raise InputError(f"another warehouse server uses {directory}; stop it, or give another --parts") from error
        self._lock = threading.Lock()
        self._next = 1 + max((int(file.name.split("-")[0]) for file in self._accepted.glob("*-*.json")), default=0)
        for file in directory.glob("*/**/*.tmp"):
            file.unlink(missing_ok=True)
        self.bytes = sum(file.stat().st_size for file in self._batches.glob("*/*.part"))

    # -- parts ---------------------------------------------------------------------------------------------------------

    def put(self, batch: Batch, part: str, body: bytes | pa.Buffer, *, rows: int) -> None:
        """Store a part; one of the same id is replaced."""
        size = len(memoryview(body))
        with self._lock:
            if self.bytes + size > self._limit:
                raise WarehouseUnavailable(
                    f"parts that wait for their commit take {format_bytes(self.bytes)} of {format_bytes(self._limit)}",
                    status=503,
                )
            self.bytes += size + _HEADER
        folder = self._batches / batch.hash
        file = self._file(batch, part)
        temporary = folder / f"{os.urandom(8).hex()}.tmp"
        header = {"part": part, "rows": rows, "bytes": size, "checksum": checksum(body), **asdict(batch)}
        try:
            folder.mkdir(exist_ok=True)
            with open(temporary, "wb", buffering=0) as out:
                out.write(json.dumps(header).encode().ljust(_HEADER - 1) + b"\n")
                view = memoryview(body)
                while view:
                    view = view[out.write(view) :]
            os.replace(temporary, file)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            with self._lock:
                self.bytes -= size + _HEADER
            raise WarehouseUnavailable(f"cannot store a part in {self.directory}: {error}", status=503) from error
        reach("warehouse.part-stored")

    def missing(self, batch: Batch, parts: Iterable[str]) -> list[str]:
        """Which of the parts are not there."""
        return [part for part in parts if not self._file(batch, part).exists()]

    def read(self, batch: Batch, parts: Sequence[str], schema: pa.Schema) -> tuple[pa.Table, int]:
        """The rows of the parts, in their order, mapped into memory, and their bytes; checked once more."""
        tables, size = [], 0
        for part in parts:
            file = self._file(batch, part)
            try:
                with pa.memory_map(str(file)) as mapped:
                    content = mapped.read_buffer()
            except FileNotFoundError:
                raise PartsMissing(f"{batch}: part {part!r} is not there; send the batch again", parts=[part]) from None
            header = json.loads(bytes(content[:_HEADER]))
            body = content.slice(_HEADER)
            if len(body) != header["bytes"] or checksum(body) != header["checksum"]:
                raise PartDamaged(f"{batch}: part {part!r} in {file} has changed on disk; send the batch again")
            with pa.ipc.open_stream(body) as reader:
                tables.append(reader.read_all())
            size += len(body)
        if not tables:
            return schema.empty_table(), 0
        return pa.concat_tables(tables, promote_options="default"), size

    def drop(self, batch: Batch) -> None:
        """Remove all parts of a batch."""
        self._remove(self._batches / batch.hash)

    def sweep(self, older_than: float, keep: Iterable[Batch]) -> int:
        """Remove batches that got no part for so many seconds and that nobody is going to commit; how many."""
        kept = {batch.hash for batch in keep}
        before, swept = time.time() - older_than, 0
        for folder in list(self._batches.iterdir()):
            with contextlib.suppress(FileNotFoundError):
                if folder.name not in kept and folder.stat().st_mtime < before:
                    self._remove(folder)
                    swept += 1
        return swept

    def _remove(self, folder: Path) -> None:
        size = 0
        with contextlib.suppress(FileNotFoundError):
            size = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.endswith(".part"))
        shutil.rmtree(folder, ignore_errors=True)
        with self._lock:
            self.bytes = max(0, self.bytes - size)

    def _file(self, batch: Batch, part: str) -> Path:
        return self._batches / batch.hash / f"{hashlib.sha256(part.encode()).hexdigest()[:40]}.part"

    # -- accepted batches ----------------------------------------------------------------------------------------------

    def accept(self, intent: Intent) -> None:
        """Make a batch durable, parts and intent; after this a crash changes nothing."""
        folder = self._batches / intent.of.hash
        try:
            for part in intent.parts:
                _sync(self._file(intent.of, part))
            if intent.parts:
                _sync(folder)
                _sync(self._batches)
            with self._lock:
                number, self._next = self._next, self._next + 1
            file = self._accepted / f"{number:016d}-{intent.of.hash}.json"
            temporary = file.with_suffix(".tmp")
            temporary.write_text(json.dumps(asdict(intent)))
            _sync(temporary)
            os.replace(temporary, file)
            _sync(self._accepted)
        except OSError as error:
            raise WarehouseUnavailable(f"cannot make {intent.of} durable: {error}", status=503) from error
        reach("warehouse.accepted")

    def accepted(self) -> list[Intent]:
        """The batches that wait for their commit, in the order in which they were accepted."""
        found = []
        for file in sorted(self._accepted.glob("*-*.json")):
            value = json.loads(file.read_text())
            found.append(Intent(**value | {"parts": tuple(value["parts"])}))
        return found

    def done(self, batch: Batch) -> None:
        """Forget an accepted batch and its parts: it is committed."""
        for file in self._accepted.glob(f"*-{batch.hash}.json"):
            file.unlink(missing_ok=True)
        self.drop(batch)

    def close(self) -> None:
        """Let another server use the directory."""
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
