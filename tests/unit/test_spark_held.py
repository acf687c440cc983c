"""Rows that are held until all are seen, in memory or in files: the same parts together."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millstream.spark.held import Held


@pytest.mark.parametrize("in_memory", [100, 20_000, 1 << 30])
def test_all_rows_of_a_number_come_in_one_part(in_memory: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    random = np.random.default_rng(5)
    added_rows, added_numbers, in_parts, numbers_in_parts = [], [], [], []
    with Held("n", in_memory=in_memory) as held:
        for size in (0, 1, 500, 3_000, 10):
            numbers = random.integers(0, 300, size)
            texts = [f"row {i} é" if i % 3 else None for i in numbers]
            rows = pa.record_batch({"n": numbers, "text": pa.array(texts, pa.string())})
            others = random.integers(0, 300, 2 * size)
            held.add(rows, others)
            added_rows += rows.to_pylist()
            added_numbers += others.tolist()
        assert any(tmp_path.iterdir()) == (in_memory < 1 << 30)
        for rows, numbers in held.parts():
            in_parts.append(rows.to_pylist())
            numbers_in_parts.append(numbers.tolist())
    assert not any(tmp_path.iterdir()), "files are left behind"
    assert sorted(map(str, chain(*in_parts))) == sorted(map(str, added_rows))
    assert sorted(chain(*numbers_in_parts)) == sorted(added_numbers)
    owners: dict[int, int] = {}
    for part, (rows, numbers) in enumerate(zip(in_parts, numbers_in_parts, strict=True)):
        for number in [*(row["n"] for row in rows), *numbers]:
            assert owners.setdefault(number, part) == part


def test_nothing_held_gives_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    with Held("n") as held:
        assert list(held.parts()) == []


def test_files_go_when_the_task_fails(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))

    def task() -> None:
        with Held("n", in_memory=10) as held:
            held.add(pa.record_batch({"n": np.arange(100)}), np.arange(3))
            assert any(tmp_path.iterdir())
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        task()
    assert not any(tmp_path.iterdir())
