"""A file of rows of 64-bit numbers that only grows: what was appended is durable before anybody is told.

    frame = magic "MSR1" | rows u32 | columns u32 | checksum u64 of the payload | payload: rows x columns int64

A frame that was cut short at the end of the file was never acknowledged, and goes when the file is opened again. A
frame whose checksum is wrong with frames behind it is damage, which is an error that names the place.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

from ..errors import CorruptState
from ..failpoints import reach
from ..kernels.hashing import checksum

_HEADER = struct.Struct("<4sIIQ")
_MAGIC = b"MSR1"


class RowLog:
    """One log, open for appending by one process."""

    def __init__(self, path: Path, *, columns: int) -> None:
        self.path, self.columns = path, columns
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115
        sync_folder(path.parent)

    def read(self) -> np.ndarray:
        """All rows, as an array of rows x columns; what a crash left of an unfinished frame is cut off."""
        self._file.seek(0)
        content = self._file.read()
        frames, at = [], 0
        while at < len(content):
            frame = self._frame(content, at)
            if frame is None:
                self._file.truncate(at)
                os.fsync(self._file.fileno())
                break
            frames.append(frame)
            at += _HEADER.size + frame.nbytes
        if not frames:
            return np.empty((0, self.columns), dtype=np.int64)
        return np.concatenate(frames)

    def _frame(self, content: bytes, at: int) -> np.ndarray | None:
        """The rows of the frame at an offset; None if it was never finished."""
        if len(content) - at < _HEADER.size:
            return None
        magic, rows, columns, expected = _HEADER.unpack_from(content, at)
        begin = at + _HEADER.size
        end = begin + 8 * rows * columns
        sound = magic == _MAGIC and columns == self.columns
        if sound and end > len(content):
            return None
        if sound and checksum(content[begin:end]) == expected:
            return np.frombuffer(content[begin:end], dtype="<i8").astype(np.int64).reshape(rows, columns)
        if sound and end == len(content):
            return None  # the last frame, written in part
        raise CorruptState(
            f"{self.path} is damaged at byte {at}; restore it from a backup, or remove it to begin anew",
            file=str(self.path),
            offset=at,
        )

    def append(self, rows: np.ndarray) -> None:
        """Add rows and return when they are durable."""
        payload = np.ascontiguousarray(rows, dtype="<i8").tobytes()
        frame = _HEADER.pack(_MAGIC, len(rows), self.columns, checksum(payload)) + payload
        reach("flow.before-rowlog")
        self._file.write(frame)
        os.fsync(self._file.fileno())

    def replace(self, rows: np.ndarray) -> None:
        """Put these rows in the place of all others, at once."""
        temporary = self.path.with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        other = RowLog(temporary, columns=self.columns)
        other.append(rows)
        other.close()
        os.replace(temporary, self.path)
        sync_folder(self.path.parent)
        self._file.close()
        self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115

    def close(self) -> None:
        self._file.close()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
