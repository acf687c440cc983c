"""Join conditions beyond equality, against DuckDB."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from driving import batches_of
from millstream import joins
from millstream.errors import InputError, KeyTypeMismatch, PredicateError, UnknownColumn
from millstream.joins import between, compare, predicate
from millstream.master import Master, ParquetScan, build_local
from oracle import assert_same_bag

ROWS, STREAM_ROWS = 300, 400
rng = np.random.default_rng(5)


def _some_null(values: list[Any], every: int) -> list[Any]:
    return [None if i % every == 3 else value for i, value in enumerate(values)]


def _columns(rows: int, seed: int) -> dict[str, pa.Array]:
    random = np.random.default_rng(seed)
    numbers = random.integers(0, 60, rows).tolist()
    day = dt.datetime(2024, 1, 1)
    floats = [math.nan if i % 29 == 0 else float(n) / 2 for i, n in enumerate(numbers)]
    return {
        "int": pa.array(_some_null(numbers, 11), pa.int32()),
        "float": pa.array(_some_null(floats, 13)),
        "time": pa.array(_some_null([day + dt.timedelta(hours=n) for n in numbers], 17), pa.timestamp("us")),
        "text": pa.array(_some_null([f"{n:03d}" for n in numbers], 7)),
        "money": pa.array(_some_null([decimal.Decimal(n) / 4 for n in numbers], 5), pa.decimal128(12, 2)),
    }


KINDS = ("int", "float", "time", "text", "money")
STREAM = pa.table({"e": np.arange(STREAM_ROWS), "k": np.arange(STREAM_ROWS) % 40, **_columns(STREAM_ROWS, 1)})
LOW, HIGH = _columns(ROWS, 2), _columns(ROWS, 3)
TABLE = pa.table(
    {
        "k": pa.array([None if i % 37 == 0 else i % 50 for i in range(ROWS)]),
        "r": np.arange(ROWS),
        **{f"{kind}_lo": LOW[kind] for kind in KINDS},
        **{f"{kind}_hi": HIGH[kind] for kind in KINDS},
    }
)


@pytest.fixture(scope="module", params=["master", "parquet"])
def relation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Master | ParquetScan:
    path = tmp_path_factory.mktemp("conditions") / "r"
    if request.param == "master":
        return build_local(TABLE, path, key="k", segment_bytes=2_048)
    path.mkdir()
    pq.write_table(TABLE, path / "part.parquet", row_group_size=70)
    return Master.scan(path, key="k")


def joined(relation: Any, condition: Any, *, how: str, on: str | None = None, **options: Any) -> pa.Table:
    memory = options.pop("memory", "2MB")
    operator = joins.create(
        options.pop("algorithm", "meshjoin"), relation, on=on, how=how, memory=memory, columns=["r"],
        condition=condition, **options,
    )  # fmt: skip
    schema = joins.output_schema(STREAM.schema, relation, on=on, how=how, columns=["r"])
    out = [batch for part in batches_of(STREAM, 90) for batch in operator.process(part)]
    out += operator.flush()
    assert operator.stats.matched + operator.stats.unmatched == STREAM_ROWS
    assert operator.ledger.peak <= operator.ledger.budget
    operator.close()
    return pa.Table.from_batches(out, schema=schema).select(["e", "r"])


def expected(where: str, *, how: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        connection.register("s", STREAM)
        connection.register("m", TABLE.rename_columns([f"m_{n}" for n in TABLE.schema.names]))
        found = connection.sql(f"SELECT e, m_r AS r FROM s {how} JOIN m ON {where}").to_arrow_table()
    return found.cast(pa.schema([("e", pa.int64()), ("r", pa.int64())]))


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_ranges(kind: str, how: str, relation: Any) -> None:
    for inclusive, low, high in (
        ("left", ">=", "<"),
        ("both", ">=", "<="),
        ("neither", ">", "<"),
        ("right", ">", "<="),
    ):
        condition = between(kind, lo=f"{kind}_lo", hi=f"{kind}_hi", inclusive=inclusive)
        where = f"{kind} {low} m_{kind}_lo AND {kind} {high} m_{kind}_hi"
        assert_same_bag(joined(relation, condition, how=how), expected(where, how=how))


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "==", "!="])
@pytest.mark.parametrize("kind", KINDS)
def test_comparisons(kind: str, operator: str, relation: Any) -> None:
    where = f"{kind} {operator} m_{kind}_lo"
    assert_same_bag(joined(relation, compare(kind, operator, f"{kind}_lo"), how="left"), expected(where, how="left"))


@pytest.mark.parametrize("algorithm", joins.SCANS)
@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_condition_beside_a_key(how: str, algorithm: str, relation: Any) -> None:
    condition = between("time", lo="time_lo", hi="time_hi") & compare("int", "!=", "int_lo")
    where = "k = m_k AND time >= m_time_lo AND time < m_time_hi AND int != m_int_lo"
    for ordered in (False, True):
        result = joined(relation, condition, how=how, on="k", algorithm=algorithm, ordered=ordered)
        assert_same_bag(result, expected(where, how=how))
        assert not ordered or (np.diff(result["e"].to_numpy()) >= 0).all()


@pytest.mark.parametrize("algorithm", [name for name in joins.SCANS if name != "ssbj"])
def test_a_window_that_moves_on(algorithm: str, relation: Any) -> None:
    """So little memory that rows come and go while ranges are searched."""
    least = joins.least_memory(algorithm, relation, columns=["r"], condition=compare("int", ">", "int_lo"))
    condition = between("float", lo="float_lo", hi="float_hi")
    result = joined(relation, condition, how="left", algorithm=algorithm, memory=least + 60_000)
    assert_same_bag(result, expected("float >= m_float_lo AND float < m_float_hi", how="left"))


@pytest.mark.parametrize("how", ["inner", "left"])
def test_functions(how: str, relation: Any) -> None:
    def close(stream: pa.RecordBatch, master: pa.RecordBatch) -> pa.Array:
        difference = pc.subtract(stream["int"], master["int_lo"])
        return pc.less(pc.abs(difference), 3)

    def as_numpy(stream: pa.RecordBatch, master: pa.RecordBatch) -> np.ndarray:
        return pc.fill_null(close(stream, master), False).to_numpy(zero_copy_only=False)

    want = expected("abs(int - m_int_lo) < 3", how=how)
    named = predicate(close, stream=["int"], master=["int_lo"])
    for condition in (close, as_numpy, named):
        assert_same_bag(joined(relation, condition, how=how), want)
    assert_same_bag(
        joined(relation, compare("float", ">", "float_lo") & named, how=how),
        expected("abs(int - m_int_lo) < 3 AND float > m_float_lo", how=how),
    )


def test_rows_without_a_key_count_for_a_condition(relation: Any) -> None:
    result = joined(relation, compare("e", "==", "r"), how="inner")
    assert sorted(result["r"].to_pylist()) == list(range(ROWS))


BAD: dict[str, tuple[Callable[..., Any], str]] = {
    "no array": (lambda s, m: True, "bool"),
    "numbers": (lambda s, m: pa.array([1] * s.num_rows), "int64"),
    "one too few": (lambda s, m: pa.array([True] * (s.num_rows - 1)), "values for"),
    "a list": (lambda s, m: [True] * s.num_rows, "list"),
    "nothing": (lambda s, m: None, "NoneType"),
    "two dimensions": (lambda s, m: np.ones((s.num_rows, 1), dtype=bool), "ndarray"),
}


@pytest.mark.parametrize("name", BAD)
def test_functions_that_return_something_else(name: str, relation: Any) -> None:
    function, word = BAD[name]
    with pytest.raises(PredicateError, match=word):
        joined(relation, function, how="inner")


@pytest.mark.parametrize(
    ("condition", "kind", "words"),
    [
        (compare("colour", "<", "r"), UnknownColumn, ("'colour'", "stream", "money")),
        (compare("e", "<", "colour"), UnknownColumn, ("'colour'", "master", "int_lo")),
        (between("e", lo="r", hi="colour"), UnknownColumn, ("'colour'",)),
        (predicate(lambda s, m: s["e"], stream=["colour"]), UnknownColumn, ("'colour'",)),
        (compare("e", "<", "text_lo"), KeyTypeMismatch, ("int64", "string", "'e'", "'text_lo'")),
        (between("time", lo="int_lo", hi="int_hi"), KeyTypeMismatch, ("timestamp", "int32")),
    ],
)
def test_columns_that_do_not_fit(condition: Any, kind: type[Exception], words: tuple[str, ...], relation: Any) -> None:
    operator = joins.create("meshjoin", relation, how="inner", condition=condition, columns=["r"])
    with pytest.raises(kind) as caught:
        list(operator.process(STREAM.to_batches()[0]))
    assert all(word in str(caught.value) for word in words)
    assert not list(operator.flush())
    operator.close()


def test_choices_are_checked_when_made() -> None:
    with pytest.raises(InputError, match="=<"):
        compare("a", "=<", "b")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="all"):
        between("a", lo="b", hi="c", inclusive="all")  # type: ignore[arg-type]


def test_ssbj_needs_a_key(relation: Any) -> None:
    with pytest.raises(InputError, match="meshjoin"):
        joins.create("ssbj", relation, condition=compare("e", "<", "r"))
