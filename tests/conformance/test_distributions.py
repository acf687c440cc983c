"""Every algorithm x every named workload x budgets from the least possible to more than the whole master."""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from conformance.conftest import Masters
from driving import run_join
from millstream import joins
from millstream.workloads import NAMED, KeyKind
from oracle import assert_same_bag, expected_join

KEYS = 500
STREAM_ROWS = 1_500
BUDGETS = ("least", "twice the least", "tenth of the master", "more than the master")
COLUMNS = {"products": ["name", "price"], "partsupp": ["supplier_id", "remark"]}


@cache
def data(name: str, key: KeyKind) -> tuple[pa.Table, pa.Table]:
    workload = NAMED[name].resized(KEYS).keyed(key)
    return workload.stream_table(STREAM_ROWS).drop(["sold_at"]), workload.master_table()


def chosen_columns(master: pa.Table) -> list[str]:
    return COLUMNS["products" if "name" in master.schema.names else "partsupp"]


@cache
def expected(name: str, key: KeyKind, how: str) -> pa.Table:
    stream, master = data(name, key)
    return expected_join(stream, master, on="product_id", how=how, columns=chosen_columns(master))


def budget(kind: str, least: int, master_bytes: int) -> int:
    return {
        "least": least,
        "twice the least": 2 * least,
        "tenth of the master": max(least, master_bytes // 10),
        "more than the master": least + 4 * master_bytes,
    }[kind]


@pytest.mark.parametrize("kind", BUDGETS)
@pytest.mark.parametrize("key", ["int", "string"])
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_any_budget_gives_the_same_join(algorithm: str, name: str, key: KeyKind, kind: str, masters: Masters) -> None:
    how = "left" if key == "int" else "inner"
    stream, table = data(name, key)
    columns = chosen_columns(table)
    master = masters(f"workload {NAMED[name].multiplicity} {key}", table, key="product_id")
    least = joins.least_memory(algorithm, master, on="product_id", how=how, columns=columns)
    memory = budget(kind, least, table.nbytes)
    result = run_join(
        algorithm, master, stream, on="product_id", how=how, columns=columns, memory=memory, batch_rows=400
    )
    assert_same_bag(result, expected(name, key, how))


@pytest.mark.parametrize("how", joins.HOWS)
@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_wide_rows_and_a_stream_longer_than_the_budget(algorithm: str, how: str, masters: Masters) -> None:
    """All columns of both sides, the least budget, and one batch many times as large as that budget."""
    workload = NAMED["many-to-many-skewed"].resized(200)
    stream, table = workload.stream_table(1_200), workload.master_table().drop(["updated_at"])
    master = masters("wide", table, key="product_id")
    memory = joins.least_memory(algorithm, master, on="product_id", how=how)
    columns = ["remark"] if how in ("inner", "left") else None
    result = run_join(
        algorithm, master, stream, on="product_id", how=how, columns=columns, memory=memory, batch_rows=1_200
    )
    assert_same_bag(result, expected_join(stream, table, on="product_id", how=how, columns=columns))


@cache
def long_data(name: str) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Stream, master and their inner join."""
    workload = NAMED[name].resized(2_000).keyed("string" if name == "drifting" else "int")
    stream, table = workload.stream_table(10_000).select(["product_id"]), workload.master_table()
    stream = stream.append_column("position", pa.array(range(len(stream))))
    return stream, table, expected_join(stream, table, on="product_id", how="inner", columns=["supplier_id"])


@pytest.mark.parametrize("name", ["drifting", "many-to-many", "zipf15"])
@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_long_run(algorithm: str, name: str, masters: Masters) -> None:
    """Long enough that caches fill, evict and age, and that waiting rows are moved together."""
    stream, table, expected_rows = long_data(name)
    master = masters(f"long {name}", table, key="product_id", segment_bytes=4_096)
    options = {"on": "product_id", "columns": ["supplier_id"]}
    least = joins.least_memory(algorithm, master, how="inner", **options)
    for memory in (least + 20_000, max(least, table.nbytes // 5)):
        result = run_join(algorithm, master, stream, memory=memory, batch_rows=3_000, **options)
        assert_same_bag(result, expected_rows)


@pytest.mark.parametrize("how", ["left", "left_semi"])
@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_stream_rows_that_are_large_for_the_budget(algorithm: str, how: str, masters: Masters) -> None:
    """Rows of up to 4 kB that hardly fit into what the least budget leaves for the stream."""
    workload = NAMED["zipf1"].resized(KEYS)
    stream, table = workload.stream_table(300), workload.master_table()
    stream = stream.append_column("note", pa.array(["n" * (i * 37 % 4_000) for i in range(300)]))
    master = masters("workload 1 int", table, key="product_id")
    memory = joins.least_memory(algorithm, master, on="product_id", how=how, columns=["name"])
    options = {"on": "product_id", "how": how, "columns": ["name"]}
    result = run_join(algorithm, master, stream, memory=memory, batch_rows=150, **options)
    assert_same_bag(result, expected_join(stream, table, **options))


@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_absent_keys_cost_next_to_no_reads(algorithm: str, masters: Masters) -> None:
    """Hundreds of different absent keys cost no more than reading the master twice."""
    stream, table = data("absent90", "int")
    master = masters("workload 1 int", table, key="product_id")
    absent = stream.filter(pc.equal(pc.bit_wise_and(stream["product_id"], 1), 1))
    operator = joins.create(algorithm, master, on="product_id", how="left_semi", memory="1MB")
    list(operator.process(absent.combine_chunks().to_batches()[0]))
    list(operator.flush())
    assert operator.stats.unmatched == len(absent)
    assert operator.stats.segments_read <= 2 * master.statistics.segments
    operator.close()
