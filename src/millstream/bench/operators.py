"""The join operators without Spark: service rates over workloads and budgets, and where the time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import harmonic_mean, median
from typing import Any

from ..joins import ALGORITHMS, SCANS, least_memory
from ..master import Master
from ..workloads import NAMED, Workload
from .apart import ByTurns, measure_apart
from .data import Data
from .operator import Case, Measured
from .profile import KINDS
from .report import Check, Section, Table

ORDER = ("inlj", "hybridjoin", "xhybridjoin", "cachejoin", "moij", "auto")  # as the papers lead us to expect
BY_FREQUENCY = "R by frequency"
SORTED = ("xhybridjoin", "auto")  # that are also run on a master in that order, the premise of X-HYBRIDJOIN
WORKLOADS = {
    "uniform": "zipf0",
    "Zipf 0.5": "zipf05",
    "Zipf 1": "zipf1",
    "Zipf 1.5": "zipf15",
    "90 % absent": "absent90",
    "drifting": "drifting",
    "many-to-many": "many-to-many",
}
MAIN = "Zipf 1"
SKEWS = ("uniform", "Zipf 0.5", "Zipf 1", "Zipf 1.5")
BUDGETS = {0.1: tuple(WORKLOADS), 0.01: ("uniform", "Zipf 1")}
QUICK_BUDGETS = {0.1: ("uniform", "Zipf 1", "90 % absent", "many-to-many")}
SLOW = 2.5  # with a small budget it takes that much longer until a turn of R has been seen
EQUAL = 0.95  # rates this close to each other are taken as equal: it is what two runs of the same operator differ by
CLOSE = 1.15  # times another rate at most: one run each does not tell which is faster
RACE_TURNS = 8  # each has two windows in a turn, before and behind those of the other
RACE_WINDOW = 1 / 6  # of the window of a case

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Effort:
    """How long the operators run. Seconds of work; the main case is given more than the others."""

    warm_up: float = 4.0
    window: float = 3.0
    main_warm_up: float = 15.0
    main_window: float = 12.0
    profile: float = 3.0
    core: int | None = None


QUICK = Effort(warm_up=0.6, window=0.5, main_warm_up=1.5, main_window=1.5, profile=0.5)

Key = tuple[str, str, float]  # operator, workload, budget
Results = dict[Key, Measured]
Races = dict[tuple[Key, str], float]  # of an operator against another, by turns: its rate is so many times the other's


def cases(
    data: Data,
    rows: int,
    effort: Effort,
    *,
    budgets: Mapping[float, Sequence[str]],
    by_frequency: str | None = None,
) -> list[Case]:
    """All that is measured: each operator on the workloads of each budget.

    `by_frequency` is a master in the order of access frequency.
    """
    found = []
    for budget, names in budgets.items():
        for name in names:
            workload = _sized(NAMED[WORKLOADS[name]], rows)
            main = name == MAIN and budget == 0.1
            longer = SLOW if budget < 0.05 else 1.0
            case = Case(
                algorithm="",
                workload=name,
                master=data.master(workload),
                budget=budget,
                keys=workload.keys,
                exponent=workload.exponent,
                placement=workload.placement,
                multiplicity=workload.multiplicity,
                absent=workload.absent,
                drift=workload.drift,
                warm_up=effort.main_warm_up if main else longer * effort.warm_up,
                window=effort.main_window if main else longer * effort.window,
                profile=effort.profile if main else 0.0,
                core=effort.core,
            )
            found += [replace(case, algorithm=algorithm) for algorithm in _ordered() if _enough(case, algorithm)]
            if by_frequency and name in SKEWS[1:]:
                found += [replace(case, algorithm=algorithm, master=by_frequency) for algorithm in SORTED]
    return found


def _enough(case: Case, algorithm: str) -> bool:
    """Whether the budget is one that the operator can work with."""
    master = Master.open(case.master)
    least = least_memory(algorithm, master, on=master.key)
    return int(master.statistics.bytes * case.budget) >= least


def _ordered() -> list[str]:
    others = [name for name in ALGORITHMS if name not in ORDER and name not in SCANS]  # scans have their own benchmark
    return [*(name for name in ORDER if name in ALGORITHMS), *others]


def _sized(workload: Workload, rows: int) -> Workload:
    """The workload over a master with this many rows."""
    return workload.resized(rows // workload.multiplicity)


def run(todo: Sequence[Case], progress: Progress, *, by_frequency: str | None = None) -> tuple[Results, Races]:
    """Measure each case in a process of its own, and by turns those that are too close to tell."""
    results: Results = {}
    known: dict[Key, Case] = {}
    for number, case in enumerate(todo):
        progress(number, len(todo), case.name)
        name = f"{case.algorithm}, {BY_FREQUENCY}" if case.master == by_frequency else case.algorithm
        key = name, case.workload, case.budget
        results[key], known[key] = measure_apart(case), case
    races: Races = {}
    close = list(_close(results))
    for number, (key, rival) in enumerate(close):
        progress(len(todo) + number, len(todo) + len(close), f"{known[key].name}, by turns with {rival}")
        races[key, rival] = _race(known[key], known[rival, key[1], key[2]])
    progress(len(todo) + len(close), len(todo) + len(close), "")
    return results, races


def _rivals(results: Results, key: Key) -> list[str]:
    """The other operators on the same master with the same stream and budget."""
    name, workload, budget = key
    variant = name.removeprefix(name.partition(",")[0])
    return [
        other + variant for other in _ordered() if other != "auto" and (other + variant, workload, budget) in results
    ]


def _close(results: Results) -> Iterator[tuple[Key, str]]:
    """`auto` and whoever is not far behind it; MOIJ and CACHEJOIN."""
    for key, measured in results.items():
        name, workload, budget = key
        if name.startswith("auto"):
            for rival in _rivals(results, key):
                if measured.rate < CLOSE * results[rival, workload, budget].rate:
                    yield key, rival
        if key in (("moij", MAIN, 0.1), ("moij", "uniform", 0.1)) and ("cachejoin", workload, budget) in results:
            yield key, "cachejoin"


def _race(one: Case, other: Case) -> float:
    """How many times the rate of another case one has."""
    both = [replace(case, window=RACE_WINDOW * case.window) for case in (one, other)]
    ratios = []
    with ByTurns(both) as run:
        for _ in range(RACE_TURNS):
            first, second, third, fourth = run.turn(0, 1, 1, 0)
            ratios.append(harmonic_mean((first, fourth)) / harmonic_mean((second, third)))
    return median(ratios)


def section(results: Results, races: Races, *, rows: int, command: str, full: bool) -> Section:
    """The report. Targets that are stated for the full size are judged at the full size only."""
    budgets = sorted({key[2] for key in results}, reverse=True)
    tables = [
        *(_rates(results, budget) for budget in budgets),
        _races(races),
        _counters(results, 0.1),
        _profile(results),
    ]
    raw = {
        "rows": rows,
        "cases": [
            {"operator": name, "workload": workload, "budget": budget, **asdict(measured)}
            for (name, workload, budget), measured in results.items()
        ],
        "races": [
            {"operator": name, "workload": workload, "budget": budget, "against": rival, "ratio": ratio}
            for ((name, workload, budget), rival), ratio in races.items()
        ],
    }
    about = (
        f"R has {rows:,} rows of about 120 bytes, a tuple of S has 20. Each operator runs in a process of its own on "
        "one core and reads with O_DIRECT, so that the page cache has no part in it. It is warmed up; then the tuples "
        "that leave it are counted over a fixed time of work. The budget is a share of the bytes of R. Those that are "
        "within a seventh of `auto` run again, by turns with it in one process."
    )
    return Section(
        name="operators",
        title="Operators",
        about=about,
        checks=checks(results, races, full=full),
        tables=tables,
        raw=raw,
        command=command,
        images=("operators", "where-the-time-goes"),
    )


def checks(results: Results, races: Races, *, full: bool) -> list[Check]:
    """The targets for the operators."""

    def rate(name: str, workload: str = MAIN, budget: float = 0.1) -> float:
        return results[name, workload, budget].rate

    names = [name for name in _ordered() if (name, MAIN, 0.1) in results]
    auto = rate("auto")
    found = [Check("auto, Zipf 1, 10 % of R", f"{auto / 1e6:.2f} M tuples/s", ">= 1 M", auto >= 1e6 if full else None)]
    behind, worst = [], 9.9
    for key, measured in results.items():
        name, workload, budget = key
        if name.startswith("auto"):
            ratio = min(
                races.get((key, rival), measured.rate / rate(rival, workload, budget))
                for rival in _rivals(results, key)
            )
            worst = min(worst, ratio)
            if ratio < EQUAL:
                behind.append(f"{workload} {budget:.0%}{name.removeprefix('auto')} ({ratio:.2f}x)")
    shown = f"behind on {', '.join(behind)}" if behind else f"{worst:.2f}x where it is closest"
    found.append(
        Check("auto against the best of the others", shown, f"not slower anywhere ({EQUAL}x is equal)", not behind)
    )
    order = [name for name in ORDER if name in names]
    wrong = [
        f"{slower} {rate(slower) / rate(faster):.2f}x {faster}"
        for slower, faster in pairwise(order)
        if rate(slower) > rate(faster) / EQUAL
    ]
    expected = " < ".join(order)
    found.append(Check(f"order at Zipf 1: {expected}", "; ".join(wrong) or "as expected", "expected", not wrong))
    at_one, at_zero = (
        races.get((("moij", workload, 0.1), "cachejoin"), rate("moij", workload) / rate("cachejoin", workload))
        for workload in (MAIN, "uniform")
    )
    found.append(Check("moij against cachejoin, Zipf 1", f"{at_one:.2f}x", ">= 1.5x expected", at_one >= 1.5))
    found.append(Check("moij against cachejoin, uniform", f"{at_zero:.2f}x", "equal expected", 0.8 <= at_zero <= 1.25))
    for name in names:
        ratio = rate(name, "90 % absent") / rate(name)
        what = f"{name}: 90 % absent keys against all present"
        found.append(Check(what, f"{ratio:.2f}x", "not slower", ratio >= EQUAL))
    return found


def _rates(results: Results, budget: float) -> Table:
    workloads = [name for name in WORKLOADS if ("auto", name, budget) in results]
    rows = []
    for name in operator_names(results):
        row = [name]
        for workload in workloads:
            measured = results.get((name, workload, budget))
            row.append("" if measured is None else f"{measured.rate / 1000:,.0f}{_unsteady(measured)}")
        rows.append(row)
    note = "`*`: the rate still changed by more than a fifth within the window, so the operator was not yet warm."
    return Table(f"Service rate in 1000 tuples/s, budget {budget:.0%} of R", ("operator", *workloads), rows, note)


def _races(races: Races) -> Table:
    rows = [
        [name, rival, workload, f"{budget:.0%}", f"{ratio:.2f}x"]
        for ((name, workload, budget), rival), ratio in races.items()
    ]
    return Table("By turns in one process", ("operator", "against", "stream", "budget", "rate"), rows)


def _unsteady(measured: Measured) -> str:
    return "*" if measured.trend is not None and not 0.8 < measured.trend < 1.25 else ""


def _counters(results: Results, budget: float) -> Table:
    workloads = [name for name in WORKLOADS if ("auto", name, budget) in results]
    rows = []
    for name in operator_names(results):
        row = [name]
        for workload in workloads:
            measured = results.get((name, workload, budget))
            row.append(
                ""
                if measured is None
                else f"{measured.hit_rate:.0%} / {measured.reads_per_1000:.3g} / {measured.bytes_per_tuple:,.0f}"
            )
        rows.append(row)
    title = f"Cache hits / disk reads for 1000 tuples / bytes read for a tuple, budget {budget:.0%} of R"
    return Table(title, ("operator", *workloads), rows)


def _profile(results: Results) -> Table:
    rows = []
    for name in operator_names(results):
        measured = results.get((name, MAIN, 0.1))
        if measured is not None and measured.profile:
            per_tuple = 1e6 / measured.rate
            shares = [f"{measured.profile[kind] * per_tuple:.2f} ({measured.profile[kind]:.0%})" for kind in KINDS]
            rows.append([name, f"{per_tuple:.2f}", *shares])
    return Table(
        "Where the time goes: µs for a tuple (share), Zipf 1, 10 % of R",
        ("operator", "all", *KINDS),
        rows,
        "*Disk* is waiting for reads; *look-up* is hashing keys, probing tables and searching segments; *waiting rows* "
        "is copying rows into the stream's hash table and moving them together there.",
    )


def operator_names(results: Results) -> list[str]:
    """Operators in the order of the papers, each before its variants."""
    seen: Iterable[Any] = dict.fromkeys(key[0] for key in results)
    order = {name: number for number, name in enumerate(_ordered())}
    return sorted(seen, key=lambda name: (order.get(name.partition(",")[0], 99), name))
