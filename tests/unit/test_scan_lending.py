"""The window's table lies in what disk buffers leave of huge pages, when reads go to the disk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from driving import batches_of, direct, drive
from millstream import joins
from millstream.kernels.window_table import WindowTable
from millstream.master import Master, build_local
from oracle import assert_same_bag, expected_join

MEMORY = 5_000_000
LONG = 1 << 40  # a key of more than 32 bits
KEYS = np.arange(60_000) // 2
TABLE = pa.table(
    {"k": np.where(KEYS < 20_000, KEYS, LONG + KEYS), "name": [f"name {i}" * (i % 9) for i in range(60_000)]}
)
borrowers = pytest.mark.parametrize("algorithm", ["meshjoin", "rmeshjoin"])


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Master:
    return direct(build_local(TABLE, tmp_path_factory.mktemp("lending") / "m", key="k"))


def stream(rows: int, first: int = 0) -> pa.Table:
    keys = np.random.default_rng(3).integers(first, first + 40_000, rows)
    return pa.table({"k": pa.array(keys, mask=keys % 17 == 0), "position": np.arange(rows)})


def arrays(table: WindowTable) -> list[np.ndarray]:
    return [table._youngest, table._bits, table._key, table._following, table.matched]


@borrowers
@pytest.mark.parametrize("then", [0, LONG])
@pytest.mark.parametrize("how", ["left", "left_anti"])
def test_results_are_exact_with_a_table_in_the_buffers_pages(
    algorithm: str, how: str, then: int, master: Master
) -> None:
    """Also when keys of more than 32 bits come, and the table is made anew in the same place."""
    rows = pa.concat_tables([stream(60_000), stream(60_000, then)])
    operator = joins.create(algorithm, master, on="k", how=how, memory=MEMORY)
    found = drive(operator, batches_of(rows, 7_001), joins.output_schema(rows.schema, master, on="k", how=how))
    table = operator.window.table
    assert table.wide == (then == LONG)
    assert sum(array.nbytes for array in arrays(table) if _in(array, operator)) > 0.7 * table.nbytes
    assert_same_bag(found, expected_join(rows, TABLE, on="k", how=how))
    operator.close()


def _in(array: np.ndarray, operator: Any) -> bool:
    """Whether an array lies behind the buffers in their huge pages."""
    region = operator.scan._region
    start = array.ctypes.data - region.address
    return region.size <= start and start + array.nbytes <= region.nbytes


@borrowers
def test_what_is_lent_is_booked_once(algorithm: str, master: Master) -> None:
    operator = joins.create(algorithm, master, on="k", memory=MEMORY)
    for batch in batches_of(stream(200_000), 10_000):
        for _ in operator.process(batch):
            pass
    table, booked = operator.window.table, operator.ledger.components
    assert all(_in(array, operator) for array in arrays(table))
    assert booked["stream table"] == table.nbytes + operator.window.bytes
    assert booked["disk buffer"] + table.nbytes >= operator.scan._region.nbytes
    assert 0.9 * MEMORY < operator.ledger.used <= MEMORY
    operator.close()


@borrowers
@pytest.mark.parametrize("options", [{"window": 500}, {"memory": 1_500_000}])
def test_nothing_is_lent_that_would_lie_idle(algorithm: str, options: dict[str, Any], master: Master) -> None:
    operator = joins.create(algorithm, master, on="k", **{"memory": MEMORY, **options})
    for _ in operator.process(batches_of(stream(100), 100)[0]):
        pass
    assert operator.scan._region is None
    assert operator.window.table.nbytes == operator.window.table.bytes_for(operator.window.table.capacity, wide=False)
    operator.close()
