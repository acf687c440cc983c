"""The checkpoint directory of a flow: whose it is, who runs on it, and whether its files are whole.

Spark keeps its own files there (`offsets`, `commits`, `sources`, `metadata`); ours are in `millstream/`:

    millstream/flow.json    the flow that the checkpoint belongs to, its identity, and where its batches begin to count
    millstream/lock         locked by the process that runs the flow
    millstream/owner        the run that may commit: a run that reads another one here has been replaced, and stops
    state/                  what activities remember (unless the flow names another directory)
    activities/, queues/    with `queues: all`, Spark's files of each activity, and the queues

Spark never makes its offsets durable. A run syncs the offsets of a batch before anything of the batch is committed, so
an offsets file that a crash has damaged is always of a batch that no target has.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import CheckpointRefused, Fenced
from .graph import Graph
from .nodes import Files, Staging
from .rowlog import sync_folder

_OURS = "millstream"
_ACTIVITIES = "activities"


@dataclass(frozen=True)
class Identity:
    """Whose checkpoint it is. `first` is what is added to Spark's batch numbers in the ledger."""

    flow: str
    source: str
    id: str
    first: int = 0
    queues: str = "none"


class Checkpoint:
    """A checkpoint directory on a local disk, held by at most one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()  # the JVM may have another working directory
        self.folder = self.path / _OURS
        self._lock: int | None = None
        self._run = secrets.token_hex(8)

    @property
    def identity(self) -> Identity | None:
        """The flow that the checkpoint belongs to; None for a new one."""
        try:
            return Identity(**json.loads((self.folder / "flow.json").read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as problem:
            raise CheckpointRefused(
                f"{self.folder / 'flow.json'} cannot be read ({problem}); restore it, or begin with a new checkpoint"
            ) from None

    def hold(self, *, take_over: bool = False) -> None:
        """Become the run of this checkpoint; `CheckpointRefused` if another one is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "?"
            if not take_over:
                os.close(descriptor)
                raise CheckpointRefused(
                    f"process {holder} runs a flow on {self.path}; stop it, or take over with --take-over, which makes "
                    "it stop before its next commit"
                ) from None
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._lock = descriptor
        write_durably(self.folder / "owner", self._run)

    def check_held(self) -> None:
        """Raise `Fenced` if another run has taken the checkpoint over."""
        try:
            owner = (self.folder / "owner").read_text()
        except OSError as problem:
            raise Fenced(f"the checkpoint {self.path} is not there any more: {problem}") from None
        if owner != self._run:
            raise Fenced(f"another run has taken over the checkpoint {self.path}; this one stops")

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def adopt(self, graph: Graph) -> Identity | None:
        """The identity of the checkpoint if it is this flow's, None if it is new; `CheckpointRefused` otherwise."""
        known = self.identity
        if known is None:
            if (self.path / "offsets").exists():
                raise CheckpointRefused(
                    f"{self.path} is the checkpoint of a query that is no flow; name another directory"
                )
            return None
        if known.flow != graph.name or known.source != source_text(graph):
            raise CheckpointRefused(
                f"{self.path} is the checkpoint of flow {known.flow!r} on {known.source}, not of flow {graph.name!r} "
                f"on {source_text(graph)}; name another directory"
            )
        if known.queues != graph.queues:
            raise CheckpointRefused(
                f"{self.path} was made with 'queues: {known.queues}', and the flow now says 'queues: {graph.queues}': "
                "rows that are in queues would be lost. Change it back, or name another directory"
            )
        return known

    def begin(self, graph: Graph, *, first: int = 0) -> Identity:
        """Make a new checkpoint this flow's."""
        identity = Identity(graph.name, source_text(graph), secrets.token_hex(16), first, graph.queues)
        write_durably(self.folder / "flow.json", json.dumps(asdict(identity), indent=1))
        return identity

    def of_activity(self, name: str) -> Path:
        """Where Spark keeps the progress of one activity, if each has a queue of its own."""
        return self.path / _ACTIVITIES / name

    def sync_offsets(self, batch: int, *, folder: Path | None = None) -> None:
        """Make the offsets of a batch durable, so that it can be repeated as it was."""
        offsets = (folder or self.path) / "offsets"
        for path in (offsets / str(batch), offsets):
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def damage(self) -> list[Path]:
        """Files of Spark that a crash has left empty or cut short."""
        found: list[Path] = []
        for root in (self.path, *sorted((self.path / _ACTIVITIES).glob("*"))):
            metadata = root / "metadata"
            found += [metadata] if metadata.exists() and not _is_json(metadata) else []
            for folder in ("offsets", "commits"):
                entries = sorted((root / folder).glob("*"), key=lambda path: path.name.zfill(20))
                found += [path for path in entries if path.name.isdigit() and not _is_log(path)]
        return found

    def check_whole(self) -> None:
        """Raise `CheckpointRefused` with instructions if files are damaged."""
        damaged = self.damage()
        if damaged:
            names = ", ".join(str(path.relative_to(self.path)) for path in damaged)
            raise CheckpointRefused(
                f"a crash has damaged {names} in {self.path}. Run again with --repair: the batch is then repeated, and "
                "what targets have of it already is not loaded twice"
            )

    def repair(self) -> list[str]:
        """Remove what a crash has damaged, if the rest says all that is needed; what was done."""
        done = []
        for path in self.damage():
            name = str(path.relative_to(self.path))
            root = path.parent if path.name == "metadata" else path.parent.parent
            latest = max((int(p.name) for p in (root / "offsets").glob("*") if p.name.isdigit()), default=-1)
            if path.name == "metadata":
                raise CheckpointRefused(
                    f"{path} is damaged and cannot be made anew; begin with a new checkpoint and --fresh"
                )
            if path.parent.name == "offsets" and (root / "commits" / path.name).exists():
                if int(path.name) == latest:
                    raise CheckpointRefused(
                        f"{path} is damaged and its batch is committed, so nothing says where to go on; restore the "
                        "checkpoint from a backup, or begin with a new one and --fresh"
                    )
                what = "its batch is done and later ones are there"
            elif path.parent.name == "offsets":
                what = "no target has anything of its batch, which is planned anew"
            else:
                what = "its batch is repeated, and targets know it"
            path.unlink()
            with contextlib.suppress(FileNotFoundError):
                (path.parent / f".{path.name}.crc").unlink()
            sync_folder(path.parent)
            done.append(f"removed {name}: {what}")
        return done


def source_text(graph: Graph) -> str:
    """The source of a flow, as far as a checkpoint depends on it."""
    source = graph.source
    match source:
        case Staging():
            return f"stream {source.stream} in staging"
        case Files():
            return f"{source.format} files in {graph.path(source.path)}"
    return "a DataFrame"


def write_durably(path: Path, content: str) -> None:
    """Replace a small file at once, and make it durable."""
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def _is_log(path: Path) -> bool:
    """Whether a file is a whole entry of Spark's logs: a version, then lines of JSON."""
    lines = path.read_bytes().split(b"\n")
    if not lines[0].startswith(b"v") or not lines[0][1:].isdigit() or len(lines) < 2:
        return False
    entries = [line for line in lines[1:] if line]
    return bool(entries) and all(line == b"-" or _parses(line) for line in entries)


def _is_json(path: Path) -> bool:
    return _parses(path.read_bytes())


def _parses(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True
