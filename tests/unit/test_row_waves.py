"""`auto` reads rows, not segments: waves of wanted rows give what DuckDB says, whatever the rows are."""

from __future__ import annotations

import datetime as dt
import gc
import itertools
import threading
import weakref
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from driving import direct, run_join
from millstream import joins
from millstream.joins.auto import AutoJoin
from millstream.joins.waves import RowWaves, SegmentWaves
from millstream.kernels.layout import Layout
from millstream.kernels.pages import PageTable
from millstream.master import Master, build_local
from millstream.master.part_files import Memory
from millstream.master.reader import IN_FLIGHT
from millstream.master.row_buffer import RowBuffer
from oracle import assert_same_bag, expected_join

KEYS = 3_000
MEMORY = "12MB"


def _rows(seed: int, keys: int = KEYS) -> pa.Table:
    """Rows with NULLs in every column, some keys many times, texts of very different length."""
    rng = np.random.default_rng(seed)
    key = np.concatenate([np.arange(0, 3 * keys, 3), rng.integers(0, keys // 10, keys // 4) * 3])
    rng.shuffle(key)
    n = len(key)

    def some(values: list[object], type_: pa.DataType) -> pa.Array:
        chosen = [
            values[i] if there else None
            for i, there in zip(rng.integers(0, len(values), n), rng.random(n) > 0.2, strict=True)
        ]
        return pa.array(chosen, type_)

    return pa.table(
        {
            "k": pa.array(key, pa.int64()),
            "flag": some([True, False], pa.bool_()),
            "tiny": some([-128, 127], pa.int8()),
            "small": some([-3, 4], pa.int16()),
            "number": some([1, -(2**31)], pa.int32()),
            "real": some([0.5, -0.0, float("nan")], pa.float64()),
            "money": some([Decimal("0.01"), Decimal("-9.99")], pa.decimal128(10, 2)),
            "day": some([dt.date(2024, 2, 29)], pa.date32()),
            "name": some(["", "plain", "日本語 😀", "long " * 60], pa.string()),
            "raw": some([b"", b"\0\xff", bytes(range(200))], pa.large_binary()),
            "five": some([b"12345"], pa.binary(5)),
            "full": pa.array([f"row {i}" for i in range(n)]),
        }
    )


def _stream(seed: int, keys: int = KEYS, rows: int = 6_000) -> pa.Table:
    rng = np.random.default_rng(seed)
    key = [
        int(value) if there else None
        for value, there in zip(rng.integers(-5, 3 * keys + 5, rows), rng.random(rows) > 0.05, strict=True)
    ]
    return pa.table({"k": pa.array(key, pa.int64()), "s": pa.array(np.arange(rows))})


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return _rows(1)


@pytest.fixture(scope="module")
def master(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Master:
    return build_local(table, tmp_path_factory.mktemp("rows") / "master", key="k")


def _waves(operator: object, stream: pa.Table) -> object:
    assert isinstance(operator, AutoJoin)
    list(operator.process(stream.slice(0, 1).to_batches()[0]))
    return operator.waves


@pytest.mark.parametrize("how", joins.HOWS)
@pytest.mark.parametrize("reads", ["cached", "direct"])
@pytest.mark.parametrize("batch_rows", [64, 6_000])
def test_same_as_duckdb(master: Master, table: pa.Table, how: str, reads: str, batch_rows: int) -> None:
    opened = direct(master) if reads == "direct" else master
    stream = _stream(2)
    operator = joins.create("auto", opened, on="k", how=how, memory=MEMORY)
    assert isinstance(_waves(operator, stream), RowWaves)
    found = run_join("auto", opened, stream, on="k", how=how, memory=MEMORY, batch_rows=batch_rows)
    assert_same_bag(found, expected_join(stream, table, on="k", how=how))


def test_keys_that_are_hashed(tmp_path: Path, table: pa.Table) -> None:
    texts = table.set_column(0, "k", table["k"].cast(pa.string()))
    stream = _stream(3)
    stream = stream.set_column(0, "k", stream["k"].cast(pa.string()))
    master = build_local(texts, tmp_path / "texts", key="k")
    found = run_join("auto", master, stream, on="k", how="left", memory=MEMORY)
    assert_same_bag(found, expected_join(stream, texts, on="k", how="left"))


def test_nested_columns_and_small_budgets_have_segments(tmp_path: Path, master: Master, table: pa.Table) -> None:
    stream = _stream(4)
    nested = table.append_column("list", pa.array([[1, None]] * len(table), pa.list_(pa.int32())))
    with_lists = build_local(nested, tmp_path / "nested", key="k")
    assert isinstance(_waves(joins.create("auto", with_lists, on="k", memory=MEMORY), stream), SegmentWaves)
    assert isinstance(_waves(joins.create("auto", master, on="k", memory="2MB"), stream), SegmentWaves)


def test_texts_that_get_longer_and_longer(tmp_path: Path) -> None:
    """The room for each column follows what its values were; what does not fit comes with the next wave."""
    n = 4_000
    texts = ["x" * (i // 8) for i in range(n)]
    table = pa.table({"k": np.arange(n), "a": texts, "b": texts[::-1]})
    master = build_local(table, tmp_path / "longer", key="k")
    stream = pa.table({"k": np.arange(n), "s": np.arange(n)})
    found = run_join("auto", master, stream, on="k", how="inner", memory="16MB", batch_rows=n)
    assert_same_bag(found, expected_join(stream, table, on="k", how="inner"))


def test_a_buffer_comes_further_whatever_it_has_room_for(master: Master, table: pa.Table) -> None:
    """With the least room, and after rows that were longer than all others, every fetch still has some keys."""
    pages = PageTable(Layout.of(master.stored_schema))
    columns = list(range(1, len(master.stored_schema)))
    least = RowBuffer.least(master, columns)
    reader = master.reader()
    buffer = RowBuffer(reader, pages, columns, key=pages.layout.column("k"), size=least, memory=Memory.of(1 << 16))
    keys = np.arange(0, 3 * KEYS, 3)
    segments = reader.index.segment_of(keys)
    for whole in (False, True):
        at, names = 0, []
        while at < len(keys):
            buffer.start(keys[at:], segments[at:], whole=whole, background=False)
            done = buffer.finish()
            assert done > 0
            refs = np.concatenate([np.arange(a, a + c) for a, c in zip(buffer.first, buffer.found, strict=True)])
            names += pages.measure(refs, [columns[-1]]).columns()[0].to_pylist()
            at += done
        assert sorted(names) == sorted(table["full"].to_pylist())


def test_a_join_that_was_given_up_can_go_on(master: Master, table: pa.Table) -> None:
    stream = _stream(5)
    (batch,) = stream.combine_chunks().to_batches()
    operator = joins.create("auto", master, on="k", how="inner", memory=MEMORY)
    list(operator.process(batch))
    next(iter(operator.flush()))  # reads are under way
    operator.close()
    again = joins.create("auto", master, on="k", how="inner", memory=MEMORY)
    out = [*itertools.chain(again.process(batch), again.flush())]
    expected = expected_join(stream, table, on="k", how="inner")
    assert_same_bag(pa.Table.from_batches(out), expected)


def _buffer(master: Master) -> tuple[RowBuffer, np.ndarray, np.ndarray]:
    """A buffer of rows, and keys to fetch with their segments."""
    pages, reader = PageTable(Layout.of(master.stored_schema)), master.reader()
    key = pages.layout.column("k")
    buffer = RowBuffer(reader, pages, [1, 2], key=key, size=1 << 18, memory=Memory.of(1 << 16))
    keys = np.arange(0, 3 * KEYS, 3)
    return buffer, keys, reader.index.segment_of(keys)


def test_memory_that_is_read_into_outlives_its_buffer(master: Master) -> None:
    buffer, keys, segments = _buffer(master)
    reader, held = buffer.reader, threading.Event()
    for _ in range(IN_FLIGHT):
        reader.pool.submit(held.wait)
    buffer.start(keys, segments, whole=False, background=True)
    memory = weakref.ref(buffer._memory)
    del buffer
    gc.collect()
    assert memory() is not None  # the read has not begun
    held.set()
    reader.close()
    gc.collect()
    assert memory() is None


def test_memory_of_a_buffer_that_is_let_go_is_free_at_once(master: Master) -> None:
    """Workers set what is there aside from the search for garbage."""
    buffer, keys, segments = _buffer(master)
    buffer.start(keys, segments, whole=False, background=False)
    buffer.finish()
    block = weakref.ref(buffer._block)
    gc.disable()
    try:
        del buffer
        assert block() is None
    finally:
        gc.enable()
