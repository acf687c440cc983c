"""Commits batches one after the other for each table, in the order in which they came.

A commit that is waited for and one in the background go through the same queue, so that a later batch never overtakes
an earlier one. A batch that is in the queue already is not put there again: whoever repeats a commit waits with the
first.
"""

from __future__ import annotations

import datetime
import logging
import queue
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from ..errors import BatchConflict, MillstreamError, WarehouseUnavailable
from ..failpoints import reach
from .databases import Database
from .freshness import Lags
from .ledger import Entry
from .parts import Batch, Intent, Parts
from .retry import Backoff
from .spec import TableSpec

log = logging.getLogger(__name__)

_REMEMBERED = 1_000  # batches of which we know without asking the database that they are committed
_JUMP = 0.5  # seconds by which the wall clock may run away from the steady one between two commits


@dataclass
class _Job:
    intent: Intent
    durable: bool
    result: Future[tuple[Entry, bool]] = field(default_factory=Future)


class Loader:
    """The queue of commits and the threads that work it off.

    Invariants: (1) batches of one table are loaded in the order in which they were asked for; (2) an accepted batch
    leaves the disk only after it is in the ledger; (3) a batch that is in the ledger is never loaded again.
    """

    def __init__(
        self,
        database: Database,
        parts: Parts,
        *,
        spec_of: Callable[[str], TableSpec],
        most_waiting: int = 256,
        committed: Callable[[Entry], None] = lambda entry: None,
    ) -> None:
        self._database, self._parts, self._spec_of = database, parts, spec_of
        self._most_waiting = most_waiting
        self._report = committed
        self._lock = threading.Lock()
        self._waiting: dict[Batch, _Job] = {}
        self._recent: OrderedDict[Batch, Entry] = OrderedDict()
        self.failed: dict[Batch, str] = {}
        self._over = threading.Event()
        self._clock = time.time() - time.monotonic()
        self._lanes: list[queue.SimpleQueue[_Job | None]] = [queue.SimpleQueue() for _ in range(database.lanes)]
        for intent in parts.accepted():
            self._put(_Job(intent, durable=True))
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"millstream-loader-{number}", daemon=True)
            for number, lane in enumerate(self._lanes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> list[Batch]:
        """The batches in the queue."""
        with self._lock:
            return list(self._waiting)

    def commit(self, intent: Intent, *, durable: bool) -> Future[tuple[Entry, bool]]:
        """Put a batch into the queue; the result is its entry and whether it was there before.

        durable: the batch is on disk for good when this returns, and is loaded even after a crash.
        """
        with self._lock:
            job = self._waiting.get(intent.of)
            if job is not None and (job.durable or not durable):
                return job.result
            if job is None and len(self._waiting) >= self._most_waiting:
                raise WarehouseUnavailable(
                    f"{len(self._waiting)} batches wait for their commit; try again later", status=429, retry_after=1
                )
        if self._over.is_set():
            raise WarehouseUnavailable("the warehouse is stopping", status=503, retry_after=1)
        if durable:
            self._parts.accept(intent)
        with self._lock:
            job = self._waiting.get(intent.of)
            if job is None:
                job = _Job(intent, durable)
                self._put(job)
            job.durable = job.durable or durable
            return job.result

    def _put(self, job: _Job) -> None:
        self._waiting[job.intent.of] = job
        self.failed.pop(job.intent.of, None)
        self._lanes[zlib.crc32(job.intent.table.encode()) % len(self._lanes)].put(job)

    def known(self, batch: Batch) -> Entry | None:
        """The entry of a batch that was committed lately, without asking the database."""
        with self._lock:
            return self._recent.get(batch)

    def committed(self, batch: Batch) -> Entry | None:
        """The entry of a batch in the ledger."""
        return self.known(batch) or self._database.committed(batch.flow, batch.batch, batch.table)

    def close(self, timeout: float = 30.0) -> None:
        """Finish the batch that is being loaded; accepted ones stay on disk for the next start."""
        self._over.set()
        for lane in self._lanes:
            lane.put(None)
        for thread in self._threads:
            thread.join(timeout)

    def _work(self, lane: queue.SimpleQueue[_Job | None]) -> None:
        while (job := lane.get()) is not None and not (self._over.is_set() and job.durable):
            try:
                result = self._load_with_patience(job)
            except BaseException as problem:
                self._finish(job)
                if job.durable and not self._over.is_set():
                    log.error("%s failed: %s", job.intent.of, problem)
                    self.failed[job.intent.of] = str(problem)
                job.result.set_exception(problem)
            else:
                self._finish(job)
                job.result.set_result(result)

    def _finish(self, job: _Job) -> None:
        with self._lock:
            self._waiting.pop(job.intent.of, None)

    def _load_with_patience(self, job: _Job) -> tuple[Entry, bool]:
        """Load a batch; an accepted one as often as it takes while the database is away."""
        waits = Backoff(patience=float("inf")).waits()
        while True:
            try:
                return self._load(job.intent)
            except MillstreamError as problem:
                if not (job.durable and isinstance(problem, WarehouseUnavailable)):
                    raise
                log.warning("%s is tried again: %s", job.intent.of, problem)
                if self._over.wait(next(waits)):
                    raise

    def _load(self, intent: Intent) -> tuple[Entry, bool]:
        begun = time.monotonic()
        found = self.committed(intent.of)
        if found is None:
            spec = self._spec_of(intent.table)
            rows, size = self._parts.read(intent.of, intent.parts, spec.schema)
            mine: list[Entry] = []

            def finish() -> Entry:
                now = datetime.datetime.now(datetime.UTC)
                lags = Lags.of(rows, now)
                entry = Entry(
                    flow=intent.flow,
                    batch=intent.batch,
                    table=intent.table,
                    rows=rows.num_rows,
                    parts=len(intent.parts),
                    bytes=size,
                    committed_at=now,
                    origin=intent.origin,
                    captured_min=lags.first,
                    captured_max=lags.last,
                    seconds=time.monotonic() - begun,
                    ahead=lags.ahead,
                    clock_jump=self._jump(),
                    lags=lags.histogram,
                    counts=intent.counts,
                )
                mine.append(entry)
                return entry

            entry = self._database.load(spec, rows, finish)
            reach("warehouse.after-commit")
            duplicate = not mine or entry is not mine[-1]
        else:
            entry, duplicate = found, True
        check_origin(entry, intent)
        with self._lock:
            self._recent[intent.of] = entry
            while len(self._recent) > _REMEMBERED:
                self._recent.popitem(last=False)
        self._parts.done(intent.of)
        if not duplicate:
            self._report(entry)
        return entry, duplicate

    def _jump(self) -> float:
        """By how many seconds the wall clock was set since the last commit; 0 if it was not."""
        clock = time.time() - time.monotonic()
        jump, self._clock = clock - self._clock, clock
        return jump if abs(jump) > _JUMP else 0.0


def check_origin(entry: Entry, intent: Intent) -> None:
    """`BatchConflict` if a batch that is there was loaded by somebody else."""
    if entry.origin is not None and intent.origin is not None and entry.origin != intent.origin:
        raise BatchConflict(
            f"{intent.of} was loaded at {entry.committed_at.isoformat(timespec='seconds')} by another query "
            f"({entry.origin}): the checkpoint is not the one that this flow began with. Use that checkpoint again, or "
            "give the flow another name"
        )
