"""Where rows leave Spark: one pass of tasks over the wide rows of a segment sends every outlet its part.

Each attempt of a task makes parts under names of its own; the driver then commits those that came back with the job's
result, so what a failed or repeated attempt has left behind never shows.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...failpoints import reach
from ...flow.rowlog import sync_folder
from ...warehouse import TableSpec
from ..load import client_of
from ..types import conform
from ..workers import settle

REPORT = pa.schema(
    [
        ("what", pa.string()),  # rows: of the task. end: at an outlet. rejected: by an activity. part: of an outlet
        ("number", pa.int32()),
        ("part", pa.string()),
        ("rows", pa.int64()),
        ("seconds", pa.float64()),
    ]
)
REPORT_DDL = "what string, number int, part string, rows bigint, seconds double"
REJECTS = pa.schema(
    [
        ("flow", pa.string()),
        ("batch", pa.int64()),
        ("activity", pa.string()),
        ("reason", pa.string()),
        ("row", pa.string()),
        ("_source", pa.string()),
        ("_sequence", pa.int64()),
        ("_captured", pa.timestamp("us", "UTC")),
    ]
)
TO_REJECTS = -1  # the number of the rejects among the outlets
_PART_BYTES = 16 << 20


@dataclass(frozen=True)
class ToTable:
    """Parts for a table of the warehouse."""

    url: str
    token: str | None
    spec: TableSpec
    flow: str
    batch: int

    @property
    def schema(self) -> pa.Schema:
        return self.spec.schema

    def write(self, name: str, rows: pa.Table) -> None:
        client = client_of(self.url, self.token)
        client.part(self.spec.name, flow=self.flow, batch=self.batch, part=name, data=rows)


@dataclass(frozen=True)
class ToFolder:
    """Parquet files for a folder of the batch."""

    path: str
    schema: pa.Schema
    batch: int

    def write(self, name: str, rows: pa.Table) -> None:
        file = Path(self.path) / PARTS / f"{self.batch}-{name}.parquet"
        pq.write_table(rows, file, compression="zstd")
        with open(file, "rb") as written:
            os.fsync(written.fileno())


PARTS = "_parts"  # names that begin with _ are no data to Spark and others


def commit_folder(path: Path, batch: int, parts: list[str]) -> bool:
    """Make the parts of a batch show, as a folder `batch=N`, all at once; False if they do already."""
    present = path / f"batch={batch}"
    new = not present.exists()
    if new:
        coming = path / f"_coming-{batch}"
        shutil.rmtree(coming, ignore_errors=True)
        coming.mkdir(parents=True)
        for part in parts:
            os.rename(path / PARTS / f"{batch}-{part}.parquet", coming / f"{part}.parquet")
        sync_folder(coming)
        coming.rename(present)
        sync_folder(path)
    for orphan in (path / PARTS).glob(f"{batch}-*.parquet"):
        orphan.unlink(missing_ok=True)
    return new


Destination = ToTable | ToFolder


@dataclass(frozen=True)
class FanOut:
    """A task that takes wide rows apart: parts for each outlet, rejects with their reasons, and counts of it all.

    outlets: destination of each outlet in the order of the columns; None for one that is only counted.
    activities: names by number. counted: numbers of those whose rejects are not kept.
    """

    outlets: tuple[Destination | None, ...]
    rejects: Destination
    stretches: int
    activities: tuple[str, ...]
    counted: frozenset[int]
    flow: str
    batch: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        reach("flow.task")
        attempt = uuid.uuid4().hex
        ends = [_End(number, to, attempt) for number, to in enumerate(self.outlets)]
        rejects = _End(TO_REJECTS, self.rejects, attempt)
        rejected = np.zeros(len(self.activities), dtype=np.int64)
        total = 0
        begun = time.perf_counter()
        for batch in batches:
            total += batch.num_rows
            for end in ends:
                end.add(batch.column(end.number))
            for number in range(len(ends), len(ends) + self.stretches):
                self._reject(batch.column(number), rejects, rejected)
        for end in (*ends, rejects):
            end.send()
        sending = sum(end.seconds for end in (*ends, rejects))
        report: list[tuple[str, int, str | None, int, float]] = [
            ("rows", 0, None, total, time.perf_counter() - begun - sending)
        ]
        report += [("end", end.number, None, end.rows, end.seconds) for end in ends]
        for end in (*ends, rejects):
            report += [("part", end.number, part, rows, 0.0) for part, rows in end.parts]
        report += [("rejected", at, None, int(rejected[at]), 0.0) for at in np.flatnonzero(rejected).tolist()]
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, entry.type) for values, entry in zip(zip(*report, strict=True), REPORT, strict=True)],
            schema=REPORT,
        )

    def _reject(self, noted: pa.StructArray, rejects: _End, rejected: np.ndarray) -> None:
        if noted.null_count == len(noted):
            return
        rows = noted.drop_null()
        at, why, row, *system = rows.flatten()
        numbers = at.to_numpy()
        rejected += np.bincount(numbers, minlength=len(rejected))
        columns = [
            pa.repeat(self.flow, len(rows)),
            pa.repeat(self.batch, len(rows)),
            pa.array(self.activities).take(at),
            why,
            row,
            *system,
        ]
        table = pa.RecordBatch.from_arrays(columns, names=REJECTS.names)
        if self.counted:
            kept = pc.invert(pc.is_in(at, pa.array(sorted(self.counted), at.type)))
            table = table.filter(kept)
        rejects.take(table)


@dataclass
class _End:
    """What one task has for one outlet."""

    number: int
    to: Destination | None
    attempt: str
    rows: int = 0
    seconds: float = 0.0
    parts: list[tuple[str, int]] = field(default_factory=list)
    _held: list[pa.RecordBatch] = field(default_factory=list)
    _bytes: int = 0

    def add(self, column: pa.Array) -> None:
        """Take the rows that come to this outlet: structs, or just whether there is one."""
        if self.to is None:
            self.rows += column.true_count
            return
        if column.null_count == len(column):
            return
        rows = column.drop_null() if column.null_count else column
        self.take(pa.RecordBatch.from_arrays(rows.flatten(), names=[entry.name for entry in rows.type]))

    def take(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        assert self.to is not None
        self.rows += batch.num_rows
        self._held.append(conform(batch, self.to.schema))
        self._bytes += batch.nbytes
        if self._bytes >= _PART_BYTES:
            self.send()

    def send(self) -> None:
        if not self._held:
            return
        assert self.to is not None
        begun = time.perf_counter()
        rows = pa.Table.from_batches(self._held)
        name = f"{self.attempt}-{self.number + 1}-{len(self.parts)}"
        self.to.write(name, rows)
        self.parts.append((name, rows.num_rows))
        self._held, self._bytes = [], 0
        self.seconds += time.perf_counter() - begun
