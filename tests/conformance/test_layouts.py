"""A master in the order of access frequency, found through its on-disk index, gives the same joins."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from conformance import test_collisions, test_keys
from conformance.conftest import Masters
from conformance.domains import DOMAINS
from driving import run_join
from millstream import joins
from millstream.workloads import NAMED
from oracle import assert_same_bag, expected_join

every_algorithm = pytest.mark.parametrize("algorithm", joins.ALGORITHMS)

KEYS = 400
STREAM_ROWS = 1_200


@cache
def data(name: str) -> tuple[pa.Table, pa.Table]:
    workload = NAMED[name].resized(KEYS)
    table = workload.master_table()
    popularity = workload.popularity(np.asarray(table["product_id"]) // workload.step)
    return workload.stream_table(STREAM_ROWS), table.append_column("popularity", pa.array(popularity))


@pytest.mark.parametrize("name", ["zipf0", "zipf1", "many-to-many-skewed", "absent90", "drifting", "nulls"])
@pytest.mark.parametrize("factor", [1, 3, 100])
@every_algorithm
def test_frequency_layout(algorithm: str, factor: int, name: str, masters: Masters) -> None:
    stream, table = data(name)
    multiplicity = NAMED[name].multiplicity
    master = masters(f"frequency {name} {multiplicity}", table, key="product_id", frequency="popularity")
    assert master.layout == "frequency"
    columns = ["supplier_id", "popularity"]
    memory = factor * joins.least_memory(algorithm, master, on="product_id", how="left", columns=columns)
    result = run_join(algorithm, master, stream, on="product_id", how="left", columns=columns, memory=memory)
    assert_same_bag(result, expected_join(stream, table, on="product_id", how="left", columns=columns))


@pytest.mark.parametrize("domain", ["int16", "string", "double", "decimal(38,6)", "bigint+string", "boolean"])
@pytest.mark.parametrize("how", joins.HOWS)
@every_algorithm
def test_key_types_in_frequency_layout(algorithm: str, how: str, domain: str, masters: Masters) -> None:
    stream, table = test_keys.data(domain)
    on = DOMAINS[domain].names
    master = masters(f"frequency key {domain}", table, key=on, frequency="row")
    memory = 2 * joins.least_memory(algorithm, master, on=on, how=how)
    result = run_join(algorithm, master, stream, on=on, how=how, memory=memory, batch_rows=97)
    assert_same_bag(result, test_keys.expected(domain, how))


@pytest.mark.parametrize("kind", test_collisions.COLLIDING)
@every_algorithm
def test_collisions_in_frequency_layout(algorithm: str, kind: str, masters: Masters) -> None:
    stream, table = test_collisions.tables(test_collisions.COLLIDING[kind])
    on = list(test_collisions.COLLIDING[kind])
    master = masters(f"frequency collisions {kind}", table, key=on, frequency="row")
    for how in joins.HOWS:
        result = run_join(algorithm, master, stream, on=on, how=how, batch_rows=33)
        assert_same_bag(result, expected_join(stream, table, on=on, how=how))


@pytest.mark.parametrize("rows", [0, 1, 5])
@every_algorithm
def test_small_masters_in_frequency_layout(algorithm: str, rows: int, masters: Masters) -> None:
    table = pa.table(
        {"k": pa.array([None, 3, 3, 1, None][:rows], pa.int64()), "row": pa.array(range(rows), pa.int64())}
    )
    stream = pa.table({"k": [1, 2, 3, None]})
    master = masters(f"frequency {rows} rows", table, key="k", frequency="row")
    result = run_join(algorithm, master, stream, on="k", how="left")
    assert_same_bag(result, expected_join(stream, table, on="k", how="left"))
