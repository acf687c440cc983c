"""Follows a growing file of lines: every line that is complete reaches staging once.

The position travels with the records: each block in the spool carries the place in the file behind its last line, so
that records and position are there together or not at all. A place is (file, offset, line), a file being known by its
inode and a checksum of its first bytes, so that another file under the same name is seen for what it is:

- *renamed and made anew*: the old file is read to its end wherever it is now, then the new one from its beginning;
- *copied and truncated*: the file is shorter than the place, or begins with other bytes: read from its beginning.
"""

from __future__ import annotations

import json
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .lines import LineParser
from .regulator import FlowRegulator
from .rejects import Rejects

_log = logging.getLogger(__name__)
_CHUNK = 4 << 20
_LONGEST = 64 << 20  # of a line
_HEAD = 256
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")


@dataclass(frozen=True)
class Place:
    """Where we are: before `offset`, the lines up to number `line` (over all files) are in the spool."""

    inode: int
    offset: int = 0
    line: int = 0
    head: int = 0  # checksum of the first bytes, up to the offset

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class FileFollower:
    """Reads a file from where the regulator's spool says, and goes on as it grows."""

    def __init__(self, path: Path, regulator: FlowRegulator, parser: LineParser, *, rejects: Path) -> None:
        self._path, self._regulator, self._parser = path, regulator, parser
        self._rejects = Rejects(rejects)
        self._file = -1
        self._place = Place(**json.loads(regulator.cursor)) if regulator.cursor else Place(inode=0)
        self.lines = self._place.line
        self.rejected = 0

    def run(self, *, once: bool = False, pause: float = 0.05, over: Callable[[], bool] = lambda: False) -> None:
        """Follow until `over()`; or with `once` to the end that the file has now, a last line without its end too."""
        while not over():
            if self._file < 0 and not self._open():
                if once:
                    raise FileNotFoundError(f"there is no file {self._path}")
                time.sleep(pause)
                continue
            if self._take(last=False):
                continue
            if self._superseded():
                self._take(last=True)
                self._close()
            elif once:
                self._take(last=True)
                self._close()
                return
            else:
                time.sleep(pause)
        self._close()

    def _take(self, *, last: bool) -> bool:
        """Send the next chunk of complete lines; `last` takes a line that has no end. False if there is nothing."""
        if self._shrunk():
            _log.info("%s was truncated; reading it from its beginning", self._path)
            self._begin(self._place.inode)
        chunk = self._complete(last=last)
        if not chunk:
            return False
        before = self._place
        at_begin, lines = before.offset == 0, chunk.count(b"\n") + (not chunk.endswith(b"\n"))
        body = chunk
        if at_begin and getattr(self._parser, "has_header", False):
            first, _, body = chunk.partition(b"\n")
            self._parser.header(first.removeprefix(b"\xef\xbb\xbf"))
        skipped = lines - body.count(b"\n") - (bool(body) and not body.endswith(b"\n"))
        batch, bad = self._parser.parse(body) if body else (None, [])
        offset = before.offset + len(chunk)
        self._place = Place(before.inode, offset, before.line + lines, self._checksum(offset))
        self.rejected += self._rejects.add((before.line + skipped + at + 1, why, text) for at, why, text in bad)
        if batch is None:
            self._regulator.note(self._place.encoded())
        else:
            self._regulator.send_batch(batch, cursor=self._place.encoded())
        self.lines = self._place.line
        return True

    def _complete(self, *, last: bool) -> bytes:
        size = _CHUNK
        while True:
            data = os.pread(self._file, size, self._place.offset)
            end = data.rfind(b"\n") + 1
            if end:
                return data[:end]
            if len(data) < size:
                return data if last else b""
            if size >= _LONGEST:
                return data  # no line at all; it will be rejected as one
            size = min(2 * size, _LONGEST)

    def _open(self) -> bool:
        """Open the file of our place, or the first that came after it."""
        for path, inode in self._candidates():
            try:
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            found = os.fstat(self._file)
            if found.st_ino != inode:
                self._close()
                continue
            if inode != self._place.inode:
                self._begin(inode)
            elif not self._shrunk() and self._place.offset:
                self._head_line()
            return True
        return False

    def _candidates(self) -> Iterator[tuple[Path, int]]:
        """Our file if it is still somewhere, then those that followed it, at last the file of the name."""
        try:
            present = os.stat(self._path).st_ino
        except FileNotFoundError:
            present = 0
        if self._place.inode and self._place.inode != present:
            siblings = [path for path in self._path.parent.glob(f"{self._path.name}*") if path.suffix not in _PACKED]
            known = {path: path.stat() for path in siblings if path.is_file()}
            ours = [path for path, stat in known.items() if stat.st_ino == self._place.inode]
            if ours and not self._read_out(known[ours[0]].st_size):
                yield ours[0], self._place.inode
            since = known[ours[0]].st_mtime_ns if ours else None
            if ours:
                later = [path for path, stat in known.items() if stat.st_mtime_ns > (since or 0)]
                for path in sorted(later, key=lambda path: known[path].st_mtime_ns):
                    yield path, known[path].st_ino
            elif self._file < 0:
                _log.warning("the file of which %s was line %d is gone", self._path, self._place.line)
        if present:
            yield self._path, present

    def _read_out(self, size: int) -> bool:
        return self._place.offset >= size

    def _superseded(self) -> bool:
        """Whether there is another file under the name by now."""
        try:
            return os.stat(self._path).st_ino != os.fstat(self._file).st_ino
        except FileNotFoundError:
            return False

    def _shrunk(self) -> bool:
        """Whether the file is not the one any more of which we have read the first part."""
        return os.fstat(self._file).st_size < self._place.offset or (
            self._checksum(self._place.offset) != self._place.head and self._place.offset > 0
        )

    def _checksum(self, offset: int) -> int:
        return zlib.crc32(os.pread(self._file, min(_HEAD, offset), 0))

    def _begin(self, inode: int) -> None:
        self._place = Place(inode, line=self._place.line)

    def _head_line(self) -> None:
        """Read the first line again: it names the columns."""
        first = os.pread(self._file, _CHUNK, 0).partition(b"\n")[0]
        if getattr(self._parser, "has_header", False):
            self._parser.header(first.removeprefix(b"\xef\xbb\xbf"))

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
