"""Rows that a task holds until it has seen all of them: a few in memory, many in files, a part at a time at the end.

add ---> memory --full--> part 0 .. 63 by number, each two files: rows, numbers
                            |
parts <---------------------+   one after the other; all rows of a number are in one part
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

PARTS = 64
IN_MEMORY = 8 << 20


class Held:
    """Rows with their numbers, and numbers alone. Files are gone when it is left."""

    def __init__(self, number: str, *, in_memory: int = IN_MEMORY) -> None:
        self.number = number
        self.in_memory = in_memory
        self._rows: list[pa.RecordBatch] = []
        self._numbers: list[np.ndarray] = []
        self._bytes = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self._writers.values():
            writer.close()
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, rows: pa.RecordBatch, numbers: np.ndarray) -> None:
        """Hold rows, and numbers that have none."""
        self._rows.append(rows)
        self._numbers.append(numbers)
        self._bytes += rows.nbytes + numbers.nbytes
        if self._bytes > self.in_memory:
            self._write()

    def parts(self) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """All of it, a part at a time."""
        if self._folder is None:
            if self._rows:
                yield pa.Table.from_batches(self._rows), np.concatenate(self._numbers)
            return
        self._write()
        folder = Path(self._folder.name)
        for part in sorted(self._writers):
            self._writers.pop(part).close()
            with pa.OSFile(str(folder / f"{part}.rows")) as file:
                rows = pa.ipc.open_stream(file).read_all()
            yield rows, np.fromfile(folder / f"{part}.numbers", dtype=np.int64)

    def _write(self) -> None:
        """Move what is in memory to the files."""
        if not self._rows:
            return
        if self._folder is None:
            local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
            self._folder = tempfile.TemporaryDirectory(prefix="millstream-held-", dir=local)
        folder = Path(self._folder.name)
        rows = pa.Table.from_batches(self._rows)
        numbers = np.concatenate(self._numbers)
        self._rows, self._numbers, self._bytes = [], [], 0
        order, rows_at = _by_part(rows.column(self.number).to_numpy())
        rows = rows.take(pa.array(order))
        order, numbers_at = _by_part(numbers)
        numbers = numbers[order]
        for part in range(PARTS):
            if part not in self._writers:
                self._writers[part] = pa.ipc.new_stream(pa.OSFile(str(folder / f"{part}.rows"), "wb"), rows.schema)
            self._writers[part].write_table(rows.slice(rows_at[part], rows_at[part + 1] - rows_at[part]))
            with open(folder / f"{part}.numbers", "ab") as file:
                numbers[numbers_at[part] : numbers_at[part + 1]].tofile(file)


def _by_part(numbers: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The order that brings the numbers of a part together, and where in it each part begins and the last one ends."""
    parts = numbers % PARTS
    order = np.argsort(parts, kind="stable")
    return order, np.searchsorted(parts[order], np.arange(PARTS + 1)).tolist()
