"""Masters, tables and streams that the benchmarks run on, made once and kept in a folder."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import FormatTooOld, MasterNotFound, NotAMaster
from ..master import Build, Master, write_part
from ..workloads import KeyKind, Workload, product_batches

FILE_ROWS = 500_000

Say = Callable[[str], None]


def write_products(folder: Path, rows: int, *, key: KeyKind) -> Path:
    """Write products as Parquet files; the folder is there only once it is complete."""

    def write(place: Path) -> None:
        for number, start in enumerate(range(0, rows, FILE_ROWS)):
            batches = product_batches(min(FILE_ROWS, rows - start), key=key, start=start)
            _write_parquet(place / f"part-{number:05d}.parquet", batches)

    return _whole(folder, write)


def write_sales(
    folder: Path, workload: Workload, *, batches: int, batch_rows: int, files: int = 1, skip: int = 0
) -> Path:
    """Write a stream as Parquet files, `files` of them for each micro-batch of `batch_rows` rows, in order of time.

    `skip` is about how many rows of the stream are left out at its beginning.
    """

    def write(place: Path) -> None:
        rows = -(-batch_rows // files)
        first = -(-skip // rows)
        stream = workload.stream((first + batches * files) * rows, batch_rows=rows)
        for number, batch in enumerate(itertools.islice(stream, first, None)):
            file = place / f"sales-{number:05d}.parquet"
            _write_parquet(file, iter([batch]))
            os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark takes the oldest files first

    return _whole(folder, write)


def _write_parquet(file: Path, batches: Iterator[pa.RecordBatch]) -> None:
    first = next(batches)
    with pq.ParquetWriter(file, first.schema) as writer:
        for batch in itertools.chain([first], batches):
            writer.write_batch(batch, row_group_size=131_072)


def _whole(folder: Path, write: Callable[[Path], None]) -> Path:
    """Fill a folder under another name and rename it, so that it is complete if it is there."""
    staging = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        write(staging)
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return folder


@dataclass(frozen=True)
class Data:
    """A folder of benchmark data; whatever is asked for is made if it is not there."""

    folder: Path
    say: Say = lambda text: None

    def products(self, rows: int, *, key: KeyKind) -> Path:
        """Products as Parquet files."""
        folder = self.folder / f"products-{key}-{rows}.parquet"
        if not folder.exists():
            self.say(f"writing {rows:,} products with a key of type {key} to {folder}")
            write_products(folder, rows, key=key)
        return folder

    def sales(self, workload: Workload, *, batches: int, batch_rows: int, files: int = 1, skip: int = 0) -> Path:
        """A stream as Parquet files, one micro-batch after the other."""
        name = f"sales-{workload.key}-{workload.exponent}-{workload.keys}"
        folder = self.folder / f"{name}-{batches}x{batch_rows}-{files}-from-{skip}"
        if not folder.exists():
            self.say(f"writing {batches * batch_rows:,} sales to {folder}")
            write_sales(folder, workload, batches=batches, batch_rows=batch_rows, files=files, skip=skip)
        return folder

    def master(self, workload: Workload) -> str:
        """The master of a workload, clustered by key; its path."""
        kind = "products" if workload.multiplicity == 1 else f"partsupp{workload.multiplicity}"
        path = self.folder / f"master-{kind}-{workload.key}-{workload.keys}"
        if opened(path) is None:
            self.say(f"building a master of {workload.keys:,} keys at {path}")
            batches = replace(workload, absent=0.0, nulls=0.0).master_batches()
            first = next(batches)
            # the batches come in the order of their keys: there is nothing to sort
            with Build.begin(path, first.schema, key=workload.on) as build:
                build.commit([write_part(build.spec, itertools.chain([first], batches), 0)])
        return str(path)


def opened(path: Path) -> Master | None:
    """The master at a path, None if there is none or its first build was cut off."""
    try:
        return Master.open(path)
    except (MasterNotFound, NotAMaster, FormatTooOld):
        return None
