"""`calibrate`: measures the cost factors of a master on this machine and keeps them."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from ..errors import InputError
from ..joins.plan import master_columns
from ..master import Master
from .factors import Factors, identity, machine, place, save
from .reads import RandomReads
from .runs import Running, Runs
from .sample_stream import STREAM_ROW_BYTES, SampleStream
from .scan_runs import ScanRuns, index_nested_loop, sweeps

LEAST_SECONDS = 4.0
READS_EVERY = 8  # operators, some reads without any: the disk is not always as fast
TURNS = 5  # of all operators: a machine that others use is slow for seconds to minutes, for all of them alike

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
    `progress(done, total, what)` is called before each part. `seconds` says how long to watch; about as long goes into
    filling windows and caches before. All operators are there at once, and run by turns; together they have about
    a quarter of the memory that is free, and not more than two gigabytes.
    """
    known = identity(master)
    if not master.statistics.segments:
        raise InputError(f"{master.path} has no rows with a key: there is nothing to measure")
    if row_bytes < 1:
        raise InputError(f"row_bytes must be positive, not {row_bytes}")
    if not seconds >= LEAST_SECONDS:
        raise InputError(f"seconds must be at least {LEAST_SECONDS:g}, not {seconds}: less would measure nothing")
    brought = master_columns(master, columns) if columns is not None else None
    if progress is not None:
        progress(0, 1, "reading keys")
    stream = SampleStream(master, row_bytes)
    runs = Runs(master, stream, columns=brought, seconds=seconds)
    scans = ScanRuns(runs)
    todo = [*scans.todo(), *runs.index_joins(), index_nested_loop(runs), *sweeps(runs)]
    steps = itertools.count(1)
    total = 1 + (1 + TURNS) * len(todo)

    def say(what: str) -> None:
        if progress is not None:
            progress(next(steps), total, what)

    running: list[tuple[str, Running]] = []
    with ExitStack() as stack:
        reads = stack.enter_context(closing(RandomReads(master)))
        for what, start in todo:
            say(f"warming up {what}")
            one = start()
            if one is not None:
                stack.callback(one.operator.close)
                running.append((what, one))
        share = seconds / (TURNS * len(todo))
        for turn in range(1, TURNS + 1):
            for number, (what, one) in enumerate(running):
                say(f"running {what}")
                if number % READS_EVERY == 0:
                    reads.round(share)
                one.turn(turn * share)
        for _, one in running:
            one.file()
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
    if progress is not None:
        progress(total, total, "")
    save(factors, file if file is not None else place(master))
    return factors
