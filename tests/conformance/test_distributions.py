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
    workload = NAMED["many-to-many-skewed"].resized(300)
    stream, table = workload.stream_table(4_000), workload.master_table().drop(["updated_at"])
    master = masters("wide", table, key="product_id")
    memory = joins.least_memory(algorithm, master, on="product_id", how=how)
    columns = ["remark"] if how in ("inner", "left") else None
    result = run_join(
        algorithm, master, stream, on="product_id", how=how, columns=columns, memory=memory, batch_rows=4_000
    )
    assert_same_bag(result, expected_join(stream, table, on="product_id", how=how, columns=columns))


@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_absent_keys_cost_next_to_no_reads(algorithm: str, masters: Masters) -> None:
    stream, table = data("absent90", "int")
    master = masters("workload 1 int", table, key="product_id")
    odd = pc.equal(pc.bit_wise_and(stream["product_id"], 1), 1)
    reads = {}
    for name, rows in (("present", stream.filter(pc.invert(odd))), ("absent", stream.filter(odd))):
        operator = joins.create(algorithm, master, on="product_id", how="left_semi", memory="1MB")
        list(operator.process(rows.combine_chunks().to_batches()[0]))
        list(operator.flush())
        reads[name] = operator.stats.segments_read / len(rows)
        assert operator.stats.matched == (len(rows) if name == "present" else 0)
        operator.close()
    assert reads["absent"] <= reads["present"] / 4
