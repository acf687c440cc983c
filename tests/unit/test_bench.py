"""The benchmarks' own parts: what they count, what they judge, what they write."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream import joins
from millstream.bench import operators, report
from millstream.bench.apart import ByTurns, measure_apart
from millstream.bench.data import Data, write_sales
from millstream.bench.operator import Case, Measured, measure
from millstream.bench.profile import KINDS, TARGETS, Clock, instrumented
from millstream.bench.report import Check, Section, Table, replaced
from millstream.bench.tuning_results import Pair, Setting, Turns
from millstream.workloads import Workload


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return Data(tmp_path_factory.mktemp("bench"))


# -- data ----------------------------------------------------------------------------------------------------------


def test_a_master_is_made_once(data: Data) -> None:
    workload = Workload(keys=2_000)
    said: list[str] = []
    noisy = Data(data.folder, said.append)
    assert noisy.master(workload) == noisy.master(workload)
    assert len(said) <= 1


def test_products_and_sales_are_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Iterator[pa.RecordBatch]:
        raise OSError("disk full")

    monkeypatch.setattr("millstream.bench.data.product_batches", fail)
    with pytest.raises(OSError, match="disk full"):
        Data(tmp_path).products(10, key="int")
    assert list(tmp_path.iterdir()) == []


def test_parts_of_a_stream_follow_each_other(tmp_path: Path) -> None:
    workload = Workload(keys=500)
    whole = workload.stream_table(400)
    parts = [
        write_sales(tmp_path / str(skip), workload, batches=2, batch_rows=100, files=2, skip=skip) for skip in (0, 200)
    ]
    files = [file for part in parts for file in sorted(part.iterdir(), key=lambda file: file.stat().st_mtime)]
    assert [pq.read_metadata(file).num_rows for file in files] == [50] * 8
    assert pa.concat_tables([pq.read_table(file) for file in files]).equals(whole)


# -- one operator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_an_operator_is_measured(data: Data, algorithm: str) -> None:
    workload = Workload(keys=20_000)
    case = Case(
        algorithm=algorithm,
        workload="Zipf 1",
        master=data.master(workload),
        budget=0.5,
        keys=workload.keys,
        warm_up=0.02,
        window=0.05,
        profile=0.02,
        direct=False,
    )
    measured = measure(case)
    assert measured.rate == pytest.approx(measured.tuples / measured.seconds)
    assert measured.tuples > 0
    assert measured.seconds >= 0.05
    assert 0 <= measured.hit_rate <= 1
    assert 0 < measured.memory_peak <= measured.memory_budget
    assert set(measured.profile) == set(KINDS)
    assert sum(measured.profile.values()) == pytest.approx(1.0)
    assert Measured(**json.loads(json.dumps(measured.__dict__))) == measured


def test_a_process_that_fails_is_named(data: Data) -> None:
    case = Case(algorithm="grind", workload="Zipf 1", master=data.master(Workload(keys=2_000)), budget=0.1, keys=2_000)
    with pytest.raises(Exception, match=r"measuring grind, Zipf 1, 10% failed: .*grind"):
        measure_apart(case)


def test_operators_run_by_turns_as_they_are_asked(data: Data) -> None:
    workload = Workload(keys=2_000)
    case = Case(
        algorithm="meshjoin",
        workload="uniform",
        master=data.master(workload),
        budget=1.0,
        keys=2_000,
        exponent=0.0,
        warm_up=0.0,
        window=0.05,
        direct=False,
        memory=4_000_000,
    )
    with ByTurns([case, replace(case, algorithm="hybridjoin")]) as run:
        assert len(run.turn()) == 2
        assert len(run.turn(1)) == 1
        assert min(*run.turn(1, 0, 1)) > 0


def test_an_operator_that_fails_among_others_is_named(data: Data) -> None:
    case = Case(algorithm="grind", workload="Zipf 1", master=data.master(Workload(keys=2_000)), budget=0.1, keys=2_000)
    with pytest.raises(Exception, match=r"measuring grind, Zipf 1, 10% failed: .*grind"), ByTurns([case]) as run:
        run.turn()


def test_rates_by_turns_are_those_of_the_machine_as_it_was() -> None:
    turns = Turns(rates=[[100.0, 50.0], [300.0, 60.0], [150.0, 90.0]], speeds=[0.5, 2.0, 1.0])
    assert turns.rate(0) == 150
    assert turns.rate(1) == 90
    assert turns.share(1, of=0) == 0.5


def test_the_default_buffer_is_compared_turn_by_turn() -> None:
    default, best = Setting("meshjoin", 20_000_000, 1 << 20), Setting("meshjoin", 20_000_000, 2 << 20)
    rates = [(90.0, 100.0), (40.0, 50.0), (300.0, 310.0)]  # the machine was slow and fast
    assert Pair(default, best, rates).loss == pytest.approx(0.1)
    assert Pair(default, best, rates).best_rate == 100
    assert Pair(default, default, rates).loss == 0


# -- the profile ---------------------------------------------------------------------------------------------------


def test_time_is_counted_once() -> None:
    clock = Clock()
    with clock.running():
        clock.enter("disk")
        time.sleep(0.02)
        clock.enter("look-up")
        time.sleep(0.03)
        clock.leave()
        clock.leave()
    time.sleep(0.05)  # outside
    assert clock.seconds["disk"] == pytest.approx(0.02, abs=0.015)
    assert clock.seconds["look-up"] == pytest.approx(0.03, abs=0.015)
    assert sum(clock.seconds.values()) < 0.1


def test_copying_into_the_cache_is_not_output() -> None:
    clock = Clock()
    with clock.running():
        clock.enter("cache upkeep")
        clock.enter("gather and output")
        time.sleep(0.01)
        clock.leave()
        clock.leave()
    assert clock.seconds["gather and output"] == 0
    assert clock.seconds["cache upkeep"] >= 0.01


def test_instruments_are_taken_away_again() -> None:
    before = [getattr(owner, name) for _, owner, names in TARGETS for name in names]
    with instrumented(Clock()):
        assert all(
            getattr(owner, name) is not old
            for (owner, name), old in zip(
                ((owner, name) for _, owner, names in TARGETS for name in names), before, strict=True
            )
        )
    assert [getattr(owner, name) for _, owner, names in TARGETS for name in names] == before


# -- verdicts ------------------------------------------------------------------------------------------------------


def made(rate: float, **changes: object) -> Measured:
    values = {
        "rate": rate,
        "trend": 1.0,
        "tuples": 1000,
        "seconds": 1000 / rate,
        "hit_rate": 0.5,
        "reads_per_1000": 1.0,
        "bytes_per_tuple": 100.0,
        "warm_up_tuples": 10,
        "warm_up_seconds": 1.0,
        "memory_peak": 1,
        "memory_budget": 2,
        "profile": dict.fromkeys(KINDS, 1 / len(KINDS)),
        **changes,
    }
    return Measured(**values)  # type: ignore[arg-type]


def as_expected() -> operators.Results:
    """Rates in the order of the papers, all workloads alike."""
    rates = {name: 1e5 * 2**number for number, name in enumerate(operators.ORDER)}
    return {
        (name, workload, 0.1): made(rates["cachejoin"] if (name, workload) == ("moij", "uniform") else rate)
        for name, rate in rates.items()
        for workload in operators.WORKLOADS
    }


def test_all_targets_met() -> None:
    assert {check.verdict for check in operators.checks(as_expected(), {}, full=True)} == {"PASS"}


def test_a_target_of_the_full_size_is_not_judged_at_another() -> None:
    first = operators.checks(as_expected(), {}, full=False)[0]
    assert first.passed is None
    assert first.verdict == "-"


def test_misses_are_named() -> None:
    results = as_expected()
    results["auto", "drifting", 0.1] = made(1e5)
    results["hybridjoin", "Zipf 1", 0.1] = made(9e5)
    results["auto", "90 % absent", 0.1] = made(1e6)
    races: operators.Races = {(("auto", "uniform", 0.1), "moij"): 0.9}
    failed = {check.what: check.found for check in operators.checks(results, races, full=True) if check.passed is False}
    assert "drifting 10% (0.06x)" in failed["auto against the best of the others"]
    assert "uniform 10% (0.90x)" in failed["auto against the best of the others"]
    assert "hybridjoin 2.25x xhybridjoin" in next(found for what, found in failed.items() if what.startswith("order"))
    assert failed["auto: 90 % absent keys against all present"] == "0.31x"


def test_those_that_are_close_run_by_turns(data: Data) -> None:
    case = Case(
        algorithm="auto",
        workload="uniform",
        master=data.master(Workload(keys=2_000)),
        budget=20.0,
        keys=2_000,
        exponent=0.0,
        warm_up=0.0,
        window=0.05,
        direct=False,
    )
    _, races = operators.run([replace(case, algorithm=name) for name in ("auto", "moij", "inlj")], lambda *_: None)
    assert {(name, rival) for ((name, _, _), rival) in races} <= {("auto", "moij"), ("auto", "inlj")}
    results = as_expected()
    results["auto", "uniform", 0.1] = made(8.5e5)  # moij and cachejoin have 8e5 there
    close = list(operators._close(results))
    assert (("auto", "uniform", 0.1), "moij") in close
    assert (("moij", "Zipf 1", 0.1), "cachejoin") in close
    assert (("auto", "Zipf 1", 0.1), "inlj") not in close


def test_an_operator_that_was_not_warm_is_marked() -> None:
    results = as_expected()
    results["moij", "drifting", 0.1] = made(5e5, trend=1.5)
    section = operators.section(results, {}, rows=1000, command="millstream bench operators", full=False)
    assert "| 500* |" in section.markdown()
    assert section.markdown().count("* |") == 1


# -- the report ----------------------------------------------------------------------------------------------------


def section(name: str, figure: str) -> Section:
    return Section(
        name=name,
        title=name.title(),
        about="About it.",
        checks=[Check("speed", figure, "> 1", True), Check("size", "3", "any", None)],
        tables=[Table("Numbers", ("operator", "rate"), [["auto", figure]], note="A note.")],
        raw={"figure": figure},
        command=f"millstream bench {name}",
    )


def test_sections_are_written_side_by_side_and_again(tmp_path: Path) -> None:
    for name, figure in (("spark", "1"), ("build", "2"), ("spark", "3")):
        report.write(section(name, figure), tmp_path)
    text = (tmp_path / report.PAGE).read_text()
    assert text.count("## Spark") == text.count("## Build") == 1
    assert text.index("## Spark") < text.index("## Build")
    assert "| auto | 3 |" in text
    assert "| auto | 1 |" not in text
    assert "| speed | 3 | > 1 | PASS |" in text
    results = json.loads((tmp_path / report.RESULTS).read_text())
    assert {name: told["figure"] for name, told in results.items()} == {"spark": "3", "build": "2"}
    assert results["build"]["checks"][1]["verdict"] == "-"


def test_what_people_wrote_around_a_section_stays() -> None:
    text = replaced("# Page\n\nIntroduction.\n", "spark", "old")
    text = replaced(text + "\nExplanation.\n", "spark", "new")
    assert text.startswith("# Page\n\nIntroduction.\n")
    assert text.endswith("\nExplanation.\n")
    assert "new" in text
    assert "old" not in text
