"""HYBRIDJOIN and those that build on it: what its partitions and its waiting rows do with the memory they have."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream import joins
from millstream.joins.hybridjoin import HybridJoin, partition_segments
from millstream.master import Master, build_local
from millstream.workloads import Workload

KEYS = 60_000


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Master:
    path: Path = tmp_path_factory.mktemp("hybridjoin") / "products"
    return build_local(Workload(keys=KEYS).master_table(), path, key="product_id")


def _run(operator: HybridJoin, rows: int) -> list[int]:
    """Feed a skewed stream; how many rows waited at the beginning of each iteration."""
    held: list[int] = []
    iterate = operator._iterate

    def watched():  # type: ignore[no-untyped-def]
        held.append(len(operator.waiting))
        yield from iterate()

    operator._iterate = watched  # type: ignore[method-assign]
    for batch in Workload(keys=KEYS, exponent=1.0).stream(rows, batch_rows=4096):
        for _ in operator.process(batch):
            pass
    return held


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("disk_buffer", [40_000, 64 << 10, 128 << 10, 256 << 10, 1 << 20])
def test_partitions_fit_into_the_disk_buffer(master: Master, disk_buffer: int, direct: bool) -> None:
    master = Master.open(master.path, direct=direct)
    operator = joins.create("hybridjoin", master, on="product_id", memory="8MB", disk_buffer=disk_buffer)
    assert isinstance(operator, HybridJoin)
    size = partition_segments(master, disk_buffer)
    found = [operator._partition(segment) for segment in range(0, master.statistics.segments - size, 7)]
    whole = sum(len(partition) == size for partition in found)
    assert whole > 0.99 * len(found)
    filled = size * master.statistics.bytes / master.statistics.segments
    assert filled > disk_buffer - 2 * 4096 - 2 * master.statistics.max_segment_bytes - 0.02 * disk_buffer
    operator.close()


@pytest.mark.parametrize(("memory", "share"), [(600_000, 0.78), (1_500_000, 0.9)])
def test_the_table_of_waiting_rows_stays_full(master: Master, memory: int, share: float) -> None:
    """Pages that are nearly empty are moved together: there is always room to do so. Without it, 0.70 and 0.78."""
    operator = joins.create("hybridjoin", master, on="product_id", memory=memory, disk_buffer=40_000)
    assert isinstance(operator, HybridJoin)
    held = _run(operator, 200_000)
    settled = held[len(held) // 4 :]
    assert sum(settled) / len(settled) > share * operator.waiting.table.capacity
    operator.close()


@pytest.mark.parametrize("algorithm", ["hybridjoin", "xhybridjoin", "cachejoin", "moij"])
def test_the_last_rows_of_a_micro_batch_read_their_own_segments(master: Master, algorithm: str) -> None:
    """Not a partition each: 40 rows that wait need 40 segments at most."""
    operator = joins.create(algorithm, master, on="product_id", how="left", memory="2MB", disk_buffer=128 << 10)
    batch = next(Workload(keys=KEYS, exponent=0.0, absent=0.1).stream(40, batch_rows=40))
    rows = sum(out.num_rows for out in operator.process(batch)) + sum(out.num_rows for out in operator.flush())
    assert rows == 40
    assert 0 < operator.stats.segments_read <= 40
    operator.close()
