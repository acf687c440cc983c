"""Cost models against measurements: rates over the disk buffer, the default disk buffer, and memory for a rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, median_low
from typing import NamedTuple

from .. import tuning
from ..master import Master
from ..tuning.models import Model
from ..tuning.planning import best_buffer
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
REFERENCE = 16_000_000  # bytes of a join that runs when the machine is calibrated, and beside what is measured
ROWS = 3_500_000
SUSTAINED, LESS = 0.9, 0.7  # of a rate that counts as sustained; of the memory planned for it
ROUNDS = 3  # of calibrating and measuring, each in processes of its own; the median counts
PATIENCE = 300.0  # seconds to wait for the machine to be quiet, and to measure again what it was not quiet for
TURNS = 4  # in a round, of settings that are compared: they run by turns in one process

Say = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """Seconds of work."""

    window: float = 1.6
    turn: float = 0.4  # of settings that run by turns
    turns: int = TURNS
    longest_warm_up: float = 10.0


class Setting(NamedTuple):
    """What an operator is run with."""

    algorithm: str
    memory: int
    disk_buffer: int


@dataclass(frozen=True)
class Point:
    """A setting, and of each round the rate that was predicted for it and the one that was measured right after.

    Machines that others use are slower for minutes now and then, the calibration of a round as its measurements: the
    error is that of the median round.
    """

    algorithm: str
    memory: int
    disk_buffer: int
    rates: list[tuple[float, float]]

    @property
    def predicted(self) -> float:
        return median(predicted for predicted, _ in self.rates)

    @property
    def measured(self) -> float:
        return median(measured for _, measured in self.rates)

    @property
    def ratio(self) -> float:
        """Of what was predicted to what was measured."""
        return median(predicted / measured for predicted, measured in self.rates)

    @property
    def error(self) -> float:
        return abs(self.ratio - 1)


@dataclass(frozen=True)
class Asked:
    """Memory planned for a rate, the rate measured with it, what is predicted with less of it, and how much of the
    measured rate is left then, in the middle of several turns.

    The rate is that of the machine as it was when it was calibrated, by what a join gets then and now.
    """

    rate: float
    memory: int
    measured: float
    predicted_less: float
    left: float


@dataclass(frozen=True)
class Rated:
    """What was asked for in each round, with the calibration of that round."""

    algorithm: str
    rounds: list[Asked]

    @property
    def asked(self) -> float:
        return median(one.rate for one in self.rounds)

    @property
    def memory(self) -> float:
        return median(one.memory for one in self.rounds)

    @property
    def share(self) -> float:
        """Of the rate asked for."""
        return median(one.measured / one.rate for one in self.rounds)

    @property
    def share_with_less(self) -> float:
        """A machine that is faster than when it was calibrated is asked for more."""
        return median(one.left for one in self.rounds) * min(1.0, self.share)

    @property
    def share_predicted_with_less(self) -> float:
        return median(one.predicted_less / one.rate for one in self.rounds)

    @property
    def flat(self) -> bool:
        """Whether the model says itself that less memory is about as good: nothing can then be said with less."""
        return self.share_predicted_with_less >= SUSTAINED


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
    """Measures on one master, while the machine is `quiet`, with the models of the last calibration.

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
        self.factors: tuning.Factors | None = None
        self.references: dict[str, float] = {}  # tuples/s of a join when the machine was calibrated
        self.disk_rates: list[float] = []  # of plain reads in between, if reads go to the disk

    def calibrate(self) -> None:
        """Measure the factors, and beside them what joins get on the machine as it is."""
        self.quiet.wait()
        before = self._run_references()
        self.factors = tuning.calibrate(
            self.master, progress=lambda done, total, what: self.say(f"calibrating: {what}")
        )
        after = self._run_references()
        self.references = {name: median([*before.get(name, []), *rates]) for name, rates in after.items()}

    def _reference(self, algorithm: str) -> Setting:
        return Setting(algorithm, REFERENCE, self.model(algorithm).default_buffer(REFERENCE))

    def _run_references(self) -> dict[str, list[float]]:
        """What they get now; nothing before the first calibration, which says how long to warm them up."""
        if self.direct or self.factors is None:
            return {}
        cases = [self._case(self._reference(name), self.effort.turn)[0] for name in ALGORITHMS]
        rates = rates_by_turns_apart(cases, self.effort.turns)
        return {name: [turn[place] for turn in rates] for place, name in enumerate(ALGORITHMS)}

    def model(self, algorithm: str) -> Model:
        return tuning.model_of(algorithm, self.master, self.factors, skew=_skew(algorithm))

    def _plan(self, algorithm: str, *, memory: int | None = None, rate: float | None = None) -> tuning.Plan:
        return tuning.plan(algorithm, self.master, self.factors, memory=memory, rate=rate, skew=_skew(algorithm))

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

    def measure(self, setting: Setting) -> Point:
        """Run one setting."""
        case, predicted = self._case(setting, self.effort.window)
        if self.direct:
            self.disk_rates.append(sequential_rate(self.master))
        measured = self.quiet.run(lambda: measure_apart(case).rate)
        self._tell(setting, predicted, measured)
        return Point(*setting, [(predicted, measured)])

    def by_turns(self, settings: Sequence[Setting]) -> tuple[list[Point], list[list[float]]]:
        """Run some settings by turns, and of each turn the rates of all."""
        cases = [self._case(setting, self.effort.turn) for setting in settings]
        self.quiet.wait()
        rates = rates_by_turns_apart([case for case, _ in cases], self.effort.turns)
        points = []
        for setting, (_, predicted), found in zip(settings, cases, zip(*rates, strict=True), strict=True):
            self._tell(setting, predicted, median(found))
            points.append(Point(*setting, [(predicted, median(found))]))
        return points, rates

    def beside_reference(self, settings: Sequence[Setting]) -> tuple[list[float], list[list[float]]]:
        """Run settings of an algorithm by turns with a join that also ran when the machine was calibrated: their rates
        on the machine as it was then, and of each turn the rates of all as they were.
        """
        algorithm = settings[0].algorithm
        _, rates = self.by_turns([*settings, self._reference(algorithm)])
        then = self.references[algorithm]
        return [then * median(turn[place] / turn[-1] for turn in rates) for place in range(len(settings))], rates

    def points(self, algorithm: str, buffers: Sequence[int]) -> list[Point]:
        """Rates over the disk buffer, on the machine as it was when it was calibrated."""
        settings = self.over_buffers(algorithm, buffers)
        measured, _ = self.beside_reference(settings)
        model = self.model(algorithm)
        predicted = [model.iteration(one.memory, one.disk_buffer).rate for one in settings]
        return [
            Point(*one, [rates]) for one, rates in zip(settings, zip(predicted, measured, strict=True), strict=True)
        ]

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

    def rated(self, algorithm: str, memory: int) -> Asked:
        """Ask for the rate that a memory is predicted to have, and run what the plan says by turns with less memory."""
        asked = self._plan(algorithm, memory=memory).rate
        plan = self._plan(algorithm, rate=asked)
        lesser = self._plan(algorithm, memory=int(LESS * plan.memory))
        settings = [Setting(algorithm, one.memory, one.parameters["disk_buffer"]) for one in (plan, lesser)]
        (measured, _), rates = self.beside_reference(settings)
        left = median(less / planned for planned, less, _ in rates)
        return Asked(asked, plan.memory, measured, lesser.rate, left)

    def pair(self, algorithm: str, memory: int) -> Pair:
        """Measure the default and the optimum disk buffer by turns."""
        model = self.model(algorithm)
        sizes = model.default_buffer(memory), best_buffer(model, memory)
        both = [Setting(algorithm, memory, size) for size in sizes]
        (default, best), rates = self.by_turns(both)
        losses = [1 - default / best for default, best in rates] if both[0] != both[1] else [0.0]
        return Pair(default, best, losses)


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


def _together(points: Sequence[Point]) -> Point:
    """All rounds of a setting; its disk buffer is that of the middle one, if the model had another in each."""
    first = points[0]
    buffer = median_low([one.disk_buffer for one in points])
    return Point(first.algorithm, first.memory, buffer, [rates for one in points for rates in one.rates])


def run(data: Data, *, rows: int = ROWS, quick: bool = False) -> Results:
    """Measure everything, in rounds that begin with a calibration."""
    effort = Effort(window=0.5, turns=1, longest_warm_up=2.0) if quick else Effort()
    buffers = BUFFERS[2:6:2] if quick else BUFFERS
    budgets = BUDGETS[:2] if quick else BUDGETS
    asked = [(name, memory) for name in RATED for memory in RATED_MEMORIES][: 1 if quick else None]
    quiet = Quiet(patience=0.0 if quick else PATIENCE)

    bench = Bench(data, rows, effort, quiet, direct=False)
    points: list[list[Point]] = []
    others: list[list[Point]] = []
    rated: list[list[Asked]] = []
    pairs: list[list[Pair]] = []
    for _ in range(1 if quick else ROUNDS):
        bench.calibrate()
        points.append([point for name in ALGORITHMS for point in bench.points(name, buffers)])
        rated.append([bench.rated(*one) for one in asked])
        others.append([bench.measure(setting) for setting in bench.others()])
        pairs.append([bench.pair("meshjoin", budget) for budget in budgets])
    disk = Bench(data, rows, effort, quiet, direct=True)
    disk.calibrate()
    from_disk = [disk.measure(one) for name in ALGORITHMS for one in disk.over_buffers(name, buffers)]
    return Results(
        over_buffers=[_together(found) for found in zip(*points, strict=True)],
        defaults=[
            Pair(
                _together([one.default for one in found]),
                _together([one.best for one in found]),
                [loss for one in found for loss in one.losses],
            )
            for found in zip(*pairs, strict=True)
        ],
        rated=[Rated(name, list(found)) for (name, _), found in zip(asked, zip(*rated, strict=True), strict=True)],
        others=[_together(found) for found in zip(*others, strict=True)],
        from_disk=from_disk,
        disk_rates=disk.disk_rates,
        quiet=str(quiet),
    )
