"""Join operators in a process of their own: `python -m millstream.bench.operator CASE`, all in JSON (`apart.py`)."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from ..joins import Operator
    from ..stats import JoinStats
    from ..workloads import Workload
    from .profile import Clock

BATCH_ROWS = 16_384
LONGER = 3.0  # a window may last this much longer to end behind a pass


@dataclass(frozen=True)
class Case:
    """What to measure: an operator on a master with a budget, and a stream."""

    algorithm: str
    workload: str
    master: str
    budget: float  # share of the bytes of R
    keys: int
    exponent: float = 1.0
    placement: str = "scattered"
    multiplicity: int = 1
    absent: float = 0.0
    drift: float = 0.0
    warm_up: float = 5.0  # seconds of work before the window
    window: float = 5.0  # seconds of work
    profile: float = 0.0  # seconds of work that are profiled after the window
    direct: bool = True
    core: int | None = None
    memory: int | None = None  # bytes, instead of a share of R
    disk_buffer: int | None = None  # bytes, for operators that have one
    windows: int = 1  # of which the fastest counts

    @property
    def name(self) -> str:
        return f"{self.algorithm}, {self.workload}, {self.budget:.0%}"


@dataclass(frozen=True)
class Measured:
    """What happened in the window. Rates are in stream tuples a second.

    `trend` is the rate of the window's second half over that of the first: 1 if the operator was warm. An operator that
    works in passes has none, because its halves cannot be compared.
    """

    rate: float
    trend: float | None
    tuples: int
    seconds: float
    hit_rate: float
    reads_per_1000: float
    bytes_per_tuple: float
    warm_up_tuples: int
    warm_up_seconds: float
    memory_peak: int
    memory_budget: int
    profile: dict[str, float]


def serve_turns(cases: Sequence[Case], asked: Iterable[str]) -> Iterator[list[float]]:
    """Warm several operators up; each line that comes then has the places of those to run for a window each: their
    rates, which whatever else goes on on the machine has slowed down alike.
    """
    _pin(cases[0].core)
    drives = [_drive(case)[0] for case in cases]
    for case, drive in zip(cases, drives, strict=True):
        drive.warm_up(case.warm_up)
    for line in asked:
        ran = [drives[place].run(cases[place].window) for place in json.loads(line)]
        yield [left / took for left, took, _ in ran]
    for drive in drives:
        drive.operator.close()


def _drive(case: Case) -> tuple[_Drive, int]:
    """What feeds the operator of a case, and its memory."""
    from ..joins import create
    from ..master import Master
    from ..workloads import Workload

    master = Master.open(case.master, direct=case.direct)
    workload = Workload(
        keys=case.keys,
        exponent=case.exponent,
        placement=case.placement,  # type: ignore[arg-type]
        multiplicity=case.multiplicity,
        absent=case.absent,
        drift=case.drift,
    )
    memory = case.memory or int(master.statistics.bytes * case.budget)
    options: dict[str, Any] = {"disk_buffer": case.disk_buffer} if case.disk_buffer else {}
    operator = create(case.algorithm, master, on=workload.on, memory=memory, **options)
    return _Drive(operator, _endless(workload)), memory


def measure(case: Case) -> Measured:
    """Run one operator: warm-up, then a window in which the tuples that leave it are counted, then a profile."""
    _pin(case.core)
    from .profile import Clock, instrumented

    drive, memory = _drive(case)
    drive.warm_up(case.warm_up)
    warm_tuples, warm_seconds = drive.resolved, drive.seconds
    fastest: tuple[JoinStats, int, float, float | None, JoinStats] | None = None
    for _ in range(case.windows):
        started = replace(drive.operator.stats)
        left, took, change = drive.run(case.window)
        if fastest is None or left / took > fastest[1] / fastest[2]:
            fastest = started, left, took, change, replace(drive.operator.stats)
    assert fastest is not None
    before, tuples, seconds, trend, after = fastest
    measured = Measured(
        rate=tuples / seconds,
        trend=trend,
        tuples=tuples,
        seconds=seconds,
        hit_rate=(after.cache_hits - before.cache_hits) / max(1, after.rows_in - before.rows_in),
        reads_per_1000=1000 * (after.disk_reads - before.disk_reads) / tuples,
        bytes_per_tuple=(after.bytes_read - before.bytes_read) / tuples,
        warm_up_tuples=warm_tuples,
        warm_up_seconds=warm_seconds,
        memory_peak=after.memory_peak,
        memory_budget=memory,
        profile={},
    )
    if case.profile:
        clock = Clock()
        with instrumented(clock):
            drive.run(case.profile, clock)
        measured = replace(measured, profile=clock.shares())
    drive.operator.close()
    return measured


def _pin(core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})


def _endless(workload: Workload) -> Iterator[pa.RecordBatch]:
    return workload.stream(1 << 40, batch_rows=BATCH_ROWS)


class _Drive:
    """Feeds an operator; counts the tuples that it has resolved and its seconds, without those of making the stream."""

    def __init__(self, operator: Operator, stream: Iterator[pa.RecordBatch]) -> None:
        from ..joins.ameshjoin import AdaptiveMeshJoin
        from ..joins.auto import AutoJoin

        self.operator = operator
        self.stream = stream
        self.seconds = 0.0
        self._begun: float | None = None
        # it collects rows and resolves them all at once: a window must not end in between
        self._leaves_all = isinstance(operator, AutoJoin)
        if isinstance(operator, AdaptiveMeshJoin):
            operator.seconds = self._clock  # rows are there whenever it asks for them

    def _clock(self) -> float:
        """Seconds of work up to now."""
        return self.seconds + (time.perf_counter() - self._begun if self._begun is not None else 0.0)

    @property
    def resolved(self) -> int:
        return self.operator.stats.matched + self.operator.stats.unmatched

    @property
    def held(self) -> int:
        return self.operator.stats.rows_in - self.resolved

    def warm_up(self, seconds: float) -> None:
        """Run until the operator works as it always will: it has had its time, and it is so full that it must read."""
        while self.seconds < seconds or (not self.operator.stats.disk_reads and self.seconds < LONGER * seconds):
            self._feed()
        self._even(self.seconds + LONGER * seconds)

    def run(self, seconds: float, clock: Clock | None = None) -> tuple[int, float, float | None]:
        """Run for some seconds of work; tuples that left, seconds of work, and the trend."""
        tuples, begun = self.resolved, self.seconds
        middle: tuple[int, float] | None = None
        while self.seconds - begun < seconds:
            self._feed(clock)
            if middle is None and self.seconds - begun >= seconds / 2:
                middle = self.resolved - tuples, self.seconds - begun
        self._even(begun + LONGER * seconds, clock)
        left, took = self.resolved - tuples, self.seconds - begun
        if self._leaves_all or middle is None or middle[1] >= took or not middle[0]:
            return left, took, None
        return left, took, (left - middle[0]) / (took - middle[1]) / (middle[0] / middle[1])

    def _even(self, latest: float, clock: Clock | None = None) -> None:
        """Let an operator that works in passes come to the end of one, or flush it if that takes too long.

        Behind a pass about as many rows wait as behind the one before.
        """
        if not self._leaves_all:
            return
        passes = self.operator.stats.iterations
        while passes == self.operator.stats.iterations and self.held:
            if self.seconds >= latest:
                self._work(self.operator.flush(), clock)
                return
            self._feed(clock)

    def _feed(self, clock: Clock | None = None) -> None:
        batch = next(self.stream)
        self._work(self.operator.process(batch), clock)

    def _work(self, results: Iterator[pa.RecordBatch], clock: Clock | None) -> None:
        begun = self._begun = time.perf_counter()
        if clock is None:
            for _ in results:
                pass
        else:
            with clock.running():
                for _ in results:
                    pass
        self.seconds += time.perf_counter() - begun
        self._begun = None


def main() -> None:
    """Measure the case given as JSON, or several by turns as standard input asks for them; a line of JSON for each."""
    given = json.loads(sys.argv[1])
    if isinstance(given, list):
        for rates in serve_turns([Case(**case) for case in given], sys.stdin):
            print(json.dumps(rates), flush=True)
    else:
        print(json.dumps(asdict(measure(Case(**given)))))


if __name__ == "__main__":
    main()
