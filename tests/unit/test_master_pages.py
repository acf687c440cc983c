"""Segments that fill whole pages of the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millstream.master import Master, build_local
from millstream.master.row_sizes import row_bytes

PAGE = 4096
ROWS = 20_000


def products(name_bytes: int = 40) -> pa.Table:
    """Rows of different length, some with NULL."""
    lengths = np.random.default_rng(3).integers(name_bytes // 2, name_bytes + 1, ROWS)
    names = [None if i % 97 == 0 else chr(97 + i % 26) * n for i, n in enumerate(lengths.tolist())]
    return pa.table({"k": np.arange(ROWS), "name": names, "price": np.arange(ROWS) / 7, "n": np.arange(ROWS) % 5})


def whole(master: Master) -> float:
    """Which share of the segments begins and ends with a page."""
    begins = master.index.offset.astype(np.int64)
    ends = begins + master.index.length
    return float(((begins % PAGE == 0) & (ends % PAGE == 0)).mean())


def streamed(master: Master) -> pa.Table:
    """All rows as any Arrow reader finds them."""
    return pa.concat_tables(
        pa.ipc.open_stream(Path(master.store.full(part.file)).read_bytes()).read_all() for part in master.manifest.parts
    )


@pytest.mark.parametrize("segment_bytes", [4096, 8192, 65_536])
def test_segments_fill_whole_pages(segment_bytes: int, tmp_path: Path) -> None:
    table = products()
    master = build_local(table, tmp_path / "m", key="k", segment_bytes=segment_bytes)
    assert whole(master) > 0.98
    assert master.statistics.max_segment_bytes <= segment_bytes + PAGE
    assert np.median(master.index.length) == segment_bytes
    assert streamed(master).equals(table)
    master.verify()


def nested() -> pa.Table:
    """Rows whose nested columns are anything between nothing and much."""
    rng = np.random.default_rng(4)
    tags = [None if n == 0 else [f"tag {i}" * (i % 4) for i in range(n)] for n in rng.integers(0, 9, ROWS).tolist()]
    place = [None if i % 31 == 0 else {"x": i / 3, "near": list(range(i % 12))} for i in range(ROWS)]
    prices = [[(f"shop {j}", j * 1.5) for j in range(i % 6)] for i in range(ROWS)]
    return pa.table(
        {
            "k": np.arange(ROWS),
            "tags": pa.array(tags, pa.list_(pa.string())),
            "place": pa.array(place, pa.struct({"x": pa.float64(), "near": pa.list_(pa.int16())})),
            "prices": pa.array(prices, pa.map_(pa.string(), pa.float64())),
            "colour": pa.array([[i % 256, 0, 7] for i in range(ROWS)], pa.list_(pa.uint8(), 3)),
            "sold": pa.array([i % 3 == 0 for i in range(ROWS)]),
        }
    )


def test_segments_with_nested_columns_fill_whole_pages(tmp_path: Path) -> None:
    table = nested()
    master = build_local(table, tmp_path / "m", key="k")
    assert whole(master) > 0.9
    assert streamed(master).equals(table)
    master.verify()


@pytest.mark.parametrize("start", [0, 1, 777])
def test_bytes_of_rows_are_those_that_a_segment_has(start: int) -> None:
    """Also of rows in the middle of a batch, whose arrays have an offset."""
    (batch,) = nested().combine_chunks().to_batches()
    metadata, buffers = len(pa.RecordBatch.from_pylist([], schema=batch.schema).serialize()), 24
    for rows in (64, 500):
        segment = batch.slice(start, rows)
        beside = len(segment.serialize()) - metadata - int(row_bytes(segment).sum())
        assert abs(beside) < buffers * (32 + rows // 8)  # they are padded to 64 bytes, and some say what is NULL


def test_padding_costs_little(tmp_path: Path) -> None:
    master = build_local(products(), tmp_path / "m", key="k")
    packed = build_local(products(), tmp_path / "packed", key="k", segment_bytes=PAGE - 1)
    per_row = [one.statistics.bytes / ROWS for one in (master, packed)]
    assert per_row[0] < per_row[1]  # fewer segments, each with metadata, although they are padded


@pytest.mark.parametrize("name_bytes", [3_000, 9_000])
def test_long_rows_are_not_padded_to_pages(name_bytes: int, tmp_path: Path) -> None:
    table = products(name_bytes).slice(0, 400)
    master = build_local(table, tmp_path / "m", key="k")
    assert master.statistics.bytes < 1.07 * (table.nbytes + 600 * master.statistics.segments + PAGE)
    assert streamed(master).equals(table)
    master.verify()


def test_small_segments_stay_small(tmp_path: Path) -> None:
    master = build_local(products(), tmp_path / "m", key="k", segment_bytes=1024)
    assert master.statistics.max_segment_bytes < 2 * 1024
    assert int(master.index.offset[0]) < PAGE
