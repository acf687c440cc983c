"""MOIJ keeps what the cache inequality says, whatever H_S looks like meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream import joins
from millstream.joins.moij import Moij
from millstream.master import Master, build_local
from millstream.workloads import Workload

KEYS = 60_000


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Master:
    path: Path = tmp_path_factory.mktemp("moij") / "master"
    return build_local(Workload(keys=KEYS).master_table(), path, key="product_id", segment_bytes=4096)


def moij(master: Master, memory: str) -> Moij:
    operator = joins.create("moij", master, on="product_id", memory=memory)
    assert isinstance(operator, Moij)
    return operator


def hits_of_last(operator: Moij, batches: list, *, drained: bool) -> float:
    """The share of rows in the last fifth of the batches that the cache served."""
    before = 0, 0
    for number, batch in enumerate(batches):
        if number == len(batches) * 4 // 5:
            before = operator.stats.cache_hits, operator.stats.rows_in
        for _ in operator.process(batch):
            pass
        if drained:
            for _ in operator.flush():
                pass
    return (operator.stats.cache_hits - before[0]) / (operator.stats.rows_in - before[1])


def test_rows_that_have_left_make_room_for_the_cache(master: Master) -> None:
    """Hot rows leave gaps in all pages of H_S. They must not keep the memory that their keys need in the cache."""
    operator = moij(master, "700kB")
    batches = list(Workload(keys=KEYS, exponent=1.5).stream(600_000, batch_rows=2_000))
    assert hits_of_last(operator, batches, drained=False) > 0.9
    assert len(operator.waiting) > 0.2 * operator.waiting.table.capacity, "and not only the oldest rows wait"
    assert operator.stats.memory_peak <= operator.ledger.budget


def test_the_cache_outlives_micro_batches(master: Master) -> None:
    """A drained H_S is empty, but that is not the length of the queue that the inequality is about."""
    operator = moij(master, "700kB")
    batches = list(Workload(keys=KEYS).stream(600_000, batch_rows=2_000))
    assert hits_of_last(operator, batches, drained=True) > 0.5
    assert operator.stats.memory_peak <= operator.ledger.budget


def test_a_flat_stream_leaves_the_memory_to_waiting_rows(master: Master) -> None:
    operator = moij(master, "700kB")
    batches = list(Workload(keys=KEYS, exponent=0.0).stream(300_000, batch_rows=2_000))
    assert hits_of_last(operator, batches, drained=False) < 0.02
    assert operator.cache.bytes < 0.05 * operator.waiting.bytes
    other = joins.create("hybridjoin", master, on="product_id", memory="700kB")
    for _ in other.process(batches[0]):
        pass
    assert operator.waiting.table.capacity > 0.85 * other.waiting.table.capacity


def test_the_table_of_the_cache_grows_with_it(tmp_path: Path) -> None:
    """Rows of R that are hardly larger than those of the stream are worth caching in great number."""
    keys = Workload(keys=KEYS).master_table().select(["product_id"])
    operator = moij(build_local(keys, tmp_path / "master", key="product_id", segment_bytes=4096), "700kB")
    first = 0
    for batch in Workload(keys=KEYS).stream(600_000, batch_rows=2_000):
        for _ in operator.process(batch):
            pass
        first = first or operator.cache.table.capacity
    assert operator.cache.table.capacity > 1.3 * first
    assert operator.stats.memory_peak <= operator.ledger.budget
