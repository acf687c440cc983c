"""Calibration: steps fitted to samples, sample streams, and a run that is predicted."""

from __future__ import annotations

import itertools
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream import joins, tuning
from millstream.errors import InputError
from millstream.master import Master, build_local
from millstream.tuning.curves import Sample, fit
from millstream.tuning.runs import Running
from millstream.tuning.sample_stream import BATCH_RESULTS, SampleStream
from millstream.tuning.scan_models import waiting
from millstream.workloads import Workload


def test_steps_are_fitted() -> None:
    samples = [
        Sample(size, 10, 10.0 * n, 10 * (20e-6 + n * each))
        for size, each in ((10.0, 50e-9), (1000.0, 90e-9))
        for n in (5, 500, 5000)
    ]
    step = fit(samples)
    assert step.fixed == pytest.approx(20e-6, rel=0.01)
    assert step.each(10) == pytest.approx(50e-9, rel=0.01)
    assert step.each(1000) == pytest.approx(90e-9, rel=0.01)
    assert step.each(100) == pytest.approx(70e-9, rel=0.01)


def test_a_size_without_many_tuples_costs_what_its_neighbour_does() -> None:
    samples = [Sample(1000.0, 10, 10.0 * n, 10 * (20e-6 + n * 90e-9)) for n in (5, 500, 5000)]
    samples.append(Sample(10.0, 1000, 1000.0, 1000 * 19e-6))  # one tuple in a call: nothing is seen of it
    assert fit(samples).each(10) == pytest.approx(90e-9, rel=0.2)


def test_a_tuple_costs_no_less_in_a_larger_structure() -> None:
    """Small structures work on few tuples at a time, each of which costs more; that says nothing of larger sizes."""
    few = [Sample(1e4, 1000, 1000 * n, 1000 * (10e-6 + n * 600e-9)) for n in (2, 16)]
    many = [Sample(2e5, 100, 100 * n, 100 * (10e-6 + n * 100e-9)) for n in (200, 3000)]
    step = fit([*few, *many])
    assert step.each(1e4) <= step.each(5e4) <= step.each(2e5) == pytest.approx(100e-9, rel=0.2)
    assert step(3000, 1e5) == pytest.approx(310e-6, rel=0.2)


def test_runs_that_were_fast_by_chance_count_no_more_than_slow_ones() -> None:
    samples = [Sample(10, 100, 100_000, 100_000 * 50e-9 * noise) for noise in (0.6, 0.8, 1.2, 1.4)]
    assert fit(samples)(1_000, 10) == pytest.approx(1_000 * 50e-9, rel=0.02)


def test_what_an_iteration_waits_for_its_reads() -> None:
    assert waiting(1, 100.0, 30.0, 50.0) == 20  # one read, 80 of work meanwhile
    assert waiting(1, 100.0, 30.0, 90.0) == 0
    # ten reads, 30 of joining for each; what is done once overlaps one of them alone
    assert waiting(10, 100.0, 300.0, 500.0) == 9 * 70
    assert waiting(10, 100.0, 2000.0, 500.0) == 0


def test_a_sample_stream_has_keys_from_all_of_r(tmp_path: Path) -> None:
    table = Workload(keys=20_000).master_table()
    stream = SampleStream(build_local(table, tmp_path / "m", key="product_id"))
    keys = next(stream.batches(0.0)).column(0).to_numpy()
    assert np.isin(keys, table["product_id"].to_numpy()).all()
    assert np.ptp(keys) > 0.99 * 20_000
    batches = itertools.islice(stream.batches(1.0, rows=1000), 200)  # more than were made: they come again
    assert {batch.num_rows for batch in batches} == {1000}


def test_a_batch_of_a_sample_stream_has_no_more_results_than_a_run_can_take(tmp_path: Path) -> None:
    table = pa.table({"k": np.repeat(np.arange(20), 3000), "text": ["some text"] * 60_000})
    master = build_local(table, tmp_path / "m", key="k")
    assert next(SampleStream(master).batches(1.0)).num_rows <= BATCH_RESULTS / 3000


def test_an_operator_that_had_a_long_turn_waits_for_the_others(tmp_path: Path) -> None:
    shop = Workload(keys=2_000)
    products = build_local(shop.master_table(), tmp_path / "m", key="product_id")
    with closing(joins.create("hybridjoin", products, on="product_id", memory="4MB")) as operator:
        one = Running(operator, shop.stream(1 << 40, batch_rows=1_000), lambda: None)
        one.turn(0.02)
        assert one.spent >= 0.02
        rows, one.spent = operator.stats.rows_in, 0.5
        one.turn(0.04)
        assert operator.stats.rows_in == rows
        one.turn(0.51)
        assert operator.stats.rows_in > rows


def test_calibration_predicts_a_run(tmp_path: Path) -> None:
    """With bounds so wide that a busy machine passes, and so narrow that a forgotten term fails."""
    shop = Workload(keys=100_000)
    products = build_local(shop.master_table(), tmp_path / "products", key="product_id")
    ratios: list[float] = []
    while not ratios or (len(ratios) < 3 and not 1 / 3 < ratios[-1] < 3):
        ratios.append(_predicted_to_measured(products, list(shop.stream(400_000, batch_rows=10_000)), tmp_path))
    assert 1 / 3 < ratios[-1] < 3, ratios


def _predicted_to_measured(products: Master, stream: list[pa.RecordBatch], folder: Path) -> float:
    said: list[tuple[int, int, str]] = []
    begun = time.perf_counter()
    factors = tuning.calibrate(
        products, seconds=4, file=folder / "factors.json", progress=lambda *one: said.append(one)
    )
    assert time.perf_counter() - begun < 60
    assert said[-1][0] == said[-1][1]
    assert tuning.load(products, folder / "factors.json") == factors
    plan = tuning.plan("hybridjoin", products, factors, memory="3MB", skew=1.0)
    operator = joins.create("hybridjoin", products, on="product_id", memory="3MB", **plan.parameters)
    for batch in stream[:20]:
        _drain(operator.process(batch))
    rates = []
    for part in (stream[20:30], stream[30:]):
        rows, begun = operator.stats.matched, time.perf_counter()
        for batch in part:
            _drain(operator.process(batch))
        rates.append((operator.stats.matched - rows) / (time.perf_counter() - begun))
    return plan.rate / max(rates)


def _drain(results: Any) -> None:
    for _ in results:
        pass


def test_only_a_master_can_be_calibrated(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1, 2, 3]}), tmp_path / "r.parquet")
    with pytest.raises(InputError, match=r"only a master can be calibrated.*build_master"):
        tuning.calibrate(Master.scan(tmp_path / "r.parquet", key="k"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"only a master can be calibrated.*build_master"):
        tuning.plan("meshjoin", Master.scan(tmp_path / "r.parquet", key="k"), memory="1MB")  # type: ignore[arg-type]
