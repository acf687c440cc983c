"""`calibrate`: measures the cost factors of a master on this machine and keeps them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import InputError
from ..joins.plan import master_columns
from ..master import Master
from .factors import Factors, identity, machine, place, save
from .reads import RandomReads
from .runs import Runs
from .sample_stream import STREAM_ROW_BYTES, SampleStream
from .scan_runs import ScanRuns, index_nested_loop, sweeps

LEAST_SECONDS = 4.0
ROUNDS = 2

Progress = Callable[[int, int, str], None]


def calibrate(
    master: Master,
    *,
    columns: Sequence[str] | None = None,
    row_bytes: int = STREAM_ROW_BYTES,
    seconds: float = 15.0,
    file: str | Path | None = None,
    progress: Progress | None = None,
) -> Factors:
    """Measure the cost factors of a master on this machine, in less than a minute, and store them.

    The operators run for a moment each on a stream of keys from the master, with tuples of `row_bytes` bytes, bringing
    `columns` (all but the key). Factors go to `file`, by default one in the user's cache (`~/.cache/millstream`) where
    `load` finds them. A master opened with `direct=True` is measured, and planned for, without the page cache.
    `progress(done, total, what)` is called before each part. `seconds` says how long to watch; about twice as long goes
    into filling windows and caches before.
    """
    known = identity(master)
    if not master.statistics.segments:
        raise InputError(f"{master.path} has no rows with a key: there is nothing to measure")
    if row_bytes < 1:
        raise InputError(f"row_bytes must be positive, not {row_bytes}")
    if not seconds >= LEAST_SECONDS:
        raise InputError(f"seconds must be at least {LEAST_SECONDS:g}, not {seconds}: less would measure nothing")
    brought = master_columns(master, columns) if columns is not None else None
    steps = _Steps(progress)
    steps.say("reading keys")
    stream = SampleStream(master, row_bytes)
    reads = RandomReads(master)

    def say(what: str) -> None:
        steps.say(what)
        reads.round(0.002 * seconds)  # spread over all the time, as the disk is not always as fast

    runs = Runs(master, stream, columns=brought, say=say)
    scans = ScanRuns(runs)
    scans.compare_buffers(0.06 * seconds)
    for number in range(ROUNDS):
        scans.round(0.15 * seconds)
        runs.hybrid_joins(0.12 * seconds, skewed=bool(number))
        if number:
            runs.caches(0.6 * seconds)
        else:
            index_nested_loop(runs, 0.03 * seconds)
            sweeps(runs, 0.3 * seconds)
    reads.close()
    scan, handing_over = scans.factors()
    factors = Factors(
        master=known,
        machine=machine(),
        io=runs.reads(reads.curve()),
        scan=scan,
        handing_over=handing_over,
        spread=scans.spread,
        steps=runs.steps(),
        fill=runs.fill,
        row_bytes=row_bytes,
        columns=None if brought is None else tuple(brought),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        path=f"version {master.version} of {master.path}",
        direct=master.direct,
    )
    steps.done()
    save(factors, file if file is not None else place(master))
    return factors


class _Steps:
    """Counts the parts of a calibration for whoever watches."""

    TOTAL = 52

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.count = 0

    def say(self, what: str) -> None:
        if self.progress is not None:
            self.progress(min(self.count, self.TOTAL - 1), self.TOTAL, what)
        self.count += 1

    def done(self) -> None:
        if self.progress is not None:
            self.progress(self.TOTAL, self.TOTAL, "")
