"""How fast `ms.build_master` is, and that its memory does not grow with the table."""

from __future__ import annotations

import os
import shutil
import threading
import time
from dataclasses import asdict, dataclass
from types import TracebackType

import psutil
from pyspark.sql import SparkSession

from ..spark.build import build_master
from ..units import format_bytes
from ..workloads import KeyKind
from .data import Data
from .report import Check, Section, Table

TARGET = 400_000  # rows a second
KEYS: tuple[KeyKind, ...] = ("int", "string")
BOUNDED = 1.5  # growth of a worker that is allowed when the table grows fourfold


class ResidentSets:
    """Samples what the Python workers of this process's Spark hold, from outside; `peak` in bytes by pid."""

    def __init__(self, every: float = 0.02) -> None:
        self.peak: dict[int, int] = {}
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> ResidentSets:
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            for pid, size in resident_sets().items():
                self.peak[pid] = max(self.peak.get(pid, 0), size)

    @property
    def largest(self) -> int:
        return max(self.peak.values(), default=0)


def resident_sets() -> dict[int, int]:
    """Resident bytes of each Python worker by pid: processes that a Python daemon of Spark has forked."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            parent = process.parent()
            forked = parent is not None and parent.pid != os.getpid() and parent.name().startswith("python")
            if forked and process.name().startswith("python"):
                found[process.pid] = process.memory_info().rss
        except psutil.Error:
            continue
    return found


@dataclass(frozen=True)
class Built:
    """One build."""

    key: str
    rows: int
    seconds: float
    bytes: int
    largest_worker: int

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


def measure(spark: SparkSession, data: Data, rows: int, key: KeyKind) -> Built:
    """Build a master from Parquet and remove it again."""
    table = data.products(rows, key=key)
    path = data.folder / f"built-{key}-{rows}"
    shutil.rmtree(path, ignore_errors=True)
    data.say(f"building a master of {rows:,} products with a key of type {key}")
    try:
        with ResidentSets() as sets:
            begun = time.perf_counter()
            master = build_master(spark.read.parquet(str(table)), path, "product_id")
            seconds = time.perf_counter() - begun
        return Built(key, rows, seconds, master.statistics.bytes, sets.largest)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def run(spark: SparkSession, data: Data, rows: int) -> list[Built]:
    """Build with each type of key, a quarter of the rows first."""
    measure(spark, data, min(rows, 100_000), "int")  # starts workers
    return [measure(spark, data, size, key) for key in KEYS for size in (rows // 4, rows)]


def section(results: list[Built], *, command: str, full: bool) -> Section:
    """The report."""
    checks = []
    for key in KEYS:
        small, large = sorted((one for one in results if one.key == key), key=lambda one: one.rows)
        passed = large.rate >= TARGET if full else None
        what = f"build of {large.rows:,} rows, {key} key"
        checks.append(Check(what, f"{large.rate:,.0f} rows/s", f">= {TARGET:,} rows/s", passed))
        growth = large.largest_worker / max(1, small.largest_worker)
        what = f"largest Python worker, {large.rows:,} rows against {small.rows:,}, {key} key"
        checks.append(Check(what, f"{growth:.2f}x", f"< {BOUNDED}x", growth < BOUNDED))
    rows = [
        [
            f"{one.rows:,}, {one.key}",
            f"{one.seconds:.1f} s",
            f"{one.rate:,.0f}",
            format_bytes(one.bytes),
            format_bytes(one.largest_worker),
        ]
        for one in results
    ]
    head = ("rows, key", "time", "rows/s", "master", "largest Python worker")
    return Section(
        name="build",
        title="Building a master",
        about="`ms.build_master` from Parquet files, on a local Spark with two task slots. The resident set of the "
        "Python workers is sampled from outside.",
        checks=checks,
        tables=[Table("Builds", head, rows)],
        raw={"builds": [asdict(one) for one in results]},
        command=command,
    )
