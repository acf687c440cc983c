"""Workloads have the distributions, sizes and arrival patterns that they are named for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millstream.errors import InputError
from millstream.workloads import (
    KEY_KINDS,
    NAMED,
    Bursty,
    Poisson,
    Scatter,
    SelfSimilar,
    Workload,
    Zipf,
    encode_keys,
    hurst,
    partsupp,
    partsupp_batches,
    product_batches,
    products,
    sales,
)


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """Pearson's statistic over its degrees of freedom, with rare cells pooled: about 1 when the samples fit."""
    rare = expected < 10
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] == 0:
        observed, expected = observed[:-1], expected[:-1]
    return float(np.sum((observed - expected) ** 2 / expected) / max(1, len(expected) - 1))


class TestZipf:
    @pytest.mark.parametrize("exponent", [0, 0.25, 0.5, 0.99, 1, 1.01, 1.5, 2, 4])
    @pytest.mark.parametrize("n", [1, 2, 3, 50, 5_000])
    def test_samples_follow_the_law(self, n: int, exponent: float) -> None:
        draws = 200_000
        zipf = Zipf(n, exponent)
        ranks = zipf.sample(rng(), draws)
        assert ranks.min() >= 1
        assert ranks.max() <= n
        exact = np.arange(1.0, n + 1) ** -float(exponent)
        exact /= exact.sum()
        observed = np.bincount(ranks, minlength=n + 1)[1:]
        cells = np.count_nonzero(exact * draws >= 10)
        assert chi_square(observed, exact * draws) < 1 + 5 * np.sqrt(2 / max(1, cells))
        np.testing.assert_allclose(zipf.probability(np.arange(1, n + 1)), exact, rtol=1e-9)

    @pytest.mark.parametrize("exponent", [0, 0.5, 1, 1.5])
    def test_a_hundred_million_keys_need_no_table(self, exponent: float) -> None:
        zipf = Zipf(100_000_000, exponent)
        ranks = zipf.sample(rng(), 100_000)
        for hottest in (1, 100, 10_000, 1_000_000, 50_000_000):
            expected = zipf.share(hottest)
            error = 5 * np.sqrt(expected * (1 - expected) / len(ranks)) + 1e-9
            assert abs(np.mean(ranks <= hottest) - expected) <= error

    def test_harmonic_numbers_beyond_the_exact_terms(self) -> None:
        for exponent in (0.0, 0.5, 1.0, 1.5):
            exact = np.sum(np.arange(1.0, 1_000_001.0) ** -exponent)
            assert 1 / Zipf(1_000_000, exponent).probability(1) == pytest.approx(exact, rel=1e-12)

    def test_share_ends_at_one(self) -> None:
        assert Zipf(100, 1.0).share(0) == 0
        assert Zipf(100, 1.0).share(100) == 1
        assert Zipf(100, 1.0).share(1_000) == 1

    @pytest.mark.parametrize(
        ("n", "exponent"), [(0, 1.0), (-1, 1.0), (10, -0.1), (10, float("nan")), (10, float("inf"))]
    )
    def test_bad_parameters(self, n: int, exponent: float) -> None:
        with pytest.raises(InputError):
            Zipf(n, exponent)


class TestScatter:
    @pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 1_000, 1_024, 99_991])
    @pytest.mark.parametrize("seed", [0, 1, 12_345])
    def test_is_a_permutation_with_an_inverse(self, n: int, seed: int) -> None:
        scatter = Scatter(n, seed=seed)
        values = np.arange(n)
        there = scatter.forward(values)
        np.testing.assert_array_equal(np.sort(there), values)
        np.testing.assert_array_equal(scatter.backward(there), values)

    def test_hot_ranks_land_everywhere(self) -> None:
        n, hot, bins = 1_000_000, 20_000, 100
        places = Scatter(n, seed=3).forward(np.arange(hot))
        observed = np.bincount(places * bins // n, minlength=bins)
        assert 0.5 < chi_square(observed, np.full(bins, hot / bins)) < 1.6
        gaps = np.diff(np.sort(places))
        assert np.mean(gaps < np.mean(gaps)) == pytest.approx(1 - np.exp(-1), abs=0.02)  # as random places have

    def test_depends_on_the_seed(self) -> None:
        values = np.arange(1_000)
        assert np.any(Scatter(1_000, seed=0).forward(values) != Scatter(1_000, seed=1).forward(values))

    def test_large_n(self) -> None:
        scatter = Scatter(100_000_000)
        values = rng().integers(0, 100_000_000, 10_000)
        there = scatter.forward(values)
        assert there.min() >= 0
        assert there.max() < 100_000_000
        np.testing.assert_array_equal(scatter.backward(there), values)

    def test_bad_parameters(self) -> None:
        with pytest.raises(InputError):
            Scatter(0)


class TestKeys:
    @pytest.mark.parametrize("kind", KEY_KINDS)
    def test_different_numbers_are_different_keys(self, kind: str) -> None:
        numbers = np.concatenate([np.arange(5_000), np.arange(1_000_000, 1_005_000)])
        columns = encode_keys(numbers, kind)
        assert pa.table(columns).group_by(list(columns)).aggregate([]).num_rows == len(numbers)
        for column in columns.values():
            column.validate(full=True)

    @pytest.mark.parametrize("kind", KEY_KINDS)
    def test_nulls(self, kind: str) -> None:
        valid = np.array([True, False, True])
        plain, holed = (encode_keys(np.arange(3), kind, valid=v) for v in (None, valid))
        for name, column in holed.items():
            expected = plain[name].to_pylist()
            if name == "product_id":
                expected[1] = None
            assert column.to_pylist() == expected

    def test_strings_and_dates_read_well(self) -> None:
        assert encode_keys(np.array([1_234_567]), "string")["product_id"].to_pylist() == ["P000001234567"]
        assert str(encode_keys(np.array([31]), "date")["product_id"][0]) == "1970-02-01"

    @pytest.mark.parametrize("kind", ["int32", "date"])
    def test_numbers_that_do_not_fit(self, kind: str) -> None:
        with pytest.raises(InputError, match="take fewer keys"):
            encode_keys(np.array([2**31]), kind)

    def test_unknown_kind(self) -> None:
        with pytest.raises(InputError, match="uuid"):
            encode_keys(np.arange(3), "uuid")


class TestMasters:
    def test_size_of_a_row(self) -> None:
        assert 110 <= products(10_000).nbytes / 10_000 <= 130
        rows = partsupp(2_500)
        assert len(rows) == 10_000
        assert 110 <= rows.nbytes / 10_000 <= 130

    @pytest.mark.parametrize("kind", KEY_KINDS)
    def test_any_row_can_be_made_alone(self, kind: str) -> None:
        table = products(500, seed=7, key=kind)
        table.validate(full=True)
        assert products(1, seed=7, key=kind, start=123).to_pylist() == table.slice(123, 1).to_pylist()
        suppliers = partsupp(500, seed=7, key=kind, multiplicity=3)
        assert partsupp(1, seed=7, key=kind, multiplicity=3, start=9).to_pylist() == suppliers.slice(27, 3).to_pylist()

    def test_batches_are_the_table(self) -> None:
        batches = list(product_batches(1_000, batch_rows=300))
        assert [len(b) for b in batches] == [300, 300, 300, 100]
        assert pa.Table.from_batches(batches).equals(products(1_000).combine_chunks())

    def test_no_rows_still_have_a_schema(self) -> None:
        assert products(0).schema == products(1).schema
        assert partsupp(0).schema == partsupp(1).schema
        assert len(products(0)) == len(partsupp(0)) == 0

    def test_rows_of_a_key_differ(self) -> None:
        table = partsupp(200, multiplicity=8)
        assert table.group_by(["product_id", "supplier_id"]).aggregate([]).num_rows == 1_600
        assert table.group_by(table.column_names).aggregate([]).num_rows == 1_600

    def test_skewed_multiplicity_follows_the_law(self) -> None:
        table = partsupp(20_000, multiplicity=16, multiplicity_exponent=1.0)
        counts = np.asarray(table.group_by("product_id").aggregate([("product_id", "count")])["product_id_count"])
        observed = np.bincount(counts, minlength=17)[1:]
        expected = 1 / np.arange(1.0, 17)
        expected *= 20_000 / expected.sum()
        assert len(counts) == 20_000
        assert chi_square(observed, expected) < 2.5

    def test_skewed_multiplicity_does_not_depend_on_batches(self) -> None:
        options = {"multiplicity": 16, "multiplicity_exponent": 1.0}
        small = pa.Table.from_batches(list(partsupp_batches(300, batch_rows=20, **options)))
        assert small.combine_chunks().equals(partsupp(300, **options).combine_chunks())

    def test_seed_changes_rows_but_not_keys(self) -> None:
        one, two = products(100, seed=1), products(100, seed=2)
        assert one["product_id"].equals(two["product_id"])
        assert not one["price"].equals(two["price"])

    @pytest.mark.parametrize("options", [{"rows": -1}, {"rows": 1, "start": -1}, {"rows": 1, "step": 0}])
    def test_bad_parameters(self, options: dict[str, int]) -> None:
        with pytest.raises(InputError):
            products(**options)
        with pytest.raises(InputError):
            partsupp(1, multiplicity=0)


class TestStream:
    def test_size_of_a_row(self) -> None:
        (batch,) = Workload().stream(10_000)
        assert 19 <= batch.nbytes / 10_000 <= 21
        assert batch.schema.names == ["product_id", "quantity", "sold_at"]

    def test_rows_do_not_depend_on_batches_and_prefixes_agree(self) -> None:
        workload = Workload(keys=1_000, absent=0.2, nulls=0.1, drift=0.01, key="string")
        whole = workload.stream_table(70_000).combine_chunks()
        cut = list(workload.stream(70_000, batch_rows=999))
        assert {len(b) for b in cut[:-1]} == {999}
        assert pa.Table.from_batches(cut).combine_chunks().equals(whole)
        assert workload.stream_table(500).combine_chunks().equals(whole.slice(0, 500).combine_chunks())

    def test_no_rows_still_have_a_schema(self) -> None:
        (batch,) = Workload().stream(0)
        assert len(batch) == 0
        assert batch.schema.names == ["product_id", "quantity", "sold_at"]

    @pytest.mark.parametrize("kind", KEY_KINDS)
    def test_present_keys_are_in_the_master_and_absent_ones_are_not(self, kind: str) -> None:
        for step in (1, 2, 5):
            workload = Workload(keys=300, absent=0.4, key=kind, step=step)
            master, stream = workload.master_table(), workload.stream_table(4_000)
            found = len(stream.join(master.select(workload.on), workload.on, join_type="left semi"))
            assert found / 4_000 == pytest.approx(0.6, abs=0.04)

    def test_shares(self) -> None:
        assert Workload(keys=100, nulls=1.0).stream_table(100)["product_id"].null_count == 100
        nulls = Workload(keys=100, nulls=0.25).stream_table(20_000)["product_id"].null_count
        assert nulls / 20_000 == pytest.approx(0.25, abs=0.02)
        absent = pc.bit_wise_and(Workload(keys=100, absent=0.9).stream_table(20_000)["product_id"], 1)
        assert pc.mean(absent).as_py() == pytest.approx(0.9, abs=0.02)

    @pytest.mark.parametrize("placement", ["scattered", "clustered"])
    def test_popularity_is_that_of_the_stream(self, placement: str) -> None:
        workload = Workload(keys=200, placement=placement, step=1)
        numbers = np.asarray(workload.stream_table(100_000)["product_id"])
        expected = workload.popularity(np.arange(200)) * 100_000
        assert chi_square(np.bincount(numbers, minlength=200), expected) < 1.6
        assert expected.sum() == pytest.approx(100_000)
        if placement == "clustered":
            assert np.all(np.diff(expected) < 0)

    def test_hot_set_drifts(self) -> None:
        workload = Workload(keys=1_000, exponent=1.5, placement="clustered", drift=0.001, step=1)
        numbers = np.asarray(workload.stream_table(100_000)["product_id"])
        for start in (0, 50_000, 99_000):
            hottest = np.bincount(numbers[start : start + 1_000]).argmax()
            assert hottest == start // 1_000

    def test_moments_ascend_at_the_rate_of_the_arrivals(self) -> None:
        moments = np.asarray(Workload(arrivals=Poisson(500)).stream_table(50_000)["sold_at"].cast(pa.int64()))
        assert np.all(np.diff(moments) >= 0)
        assert (moments[-1] - moments[0]) / 1e6 == pytest.approx(100, rel=0.05)

    @pytest.mark.parametrize(
        "options",
        [
            {"keys": 0},
            {"exponent": -1.0},
            {"placement": "random"},
            {"absent": 1.5},
            {"nulls": -0.1},
            {"drift": -1.0},
            {"key": "uuid"},
            {"step": 0},
            {"multiplicity": 0},
        ],
    )
    def test_bad_parameters_are_refused_when_a_workload_is_made(self, options: dict[str, object]) -> None:
        with pytest.raises(InputError):
            Workload(**options)

    def test_bad_number_of_rows(self) -> None:
        with pytest.raises(InputError):
            sales(-1, keys=10)
        with pytest.raises(InputError):
            sales(10, keys=10, batch_rows=0)


class TestArrivals:
    processes = pytest.mark.parametrize(
        "arrivals", [Poisson(2_000), Bursty(2_000, on=0.05, off=0.2), SelfSimilar(2_000, period=0.05, hurst=0.7)]
    )

    @processes
    def test_mean_rate(self, arrivals: Poisson) -> None:
        counts = arrivals.counts(20_000, interval=0.1)
        assert counts.sum() / 2_000 == pytest.approx(2_000, rel=0.08)
        assert arrivals.times(400_000)[-1] == pytest.approx(200, rel=0.15)

    @processes
    def test_times_ascend_and_repeat(self, arrivals: Poisson) -> None:
        times = arrivals.times(10_000, seed=5)
        assert len(times) == 10_000
        assert np.all(np.diff(times) >= 0)
        assert times[0] >= 0
        np.testing.assert_array_equal(times[:100], arrivals.times(100, seed=5))
        assert not np.array_equal(times, arrivals.times(10_000, seed=6))
        np.testing.assert_array_equal(arrivals.counts(50, seed=5), arrivals.counts(80, seed=5)[:50])

    def test_poisson_gaps_are_exponential(self) -> None:
        gaps = np.diff(Poisson(100.0).times(50_000)) * 100
        assert gaps.mean() == pytest.approx(1, rel=0.03)
        assert gaps.std() == pytest.approx(1, rel=0.03)
        assert np.mean(gaps > 2) == pytest.approx(np.exp(-2), rel=0.05)

    def test_bursts_have_a_peak_and_pauses(self) -> None:
        counts = Bursty(1_000, on=1.0, off=4.0).counts(50_000, interval=0.02)
        assert np.mean(counts == 0) == pytest.approx(0.8, abs=0.05)
        assert np.median(counts[counts > 50]) == pytest.approx(100, rel=0.05)

    @pytest.mark.parametrize("seed", range(4))
    def test_hurst_parameter(self, seed: int) -> None:
        def estimate(arrivals: Poisson) -> float:
            return hurst(arrivals.counts(50_000, interval=2.0, seed=seed))

        assert estimate(Poisson(1_000)) == pytest.approx(0.5, abs=0.06)
        assert estimate(Bursty(1_000, on=0.2, off=0.8)) == pytest.approx(0.5, abs=0.06)
        assert estimate(SelfSimilar(1_000, hurst=0.8, sources=16)) == pytest.approx(0.8, abs=0.08)

    def test_hurst_needs_data(self) -> None:
        with pytest.raises(InputError):
            hurst([1, 2, 3])
        with pytest.raises(InputError):
            hurst(np.ones(2_000))

    @pytest.mark.parametrize(
        ("process", "options"),
        [
            (Poisson, {"rate": 0}),
            (Bursty, {"on": 0}),
            (Bursty, {"off": -1}),
            (SelfSimilar, {"hurst": 0.5}),
            (SelfSimilar, {"hurst": 1}),
            (SelfSimilar, {"sources": 0}),
            (SelfSimilar, {"period": 0}),
        ],
    )
    def test_bad_parameters(self, process: type, options: dict[str, float]) -> None:
        with pytest.raises(InputError):
            process(**options)
        with pytest.raises(InputError):
            Poisson().counts(10, interval=0)


class TestNamed:
    @pytest.mark.parametrize("name", NAMED)
    def test_can_be_resized_and_keyed(self, name: str) -> None:
        workload = NAMED[name].resized(100).keyed("string")
        assert len(workload.master_table()) >= 100
        assert len(workload.stream_table(1_000)) == 1_000
        assert replace(workload, keys=NAMED[name].keys, key="int") == NAMED[name]
