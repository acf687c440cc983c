"""Masters of unusual shape: one key with most rows, odd names, no rows, equal frequencies."""

from __future__ import annotations

from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from driving import run_join
from millstream import joins
from millstream.errors import BudgetTooSmall, InputError
from millstream.kernels.layout import Layout
from millstream.kernels.pages import PageTable
from millstream.master import Build, Master, build_local, write_part
from millstream.master.reader import DiskBuffer
from oracle import assert_same_bag, expected_join

every_algorithm = pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
HEAVY = 200_000


def stored_rows(master: Master) -> list[pa.Table]:
    """The rows of each segment as they lie on disk."""
    index, columns = master.index, range(len(master.stored_schema))
    pages = PageTable(Layout.of(master.stored_schema))
    buffer = DiskBuffer(master.reader(), pages, int(index.length.max(initial=0)) + 8192)
    found = []
    for segment in range(len(index)):
        numbers, counts = buffer.load(np.array([segment]))
        refs = (int(numbers[0]) << 32) + np.arange(counts[0])
        found.append(pa.table(pages.measure(refs, columns).columns(), schema=master.stored_schema))
    return found


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Master:
    keys = np.sort(np.concatenate([np.arange(1_000), np.full(HEAVY, 500)]))
    table = pa.table({"k": keys, "v": np.arange(len(keys))})
    return build_local(table, tmp_path_factory.mktemp("heavy") / "m", key="k", segment_bytes=4_096)


def test_a_huge_key_has_a_segment_of_its_own(heavy: Master) -> None:
    found = heavy.statistics
    assert (found.rows, found.distinct_keys, found.max_key_rows) == (HEAVY + 1_000, 1_000, HEAVY + 1)
    assert found.heaviest_keys == (("500", HEAVY + 1),)
    assert found.max_segment_bytes > 16 * HEAVY
    (at,) = np.flatnonzero(heavy.index.rows > 1_000).tolist()
    assert heavy.index.rows[at] == HEAVY + 1
    assert heavy.index.first_key[at] == 500
    assert heavy.index.first_key[at + 1] == 501
    assert sorted(heavy.index.length.tolist())[-2] < 3 * 4_096
    heavy.verify()


@every_algorithm
def test_a_huge_key_needs_memory_and_then_works(algorithm: str, heavy: Master, tmp_path: Path) -> None:
    light = build_local(pa.table({"k": np.arange(1_000), "v": np.arange(1_000)}), tmp_path / "m", key="k")
    least = joins.least_memory(algorithm, heavy, on="k")
    assert least > joins.least_memory(algorithm, light, on="k") + heavy.statistics.max_segment_bytes // 2
    with pytest.raises(BudgetTooSmall, match=str(least)):
        joins.create(algorithm, heavy, on="k", memory=least - 1)
    stream = pa.table({"k": [500, 3, 501, -1, 500, 2_000]})
    for memory in (least, 3 * least):
        found = run_join(algorithm, heavy, stream, on="k", memory=memory)
        keys = np.asarray(found["k"])
        assert len(found) == 2 * (HEAVY + 1) + 2
        rows = np.sort(np.asarray(found["v"])[keys == 500])
        assert np.array_equal(rows, np.repeat(np.arange(500, 501 + HEAVY), 2))
        assert len(run_join(algorithm, heavy, stream, on="k", how="left_semi", memory=memory)) == 4


def test_a_huge_key_that_comes_in_many_batches(tmp_path: Path) -> None:
    """As from Spark: small batches, keys that go on over their borders, empty batches between."""
    keys = np.concatenate([np.arange(50), np.full(30_000, 50), np.arange(51, 90).repeat(40), [2**62]])
    table = pa.table({"k": keys, "v": np.arange(len(keys))})
    cuts = [0, 10, 10, 49, 51, *range(1_000, 30_000, 997), 30_055, 31_000, len(keys)]
    batches = [table.slice(a, b - a).combine_chunks().to_batches() for a, b in pairwise(cuts)]
    with Build.begin(tmp_path / "m", table.schema, key="k", segment_bytes=2_048) as build:
        master = build.commit([write_part(build.spec, [batch for some in batches for batch in some], 0)])
    found = stored_rows(master)
    assert pa.concat_tables(found).equals(table)
    edges = [(int(part["k"][0].as_py()), int(part["k"][-1].as_py())) for part in found]
    assert all(last < first for (_, last), (first, _) in pairwise(edges)), "no key is split"
    assert [part.num_rows for part in found if 50 in part["k"].to_pylist()] == [30_000]
    assert master.statistics.distinct_keys == 91
    assert master.statistics.heaviest_keys[0] == ("50", 30_000)


NAMES = ["naïve", "日本語", "with space", 'quo"te', "a.b", "a/b", "new\nline", "😀", "", "select", "x" * 3_000]


@every_algorithm
def test_names_of_columns(algorithm: str, tmp_path: Path) -> None:
    table = pa.table({name: pa.array(range(30)) for name in NAMES})
    for number, key in enumerate(["日本語", "a.b", "", ["new\nline", "😀", 'quo"te']]):
        master = build_local(table, tmp_path / f"m{number}", key=key)
        assert Master.open(tmp_path / f"m{number}").schema.names == NAMES
        on = [key] if isinstance(key, str) else key
        stream = pa.table({name: [3, 40, 7] for name in on})
        result = run_join(algorithm, master, stream, on=on, how="left")
        assert_same_bag(result, expected_join(stream, table, on=on, how="left"))


@pytest.mark.parametrize("layout", ["key", "frequency"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
@pytest.mark.parametrize("keys", [[], [None, None, None]], ids=["no rows", "NULL keys alone"])
@every_algorithm
def test_masters_without_a_key(
    algorithm: str, keys: list[None], kind: pa.DataType, layout: str, tmp_path: Path
) -> None:
    table = pa.table({"k": pa.array(keys, kind), "f": pa.array(range(len(keys)), pa.int64())})
    frequency = "f" if layout == "frequency" else None
    master = build_local(table, tmp_path / "m", key="k", layout=layout, frequency=frequency)
    assert (master.rows, master.statistics.distinct_keys) == (len(keys), 0)
    Master.open(tmp_path / "m").verify()
    stream = pa.table({"k": pa.array([1, None, 2, 1]).cast(kind), "e": [1, 2, 3, 4]})
    for how in joins.HOWS:
        memory = joins.least_memory(algorithm, master, on="k", how=how)
        result = run_join(algorithm, master, stream, on="k", how=how, memory=memory)
        assert_same_bag(result, expected_join(stream, table, on="k", how=how))


def test_a_master_with_nothing_but_its_key(tmp_path: Path) -> None:
    master = build_local(pa.table({"k": [1, 1, 2]}), tmp_path / "m", key="k")
    stream = pa.table({"k": [1, 3]})
    for algorithm in joins.ALGORITHMS:
        assert run_join(algorithm, master, stream, on="k").to_pylist() == [{"k": 1}] * 2
        assert run_join(algorithm, master, stream, on="k", how="left").num_rows == 3


FREQUENCIES = {
    "all equal": [5] * 600,
    "falling": list(range(600, 0, -1)),
    "differs within a key": [i * 7 % 13 for i in range(600)],
    "with NULLs": [None if i % 3 else i for i in range(600)],
    "all NULL": [None] * 600,
    "fractions": [i / 7 % 1 for i in range(600)],
}


@pytest.mark.parametrize("name", FREQUENCIES)
def test_rows_by_falling_frequency_of_their_key(name: str, tmp_path: Path) -> None:
    frequency = pa.array(FREQUENCIES[name], pa.float64() if name in ("fractions", "all NULL") else None)
    keys = [i % 150 if i % 11 else None for i in range(600)]
    table = pa.table({"k": keys, "f": frequency, "row": range(600)})
    master = build_local(table, tmp_path / "m", key="k", layout="frequency", frequency="f", segment_bytes=512)
    found = pa.concat_tables(stored_rows(master))
    runs = [key for key, _ in groupby(found["k"].to_pylist())]
    assert len(runs) == len(set(runs)) == 150, "rows of a key lie together"
    most = dict.fromkeys(runs, 0.0)
    for key, value in zip(found["k"].to_pylist(), found["f"].to_pylist(), strict=True):
        most[key] = max(most[key], float(value or 0))
    ranks = [most[key] for key in runs]
    assert ranks == sorted(ranks, reverse=True)
    for part in stored_rows(master):
        assert sum(runs.count(key) for key in set(part["k"].to_pylist())) == len(set(part["k"].to_pylist()))
    stream = pa.table({"k": pa.array([*range(0, 200, 2), 5, 5, None], pa.int64())})
    for algorithm in joins.ALGORITHMS:
        memory = joins.least_memory(algorithm, master, on="k", how="left")
        result = run_join(algorithm, master, stream, on="k", how="left", memory=memory)
        assert_same_bag(result, expected_join(stream, table, on="k", how="left"))


@pytest.mark.parametrize("values", [["a", "b"], [True, None], [[1], [2]], [b"1", b"2"]], ids=str)
def test_a_frequency_that_is_no_number(values: list[object], tmp_path: Path) -> None:
    table = pa.table({"k": [1, 2], "f": values})
    with pytest.raises(InputError, match="'f'"):
        build_local(table, tmp_path / "m", key="k", layout="frequency", frequency="f")
    assert not (tmp_path / "m").exists()
