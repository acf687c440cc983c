"""Segments that fill whole pages of the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millstream.master import Master, build_local

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
