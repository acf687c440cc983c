"""Cost models against measurements: rates over the disk buffer, the default disk buffer, and memory for a rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from .. import tuning
from ..master import Master
from ..tuning.models import Model
from ..units import format_bytes
from ..workloads import Workload
from .data import Data
from .operator import Case
from .operators import measure_apart, rates_by_turns_apart
from .quiet import Quiet
from .scan import sequential_rate

ALGORITHMS = ("meshjoin", "hybridjoin", "xhybridjoin", "cachejoin", "moij")
OTHERS = ("auto", "ssbj", "ameshjoin", "rmeshjoin", "inlj")  # predicted too, but without a target
SKEWS = {"meshjoin": 0.5, "ameshjoin": 0.5, "rmeshjoin": 0.5, "inlj": 0.5}  # as the papers have it; 1 for all others
BUFFERS = (128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
BUDGET = 0.05  # of R, for rates over the disk buffer
BUDGETS = (20_000_000, 40_000_000, 80_000_000, 160_000_000, 320_000_000)
RATED = ("meshjoin", "hybridjoin", "moij")
RATED_MEMORIES = (12_000_000, 20_000_000, 40_000_000)  # whose rates are asked for
ROWS = 3_500_000
SUSTAINED, LESS = 0.9, 0.7  # of a rate that counts as sustained; of the memory planned for it
ROUNDS = 5  # of calibrating and measuring; the median counts
PATIENCE = 900.0  # seconds to wait for the machine to be quiet, and to measure again what it was not quiet for
TURNS = 4  # of settings that are compared: they run by turns in one process,
PROCESSES = 5  # and in another: where its memory lies makes the same setting some percent faster or slower

Say = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """Seconds of work."""

    window: float = 1.6
    turn: float = 0.4  # of settings that run by turns
    turns: int = TURNS
    processes: int = PROCESSES
    longest_warm_up: float = 10.0


class Setting(NamedTuple):
    """What an operator is run with."""

    algorithm: str
    memory: int
    disk_buffer: int


@dataclass(frozen=True)
class Point:
    """A setting with the rate that was predicted for it and the one that was measured."""

    algorithm: str
    memory: int
    disk_buffer: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return abs(self.predicted - self.measured) / self.measured


@dataclass(frozen=True)
class Rated:
    """Memory planned for a rate, the rate measured with it, and what is predicted and measured with less of it: how
    much of the rate with all of it is left, in the middle of several turns.
    """

    algorithm: str
    asked: float
    memory: int
    measured: float
    predicted_less: float
    left: float

    @property
    def share(self) -> float:
        """Of the rate asked for."""
        return self.measured / self.asked

    @property
    def share_with_less(self) -> float:
        """A machine that is faster than when it was calibrated is asked for more."""
        return self.left * min(1.0, self.share)

    @property
    def flat(self) -> bool:
        """Whether the model says itself that less memory is about as good: nothing can then be said with less."""
        return self.predicted_less >= SUSTAINED * self.asked


@dataclass(frozen=True)
class Pair:
    """The default disk buffer and the best one of the model, and in each turn what the default loses against it."""

    default: Point
    best: Point
    losses: list[float]

    @property
    def loss(self) -> float:
        return median(self.losses)


class Bench:
    """Measures on one master, while the machine is `quiet`. Machines that others use are slower for minutes now and
    then: what counts is the median, of the rates predicted with several `calibrations` as of those measured.

    With `direct` every read goes to the disk; otherwise the page cache has all of R, as `ms.join` and `millstream tune`
    read it by default.
    """

    def __init__(self, data: Data, rows: int, effort: Effort, quiet: Quiet, *, direct: bool) -> None:
        self.effort = effort
        self.quiet = quiet
        self.direct = direct
        self.rows = rows
        self.say = data.say
        self.path = data.master(Workload(keys=rows))
        self.master = Master.open(self.path, direct=direct)
        if not direct:
            for part in self.master.manifest.parts:
                with Path(self.master.store.full(part.file)).open("rb") as file:
                    while file.read(8 << 20):
                        pass
        self.calibrations: list[tuning.Factors] = []
        self.disk_rates: list[float] = []  # of plain reads in between, if reads go to the disk

    def calibrate(self) -> None:
        self.quiet.wait()
        self.calibrations.append(
            tuning.calibrate(self.master, progress=lambda done, total, what: self.say(f"calibrating: {what}"))
        )

    def model(self, algorithm: str, factors: tuning.Factors | None = None) -> Model:
        return tuning.model_of(algorithm, self.master, factors or self.factors(algorithm), skew=_skew(algorithm))

    def factors(self, algorithm: str) -> tuning.Factors:
        """Of the calibration that comes in the middle by the algorithm's rate."""
        if len(self.calibrations) == 1:
            return self.calibrations[0]

        def rate(factors: tuning.Factors) -> float:
            return self._plan(algorithm, factors, memory=self.memory).rate

        return sorted(self.calibrations, key=rate)[len(self.calibrations) // 2]

    def _plan(
        self, algorithm: str, factors: tuning.Factors, *, memory: int | None = None, rate: float | None = None
    ) -> tuning.Plan:
        return tuning.plan(algorithm, self.master, factors, memory=memory, rate=rate, skew=_skew(algorithm))

    @property
    def memory(self) -> int:
        """For rates over the disk buffer."""
        return int(BUDGET * self.master.statistics.bytes)

    def _case(self, setting: Setting, window: float) -> tuple[Case, float]:
        """How to run a setting, and the rate that is predicted for it."""
        algorithm, memory, disk_buffer = setting
        found = self.model(algorithm).iteration(memory, disk_buffer)
        turn = found.turn / found.rate  # seconds: hot partitions are read together, once in this time
        case = Case(
            algorithm=algorithm,
            workload=f"Zipf {_skew(algorithm):g}",
            master=self.path,
            budget=memory / self.master.statistics.bytes,
            keys=self.rows,
            exponent=_skew(algorithm),
            warm_up=min(self.effort.longest_warm_up, max(1.0, 2 * turn)),
            window=max(window, turn),
            memory=memory,
            disk_buffer=disk_buffer or None,
            direct=self.direct,
        )
        return case, found.rate

    def measure(self, setting: Setting) -> float:
        """Run one setting: its rate."""
        case, predicted = self._case(setting, self.effort.window)
        if self.direct:
            self.disk_rates.append(sequential_rate(self.master))
        measured = self.quiet.run(lambda: measure_apart(case).rate)
        self._tell(setting, predicted, measured)
        return measured

    def by_turns(self, settings: Sequence[Setting]) -> list[list[float]]:
        """Run some settings by turns: of each turn the rates of all."""
        cases = [self._case(setting, self.effort.turn) for setting in settings]
        rates = []
        for _ in range(self.effort.processes):
            self.quiet.wait()
            rates += rates_by_turns_apart([case for case, _ in cases], self.effort.turns)
        for setting, (_, predicted), found in zip(settings, cases, zip(*rates, strict=True), strict=True):
            self._tell(setting, predicted, median(found))
        return rates

    def _tell(self, setting: Setting, predicted: float, measured: float) -> None:
        algorithm, memory, disk_buffer = setting
        where = f", disk buffer {format_bytes(disk_buffer)}" if disk_buffer else ""
        reads = ", O_DIRECT" if self.direct else ""
        self.say(
            f"{algorithm}, {format_bytes(memory)}{where}{reads}: {predicted:,.0f} predicted, {measured:,.0f} measured"
        )

    def over_buffers(self, algorithm: str, buffers: Sequence[int] = BUFFERS) -> list[Setting]:
        """Disk buffers with a fixed memory."""
        model = self.model(algorithm)
        most = model.largest_buffer(self.memory)
        sizes = sorted({max(model.least_buffer, min(buffer, most)) for buffer in buffers})
        return [Setting(algorithm, self.memory, size) for size in sizes]

    def others(self) -> list[Setting]:
        """The algorithms that have no target, as they set themselves."""
        models = {name: self.model(name) for name in OTHERS}
        return [
            Setting(name, self.memory, model.default_buffer(self.memory) if model.has_buffer else 0)
            for name, model in models.items()
        ]

    def default_and_optimum(self, algorithm: str, memory: int) -> list[Setting]:
        """Default and optimum disk buffer."""
        plan = self._plan(algorithm, self.factors(algorithm), memory=memory)
        assert plan.default_buffer is not None
        return [Setting(algorithm, memory, buffer) for buffer in (plan.default_buffer, plan.parameters["disk_buffer"])]

    def rated(self, algorithm: str, memory: int) -> Rated:
        """Ask for the rate that a memory is predicted to have, and run what the plan says by turns with less memory."""
        factors = self.factors(algorithm)
        asked = self._plan(algorithm, factors, memory=memory).rate
        plan = self._plan(algorithm, factors, rate=asked)
        lesser = self._plan(algorithm, factors, memory=int(LESS * plan.memory))
        settings = [Setting(algorithm, one.memory, one.parameters["disk_buffer"]) for one in (plan, lesser)]
        rates = self.by_turns(settings)
        measured = median(planned for planned, _ in rates)
        left = median(less / planned for planned, less in rates)
        return Rated(algorithm, asked, plan.memory, measured, lesser.rate, left)

    def points(self, settings: Sequence[Setting], rounds: int) -> list[Point]:
        """Measure settings in rounds, each but the first after another calibration."""
        rates = []
        for number in range(rounds):
            if number:
                self.calibrate()
            rates.append([self.measure(setting) for setting in settings])
        return [self._point(setting, median(found)) for setting, *found in zip(settings, *rates, strict=True)]

    def pair(self, algorithm: str, memory: int) -> Pair:
        """Measure default and optimum by turns."""
        both = self.default_and_optimum(algorithm, memory)
        rates = self.by_turns(both)
        losses = [1 - default / best for default, best in rates] if both[0] != both[1] else [0.0]
        default, best = (
            self._point(one, median(found)) for one, found in zip(both, zip(*rates, strict=True), strict=True)
        )
        return Pair(default, best, losses)

    def _point(self, setting: Setting, measured: float) -> Point:
        algorithm, memory, disk_buffer = setting
        models = [self.model(algorithm, factors) for factors in self.calibrations]
        predicted = median(model.iteration(memory, disk_buffer).rate for model in models)
        return Point(*setting, predicted, measured)


@dataclass(frozen=True)
class Results:
    """All that was measured: points over the disk buffer, default and optimum by budget, and memory for rates.

    Through the page cache, and over the disk buffer also with every read `from_disk`.
    """

    over_buffers: list[Point]
    defaults: list[Pair]
    rated: list[Rated]
    others: list[Point]
    from_disk: list[Point]
    disk_rates: list[float]
    quiet: str = ""

    def of(self, algorithm: str) -> list[Point]:
        return points_of(algorithm, self.over_buffers)


def points_of(algorithm: str, points: Sequence[Point]) -> list[Point]:
    return [one for one in points if one.algorithm == algorithm]


def _skew(algorithm: str) -> float:
    return SKEWS.get(algorithm, 1.0)


def run(data: Data, *, rows: int = ROWS, quick: bool = False) -> Results:
    """Measure everything."""
    effort = Effort(window=0.5, turns=1, processes=1, longest_warm_up=2.0) if quick else Effort()
    buffers = BUFFERS[2:6:2] if quick else BUFFERS
    budgets = BUDGETS[:2] if quick else BUDGETS
    rated = RATED[:1] if quick else RATED

    rounds = 1 if quick else ROUNDS

    quiet = Quiet(patience=0.0 if quick else PATIENCE)

    bench = Bench(data, rows, effort, quiet, direct=False)
    bench.calibrate()
    settings = [one for name in ALGORITHMS for one in bench.over_buffers(name, buffers)]
    points = bench.points([*settings, *bench.others()], rounds)
    asked = [(name, memory) for name in rated for memory in (RATED_MEMORIES[:1] if quick else RATED_MEMORIES)]
    sustained = [bench.rated(name, memory) for name, memory in asked]
    defaults = [bench.pair("meshjoin", budget) for budget in budgets]
    disk = Bench(data, rows, effort, quiet, direct=True)
    disk.calibrate()
    over_disk = [one for name in ALGORITHMS for one in disk.over_buffers(name, buffers)]
    from_disk = disk.points(over_disk, 1)
    return Results(
        over_buffers=points[: len(settings)],
        defaults=defaults,
        rated=sustained,
        others=points[len(settings) :],
        from_disk=from_disk,
        disk_rates=disk.disk_rates,
        quiet=str(quiet),
    )
