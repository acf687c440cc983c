"""Cost models against measurements: rates over the disk buffer, the default disk buffer, and memory for a rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import harmonic_mean, median

from .. import tuning
from ..master import Master
from ..tuning.models import Model
from ..tuning.planning import best_buffer
from ..units import format_bytes
from ..workloads import Workload
from .apart import ByTurns, measure_apart
from .data import Data
from .operator import Case
from .quiet import Quiet
from .scan import sequential_rate
from .tuning_results import Asked, Pair, Point, Rated, Results, Setting, Turns, middle, together

ALGORITHMS = ("meshjoin", "hybridjoin", "xhybridjoin", "cachejoin", "moij")
OTHERS = ("auto", "ssbj", "ameshjoin", "rmeshjoin", "inlj")  # predicted too, but without a target
SKEWS = {"meshjoin": 0.5, "ameshjoin": 0.5, "rmeshjoin": 0.5, "inlj": 0.5}  # as the papers have it; 1 for all others
BUFFERS = (128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
BUDGET = 0.05  # of R, for rates over the disk buffer
BUDGETS = (20_000_000, 40_000_000, 80_000_000, 160_000_000, 320_000_000)
RATED = {  # memories whose rates are asked for: with much more the rate hardly depends on the memory
    "meshjoin": (6_000_000, 9_000_000, 12_000_000),
    "hybridjoin": (12_000_000, 20_000_000, 30_000_000),
    "moij": (12_000_000, 20_000_000, 30_000_000),
}
REFERENCE = 16_000_000  # bytes of a join that runs while the machine is calibrated, and beside what is measured
REFERENCE_BUFFER = 1 << 20
REFERENCE_PARTS = 20  # of a calibration from one time that it runs to the next
ROWS = 3_500_000
SUSTAINED, LESS = 0.9, 0.7  # of a rate that counts as sustained; of the memory planned for it
ROUNDS = 3  # of calibrating and measuring, each in processes of its own; the median counts
PATIENCE = 30.0  # seconds to wait for the machine to be quiet, and to measure again what it was not quiet for
TURNS = 6  # in a round, of settings that are compared: they run by turns in one process
PAIR_TURNS = 30  # in a round, of two disk buffers that differ by a few percent, where a turn may be off by ten
PAIR_WINDOW, PAIR_ITERATIONS = 0.1, 16  # seconds and iterations that each of the two runs for at least, twice in a turn


@dataclass(frozen=True)
class Effort:
    """Seconds of work."""

    window: float = 1.6
    turn: float = 0.4  # of settings that run by turns
    turns: int = TURNS
    pair_turns: int = PAIR_TURNS
    longest_warm_up: float = 10.0


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
        self.beside: ByTurns | None = None  # joins of all algorithms that show how fast the machine is
        if not direct:
            cases = (Setting(name, REFERENCE, REFERENCE_BUFFER) for name in ALGORITHMS)
            self.beside = ByTurns([self._timed(case, effort.longest_warm_up / 2, effort.turn) for case in cases])
        self.references: list[float] = []  # their tuples/s when the machine was calibrated
        self.disk_rates: list[float] = []  # of plain reads in between, if reads go to the disk

    def calibrate(self) -> None:
        """Measure the factors, and in between what joins get on the machine as it is."""
        self.quiet.wait()
        seen: list[list[float]] = []

        def progress(done: int, total: int, what: str) -> None:
            self.say(f"calibrating: {what}")
            if self.beside is not None and done % REFERENCE_PARTS == 0:
                seen.append(self._references(range(len(ALGORITHMS))))

        self.factors = tuning.calibrate(self.master, progress=progress)
        self.references = [median(rates) for rates in zip(*seen, strict=True)]
        self.say(f"references: {', '.join(f'{rate:,.0f}' for rate in self.references)}")

    def _references(self, places: Iterable[int]) -> list[float]:
        """What the joins at these places get on the machine as it is now."""
        assert self.beside is not None
        _, *rates = self.beside.turn(0, *places)  # a process that has slept is slower at first
        return rates

    def close(self) -> None:
        if self.beside is not None:
            self.beside.close()

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
        warm_up = min(self.effort.longest_warm_up, max(1.0, 2 * turn))
        return self._timed(setting, warm_up, max(window, turn)), found.rate

    def _timed(self, setting: Setting, warm_up: float, window: float) -> Case:
        algorithm, memory, disk_buffer = setting
        return Case(
            algorithm=algorithm,
            workload=f"Zipf {_skew(algorithm):g}",
            master=self.path,
            budget=memory / self.master.statistics.bytes,
            keys=self.rows,
            exponent=_skew(algorithm),
            warm_up=warm_up,
            window=window,
            memory=memory,
            disk_buffer=disk_buffer or None,
            direct=self.direct,
        )

    def measure(self, setting: Setting) -> Point:
        """Run one setting."""
        case, predicted = self._case(setting, self.effort.window)
        if self.direct:
            self.disk_rates.append(sequential_rate(self.master))
        measured = self.quiet.run(lambda: measure_apart(case).rate)
        self._tell(setting, predicted, measured)
        return Point(*setting, [(predicted, measured)])

    def by_turns(self, settings: Sequence[Setting]) -> Turns:
        """Run settings of an algorithm by turns, and a join beside them that ran while the machine was calibrated.

        Every other turn goes backwards: none of them always comes right after the same.
        """
        place = ALGORITHMS.index(settings[0].algorithm)
        cases = [self._case(setting, self.effort.turn) for setting in settings]
        rates, speeds = [], []
        order = range(len(cases))
        self.quiet.wait()
        with ByTurns([case for case, _ in cases]) as run:
            for _ in range(self.effort.turns):
                found = dict(zip(order, run.turn(*order), strict=True))
                rates.append([found[number] for number in range(len(cases))])
                speeds.append(self._references([place])[0] / self.references[place])
                order = order[::-1]
        self.say(f"the machine is {median(speeds):.0%} as fast as when it was calibrated")
        for setting, (_, predicted), *measured in zip(settings, cases, *rates, strict=True):
            self._tell(setting, predicted, median(measured))
        return Turns(rates, speeds)

    def points(self, settings: Sequence[Setting], turns: Turns) -> list[Point]:
        """What is predicted for settings and what was measured by turns, on the machine as it was when calibrated."""
        predicted = [self._case(setting, self.effort.turn)[1] for setting in settings]
        return [Point(*one, [(predicted[place], turns.rate(place))]) for place, one in enumerate(settings)]

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
        turns = self.by_turns(settings)
        return Asked(asked, plan.memory, turns.rate(0), turns.share(1, of=0))

    def pair(self, algorithm: str, memory: int) -> Pair:
        """Measure the default and the optimum disk buffer by turns, each before and behind the other."""
        model = self.model(algorithm)
        sizes = model.default_buffer(memory), best_buffer(model, memory)
        default, best = (Setting(algorithm, memory, size) for size in sizes)
        found = Pair(default, best, [])
        window = PAIR_WINDOW
        for size in sizes:
            iteration = model.iteration(memory, size)
            window = max(window, PAIR_ITERATIONS * iteration.tuples / iteration.rate)
        cases = [replace(self._case(one, 0.0)[0], window=window) for one in (default, best)]
        self.quiet.wait()
        with ByTurns(cases) as run:
            for _ in range(self.effort.pair_turns):
                first, second, third, fourth = run.turn(0, 1, 1, 0)
                found.rates.append((harmonic_mean((first, fourth)), harmonic_mean((second, third))))
        self.say(
            f"{algorithm}, {format_bytes(memory)}: {found.default_rate:,.0f} with a disk buffer of "
            f"{format_bytes(sizes[0])}, {found.best_rate:,.0f} with {format_bytes(sizes[1])}, loss {found.loss:.1%}"
        )
        return found


def _skew(algorithm: str) -> float:
    return SKEWS.get(algorithm, 1.0)


def run(data: Data, *, rows: int = ROWS, quick: bool = False) -> Results:
    """Measure everything, in rounds that begin with a calibration."""
    effort = Effort(window=0.5, turns=1, pair_turns=1, longest_warm_up=2.0) if quick else Effort()
    buffers = BUFFERS[2:6:2] if quick else BUFFERS
    budgets = BUDGETS[:2] if quick else BUDGETS
    asked = [(name, memory) for name, memories in RATED.items() for memory in memories][: 1 if quick else None]
    quiet = Quiet(patience=0.0 if quick else PATIENCE)

    bench = Bench(data, rows, effort, quiet, direct=False)
    points: list[list[Point]] = []
    others: list[list[Point]] = []
    rated: list[list[Asked]] = []
    pairs: list[list[Pair]] = []
    for _ in range(1 if quick else ROUNDS):
        bench.calibrate()
        over_buffers = [bench.over_buffers(name, buffers) for name in ALGORITHMS]
        points.append([point for one in over_buffers for point in bench.points(one, bench.by_turns(one))])
        rated.append([bench.rated(*one) for one in asked])
        others.append([bench.measure(setting) for setting in bench.others()])
        pairs.append([bench.pair("meshjoin", budget) for budget in budgets])
    bench.close()
    disk = Bench(data, rows, effort, quiet, direct=True)
    disk.calibrate()
    from_disk = [disk.measure(one) for name in ALGORITHMS for one in disk.over_buffers(name, buffers)]
    return Results(
        over_buffers=[together(found) for found in zip(*points, strict=True)],
        defaults=[
            Pair(
                middle([one.default for one in found]),
                middle([one.best for one in found]),
                [rates for one in found for rates in one.rates],
            )
            for found in zip(*pairs, strict=True)
        ],
        rated=[Rated(name, list(found)) for (name, _), found in zip(asked, zip(*rated, strict=True), strict=True)],
        others=[together(found) for found in zip(*others, strict=True)],
        from_disk=from_disk,
        disk_rates=disk.disk_rates,
        quiet=str(quiet),
    )
