"""Joins with Parquet that nobody prepared: files as they are found, in row groups large and small."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driving import run_join
from millstream import joins
from millstream.errors import (
    BudgetTooSmall,
    CorruptMaster,
    InputError,
    MasterNotFound,
    NotAMaster,
    UnknownColumn,
    UnsupportedType,
)
from millstream.master import Master, ParquetScan, build_local
from oracle import assert_same_bag, expected_join

every_scan = pytest.mark.parametrize("algorithm", joins.SCANS)
every_how = pytest.mark.parametrize("how", joins.HOWS)

ROWS = 3_000
TABLE = pa.table(
    {
        "id": pa.array([None if i % 97 == 0 else f"p{i * 7 % 2_000}" for i in range(ROWS)]),
        "name": [f"name {i}" * (i % 4) for i in range(ROWS)],
        "colour": pa.array([("red", "green", None)[i % 3] for i in range(ROWS)]).dictionary_encode(),
        "price": pa.array(np.arange(ROWS) / 4),
        "tags": pa.array(
            [[i, None] if i % 5 else None for i in range(ROWS)], pa.list_(pa.field("element", pa.int64()))
        ),
        "size": [{"w": i, "h": f"{i}"} for i in range(ROWS)],
        "flag": [i % 3 == 0 for i in range(ROWS)],
    }
)
PLAIN = TABLE.set_column(2, "colour", TABLE["colour"].cast(pa.string()))
STREAM = pa.table(
    {
        "id": [None if i % 41 == 0 else f"p{i * 3 % 2_500}" for i in range(2_000)],
        "event": np.arange(2_000),
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with row groups of different sizes, an empty file, and what committers leave behind."""
    path = tmp_path_factory.mktemp("parquet") / "r"
    (path / "deeper").mkdir(parents=True)
    pq.write_table(TABLE.slice(0, 1_000), path / "a.parquet", row_group_size=300)
    pq.write_table(TABLE.slice(1_000, 1_500), path / "b.parquet")
    pq.write_table(TABLE.slice(2_500), path / "deeper" / "c.parquet", row_group_size=77, compression="zstd")
    pq.write_table(TABLE.slice(0, 0), path / "d.parquet")
    (path / "_SUCCESS").write_text("")
    (path / ".hidden.parquet").write_text("not parquet")
    return path


@every_how
@every_scan
def test_every_join(algorithm: str, how: str, folder: Path) -> None:
    scan = Master.scan(folder, key="id")
    assert (scan.rows, scan.version, scan.key, scan.schema.names) == (ROWS, 0, ["id"], TABLE.schema.names)
    least = joins.least_memory(algorithm, scan, on="id", how=how)
    for memory in (least, 3 * least, 16_000_000):
        result = run_join(algorithm, scan, STREAM, on="id", how=how, memory=memory)
        assert_same_bag(result, expected_join(STREAM, PLAIN, on="id", how=how))


@every_scan
def test_row_groups_that_are_too_large_for_the_buffer(algorithm: str, tmp_path: Path) -> None:
    table = pa.table({"k": np.arange(200_000) % 7_000, "text": [f"row {i}" * 5 for i in range(200_000)]})
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=200_000)
    scan = Master.scan(tmp_path / "one.parquet", key="k")
    stream = pa.table({"k": np.arange(0, 9_000, 9)})
    least = joins.least_memory(algorithm, scan, on="k")
    assert least < table.nbytes // 2
    operator = joins.create(algorithm, scan, on="k", memory=least)
    out = [*operator.process(stream.to_batches()[0]), *operator.flush()]
    assert operator.stats.disk_reads > 100, "in many stretches"
    assert operator.ledger.peak <= least
    operator.close()
    assert_same_bag(pa.Table.from_batches(out), expected_join(stream, table, on="k", how="inner"))
    with pytest.raises(BudgetTooSmall, match=str(least)):
        joins.create(algorithm, scan, on="k", memory=least - 1)


def test_only_what_is_needed_is_decoded(folder: Path) -> None:
    def read(**options: Any) -> int:
        operator = joins.create("meshjoin", Master.scan(folder, key="id"), on="id", **options)
        list(operator.process(STREAM.to_batches()[0]))
        list(operator.flush())
        operator.close()
        return int(operator.stats.bytes_read)

    assert read(how="left_semi") < read(columns=["price"]) < read()


def test_other_columns_wait_for_a_match(tmp_path: Path) -> None:
    """When no row of the row groups before had a match, the keys alone are read ahead."""
    table = pa.table({"k": np.arange(100_000), "text": [f"row {i}" for i in range(100_000)]})
    pq.write_table(table, tmp_path / "r.parquet", row_group_size=1_000, compression="none")
    scan = Master.scan(tmp_path / "r.parquet", key="k")
    operator = joins.create("meshjoin", scan, on="k", memory="8MB")
    out = [*operator.process(pa.RecordBatch.from_pydict({"k": [99_500]})), *operator.flush()]
    assert [row["text"] for batch in out for row in batch.to_pylist()] == ["row 99500"]
    assert operator.stats.bytes_read < scan.encoded_bytes * 0.75
    operator.close()


def test_files_and_uris(folder: Path) -> None:
    names = ["a.parquet", "b.parquet", "deeper/c.parquet"]
    for path in ([folder / name for name in names], [f"file://{folder}/{name}" for name in names], f"file://{folder}"):
        scan = Master.scan(path, key="id")
        assert scan.rows == ROWS
        result = run_join("meshjoin", scan, STREAM, on="id", columns=["price"])
        assert_same_bag(result, expected_join(STREAM, PLAIN, on="id", how="inner", columns=["price"]))


def test_columns_in_the_names_of_folders(tmp_path: Path) -> None:
    for year in (2023, 2024):
        for country in ("DE", "FR"):
            (tmp_path / f"year={year}" / f"country={country}").mkdir(parents=True)
            part = pa.table({"k": [1, 2], "v": [year, year]})
            pq.write_table(part, tmp_path / f"year={year}" / f"country={country}" / "x.parquet")
    scan = Master.scan(tmp_path, key=["k", "country"])
    assert set(scan.schema.names) == {"k", "v", "year", "country"}
    stream = pa.table({"k": [2, 2], "country": ["FR", "IT"]})
    result = run_join("meshjoin", scan, stream, on=["k", "country"], how="left")
    assert sorted(result["year"].to_pylist(), key=str) == [2023, 2024, None]


def test_a_scan_travels(folder: Path) -> None:
    scan = pickle.loads(pickle.dumps(Master.scan(folder, key="id")))
    assert isinstance(scan, ParquetScan)
    result = run_join("meshjoin", scan, STREAM, on="id", columns=["price"])
    assert len(result) == len(expected_join(STREAM, PLAIN, on="id", how="inner"))


@pytest.mark.parametrize("shares", [2, 5, 40])
def test_shares_of_the_pages_make_up_the_whole(shares: int, folder: Path) -> None:
    scan = Master.scan(folder, key="id")
    out = []
    for share in range(shares):
        operator = joins.create("meshjoin", scan, on="id", columns=["price"], drained=True)
        operator.restrict(share, shares)
        out += [*operator.process(STREAM.to_batches()[0]), *operator.flush()]
        operator.close()
    want = expected_join(STREAM, PLAIN, on="id", how="inner", columns=["price"])
    assert_same_bag(pa.Table.from_batches(out), want)


class TestBadInput:
    @pytest.mark.parametrize("algorithm", [name for name in joins.ALGORITHMS if name not in (*joins.SCANS, "auto")])
    def test_index_joins_say_what_to_do(self, algorithm: str, folder: Path) -> None:
        with pytest.raises(InputError, match=r"no index.*meshjoin.*build_master"):
            joins.create(algorithm, Master.scan(folder, key="id"), on="id")

    def test_auto_scans(self, folder: Path) -> None:
        result = run_join("auto", Master.scan(folder, key="id"), STREAM, on="id", columns=["price"])
        assert len(result) > 0

    def test_paths(self, tmp_path: Path) -> None:
        with pytest.raises(MasterNotFound, match="nowhere"):
            Master.scan(tmp_path / "nowhere", key="k")
        with pytest.raises(NotAMaster, match="no Parquet"):
            Master.scan(tmp_path, key="k")
        (tmp_path / "x.csv").write_text("1,2")
        with pytest.raises(NotAMaster, match=r"x\.csv"):
            Master.scan(tmp_path, key="k")
        with pytest.raises(InputError, match="no files"):
            Master.scan([], key="k")
        build_local(pa.table({"k": [1]}), tmp_path / "m", key="k")
        with pytest.raises(InputError, match=r"Master\.open"):
            Master.scan(tmp_path / "m", key="k")

    def test_columns(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(UnknownColumn, match="'nr'"):
            Master.scan(folder, key="nr")
        with pytest.raises(UnknownColumn, match="'weight'"):
            Master.scan(folder, key="id", columns=["weight"])
        with pytest.raises(UnsupportedType, match="tags"):
            Master.scan(folder, key="tags")
        with pytest.raises(InputError, match="without a key"):
            joins.create("meshjoin", Master.scan(folder), on="id")
        with pytest.raises(InputError, match="id"):
            joins.create("meshjoin", Master.scan(folder, key="id"), on="name")

    def test_files_of_different_schemas(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"k": [1], "v": [1]}), tmp_path / "a.parquet")
        pq.write_table(pa.table({"k": [1], "v": ["x"]}), tmp_path / "b.parquet")
        with pytest.raises(InputError, match=r"'v' is string in .*b\.parquet and int64 in .*a\.parquet"):
            Master.scan(tmp_path, key="k")
        pq.write_table(pa.table({"k": [1]}), tmp_path / "b.parquet")
        with pytest.raises(InputError, match=r"b\.parquet has no column 'v'"):
            Master.scan(tmp_path, key="k")
        assert Master.scan(tmp_path, key="k", columns=[]).rows == 2

    @pytest.mark.parametrize("change", ["gone", "replaced", "damaged"])
    def test_files_that_change_afterwards(self, change: str, tmp_path: Path) -> None:
        file = tmp_path / "a.parquet"
        table = pa.table({"k": np.arange(5_000), "v": [f"{i}" for i in range(5_000)]})
        pq.write_table(table, file, row_group_size=1_000)
        scan = Master.scan(tmp_path, key="k")
        if change == "gone":
            file.unlink()
        elif change == "replaced":
            pq.write_table(table.slice(0, 3_000), file)
        else:
            content = bytearray(file.read_bytes())
            content[4:20_000] = bytes(len(content[4:20_000]))
            file.write_bytes(content)
        kind = CorruptMaster if change == "damaged" else MasterNotFound
        with pytest.raises(kind, match=r"a\.parquet"):
            run_join("meshjoin", scan, pa.table({"k": np.arange(100)}), on="k")
