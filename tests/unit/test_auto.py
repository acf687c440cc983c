"""What `auto` promises beyond the right result: its cache outlives a drained batch, and a sweep reads little."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millstream import joins
from millstream.master import Master, build_local
from millstream.workloads import Workload

KEYS = 60_000


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Master:
    path: Path = tmp_path_factory.mktemp("auto") / "products"
    return build_local(Workload(keys=KEYS).master_table(), path, key="product_id")


def test_the_cache_outlives_a_drained_batch(master: Master) -> None:
    budget = master.statistics.bytes // 2
    operator = joins.create("auto", master, on="product_id", how="left", memory=budget)
    hits = []
    for batch in Workload(keys=KEYS, exponent=1.0).stream(120_000, batch_rows=4_000):
        before = operator.stats.cache_hits
        rows = sum(out.num_rows for out in operator.process(batch)) + sum(out.num_rows for out in operator.flush())
        assert rows == batch.num_rows
        hits.append((operator.stats.cache_hits - before) / batch.num_rows)
    assert sum(hits[-5:]) / 5 > 0.6


@pytest.mark.parametrize("share", [4, 8])
def test_a_sweep_serves_more_rows_than_fit_at_once(master: Master, share: int) -> None:
    """A round over R serves nearly twice the rows that fit: the bytes read for each row show it."""
    operator = joins.create("auto", master, on="product_id", memory=master.statistics.bytes // share)
    held = []
    for batch in Workload(keys=KEYS, exponent=0.0).stream(400_000):
        held.extend(operator.waiting.rows for _ in operator.process(batch))
    rounds = operator.stats.bytes_read / master.statistics.bytes
    assert operator.stats.matched > 1.2 * rounds * sum(held) / len(held)


@pytest.mark.parametrize("algorithm", ["auto", "hybridjoin", "xhybridjoin", "cachejoin", "moij"])
def test_a_drained_batch_comes_in_few_pieces(master: Master, algorithm: str) -> None:
    """They are as large as the memory for results allows, however little each read gave."""
    operator = joins.create(algorithm, master, on="product_id", how="left", memory="2MB")
    (batch,) = Workload(keys=KEYS, exponent=0.0).stream(20_000, batch_rows=20_000)
    pieces = [out.num_rows for out in itertools.chain(operator.process(batch), operator.flush())]
    assert sum(pieces) == 20_000
    assert len(pieces) <= 1.1 * 20_000 / max(pieces) + 2


def test_a_master_that_fits_is_read_once(master: Master) -> None:
    operator = joins.create("auto", master, on="product_id", memory=4 * master.statistics.bytes)
    for batch in Workload(keys=KEYS, exponent=0.0).stream(300_000, batch_rows=10_000):
        for _ in operator.process(batch):
            pass
        for _ in operator.flush():
            pass
    assert operator.stats.segments_read <= master.statistics.segments
    assert operator.stats.bytes_read < 1.2 * master.statistics.bytes


def test_a_cache_for_a_good_part_of_r_fills_with_all_that_is_read(master: Master) -> None:
    operator = joins.create("auto", master, on="product_id", memory=int(0.6 * master.statistics.bytes))
    asked: set[int] = set()
    for batch in itertools.islice(Workload(keys=KEYS).stream(1 << 30, batch_rows=2_000), 4):
        _run(operator, [batch], drained=True)
        asked.update(batch["product_id"].to_pylist())
    assert operator.stats.cached_rows > 3 * len(asked)
    assert operator.ledger.peak <= operator.ledger.budget


@pytest.fixture(scope="module")
def by_frequency(tmp_path_factory: pytest.TempPathFactory) -> Master:
    workload = Workload(keys=KEYS)
    table = workload.master_table()
    popularity = workload.popularity(table["product_id"].to_numpy() // workload.step)
    return build_local(
        table.append_column("popularity", pa.array(popularity)),
        tmp_path_factory.mktemp("by-frequency") / "products",
        key="product_id",
        layout="frequency",
        frequency="popularity",
    )


def _run(operator: joins.Operator, batches: Iterable[pa.RecordBatch], *, drained: bool) -> None:
    for batch in batches:
        for _ in operator.process(batch):
            pass
        if drained:
            for _ in operator.flush():
                pass


def test_small_micro_batches_leave_the_memory_to_the_hottest_rows(by_frequency: Master) -> None:
    operator = joins.create("auto", by_frequency, on="product_id", memory=by_frequency.statistics.bytes // 3)
    stream = Workload(keys=KEYS).stream(1 << 30, batch_rows=2_000)
    _run(operator, itertools.islice(stream, 1), drained=False)
    rows = operator.stats.cached_rows
    _run(operator, itertools.islice(stream, 20), drained=True)
    assert operator.stats.cached_rows > 2 * rows
    assert operator.ledger.peak <= operator.ledger.budget
    # rows that have no room make it give way to those that wait
    _run(operator, Workload(keys=KEYS, exponent=0.0).stream(200_000), drained=False)
    for _ in operator.flush():
        pass
    _run(operator, itertools.islice(stream, 1), drained=False)
    assert operator.stats.cached_rows <= 1.1 * rows
    assert operator.ledger.peak <= operator.ledger.budget
    # and the memory of parts that were given up is free
    owners = {id(owner): owner for owner in operator.pages.owners if isinstance(owner, np.ndarray)}
    assert sum(owner.nbytes for owner in owners.values()) < operator.ledger.budget // 2


def test_a_master_by_frequency_that_fits_is_read_once(by_frequency: Master) -> None:
    operator = joins.create("auto", by_frequency, on="product_id", memory=4 * by_frequency.statistics.bytes)
    _run(operator, Workload(keys=KEYS, exponent=0.0).stream(100_000, batch_rows=10_000), drained=True)
    assert operator.stats.bytes_read < 1.05 * by_frequency.statistics.bytes
    assert operator.stats.cache_hits == 100_000
