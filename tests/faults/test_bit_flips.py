"""Damage to the files of a master at many places: an error that names the file (and the segment), never a wrong result.

Bytes that nobody reads may change without harm: the schema at the start of a data file, which is there for other
readers of Arrow, and the end-of-stream mark at its end.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from driving import run_join
from millstream import joins
from millstream.errors import CorruptMaster, FormatTooNew, FormatTooOld, MasterNotFound, MillstreamError
from millstream.master import Master, build_local
from millstream.master.index import load_index
from oracle import assert_same_bag, bag, expected_join

ROWS = 150
TABLE = pa.table(
    {
        "k": pa.array([None if i % 29 == 28 else f"key {i * 7 % 100}" for i in range(ROWS)]),
        "text": [f"row {i}" * (i % 6) for i in range(ROWS)],
        "hits": pa.array(np.arange(ROWS) % 9),
    }
)
STREAM = pa.table({"k": [f"key {i % 130}" for i in range(260)]})
EXPECTED = expected_join(STREAM, TABLE, on="k", how="left")
SOUND = bag(EXPECTED)
FLIPS = 120  # in each file


@dataclass(frozen=True)
class Copy:
    """A master that may be damaged and made whole again."""

    path: Path
    master: Master

    def files(self, suffix: str) -> list[Path]:
        return sorted(self.path.rglob(f"*{suffix}"))

    def reader_of(self, file: Path) -> str:
        """An algorithm that reads this file, another one each time; scans have no use for the index on disk."""
        dense = any(part.file.split(".")[0] in str(file) for part in self.master.manifest.dense_parts)
        return next(index_turns if dense else turns)

    def segment(self, file: Path, position: int) -> int | None:
        """The segment of a data file that has this byte, if one has."""
        manifest = self.master.manifest
        (part,) = (
            part
            for part in (*manifest.parts, *manifest.null_parts, *manifest.dense_parts)
            if self.path / part.file == file
        )
        index = load_index(self.master.store, (part,))
        inside = (index.offset <= position) & (position < index.offset + index.length)
        return int(np.flatnonzero(inside)[0]) if inside.any() else None


@pytest.fixture(scope="module", params=["key", "frequency"])
def copy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Copy:
    path = tmp_path_factory.mktemp("flips") / "m"
    frequency = "hits" if request.param == "frequency" else None
    build_local(TABLE, path, key="k", layout=request.param, frequency=frequency, segment_bytes=512)
    return Copy(path, Master.open(path))


turns = itertools.cycle(joins.ALGORITHMS)
index_turns = itertools.cycle([name for name in joins.ALGORITHMS if name not in joins.SCANS])


def outcome(path: Path, algorithm: str | None = None) -> MillstreamError | None:
    """What a join of the whole stream says; None if its result is right."""
    try:
        master = Master.open(path)
        result = run_join(algorithm or next(turns), master, STREAM, on="k", how="left", memory="1MB")
    except MillstreamError as error:
        return error
    if bag(result) != SOUND:
        assert_same_bag(result, EXPECTED)
    return None


def verification(path: Path) -> MillstreamError | None:
    try:
        Master.open(path).verify()
    except MillstreamError as error:
        return error
    return None


def flips(file: Path, seed: int) -> Iterator[int]:
    """Change one bit after the other at places all over a file; the file is whole again at the end."""
    content = file.read_bytes()
    rng = np.random.default_rng(seed)
    for at in sorted(set(np.linspace(0, len(content) - 1, FLIPS).astype(int).tolist())):
        damaged = bytearray(content)
        damaged[at] ^= 1 << int(rng.integers(0, 8))
        file.write_bytes(damaged)
        try:
            yield at
        finally:
            file.write_bytes(content)


def test_the_copy_is_sound(copy: Copy) -> None:
    assert verification(copy.path) is None
    for algorithm in joins.ALGORITHMS:
        assert outcome(copy.path, algorithm) is None


def test_data(copy: Copy) -> None:
    """Every flip inside a segment is seen by `verify`, and by a join unless the segment is one that it never reads."""
    for file in copy.files(".arrow"):
        for at in flips(file, 1):
            segment = copy.segment(file, at)
            found, joined = verification(copy.path), outcome(copy.path, copy.reader_of(file))
            if segment is None:
                assert (found, joined) == (None, None), "only the schema and the end are outside of segments"
                continue
            for error in (found, joined):
                if error is not None:
                    assert type(error) is CorruptMaster
                    assert f"segment {segment} of {file} " in str(error)
            assert found is not None
            assert joined is not None or "nulls-" in file.name


@pytest.mark.parametrize("suffix", [".index", ".filter"])
def test_index_and_filter(copy: Copy, suffix: str) -> None:
    for file in copy.files(suffix):
        for _ in flips(file, 2):
            found, joined = verification(copy.path), outcome(copy.path, copy.reader_of(file))
            assert type(found) is CorruptMaster
            assert str(file) in str(found)
            if joined is not None:
                assert type(joined) is CorruptMaster
                assert str(file) in str(joined)
            else:
                assert suffix == ".filter" or "nulls-" in file.name, "it was not needed"


def test_manifest(copy: Copy) -> None:
    """Where white space or the number of an older format is changed nothing happens."""
    (file,) = copy.files(".json")
    harmless = 0
    for _ in flips(file, 3):
        error = verification(copy.path)
        if error is None:
            assert Master.open(copy.path).manifest == copy.master.manifest
            harmless += 1
        else:
            assert isinstance(error, CorruptMaster | FormatTooNew | FormatTooOld)
            assert str(file) in str(error)
    assert harmless < FLIPS // 3


@pytest.mark.parametrize("suffix", [".arrow", ".index", ".filter", ".json"])
def test_truncated(copy: Copy, suffix: str) -> None:
    for file in copy.files(suffix):
        content = file.read_bytes()
        try:
            for length in np.linspace(0, len(content) - 1, 40).astype(int).tolist():
                file.write_bytes(content[:length])
                found, joined = verification(copy.path), outcome(copy.path)
                end = len(content) - 8 if suffix == ".arrow" else len(content)
                if length < end:
                    assert type(found) is CorruptMaster, length
                    assert str(file) in str(found)
                    assert suffix != ".arrow" or "segment " in str(found)
                assert joined is None or (type(joined) is CorruptMaster and str(file) in str(joined))
        finally:
            file.write_bytes(content)


@pytest.mark.parametrize("suffix", [".arrow", ".index", ".filter"])
def test_files_of_another_version(copy: Copy, suffix: str, tmp_path: Path) -> None:
    """A file that is sound by itself but belongs elsewhere is not taken for ours."""
    other = TABLE.set_column(1, "text", pa.array([f"other {i}" for i in range(ROWS)]))
    layout = copy.master.layout
    build_local(
        other,
        tmp_path / "o",
        key="k",
        layout=layout,
        frequency="hits" if layout == "frequency" else None,
        segment_bytes=600,
    )
    strangers = sorted((tmp_path / "o").rglob(f"*{suffix}"))
    for file, stranger in zip(copy.files(suffix), strangers, strict=True):
        content = file.read_bytes()
        if stranger.read_bytes() == content:
            continue  # the filter is of the keys alone
        shutil.copy(stranger, file)
        try:
            assert type(verification(copy.path)) is CorruptMaster
            joined = outcome(copy.path)
            assert joined is None or type(joined) is CorruptMaster
        finally:
            file.write_bytes(content)


def test_a_manifest_of_another_master(copy: Copy, tmp_path: Path) -> None:
    build_local(TABLE, tmp_path / "o", key="k")
    (file,) = copy.files(".json")
    content = file.read_bytes()
    shutil.copy(next((tmp_path / "o").rglob("*.json")), file)
    try:
        for error in (verification(copy.path), outcome(copy.path)):
            assert isinstance(error, CorruptMaster | MasterNotFound)
            assert str(copy.path) in str(error)
    finally:
        file.write_bytes(content)


def test_an_operator_goes_on_after_damage_is_repaired(copy: Copy) -> None:
    """An error about a segment leaves no trace in a new operator, and none in the files."""
    part = copy.master.manifest.parts[0]
    file = copy.path / part.file
    content = file.read_bytes()
    for algorithm in joins.ALGORITHMS:
        file.write_bytes(content[: len(content) // 2] + b"\0" * (len(content) - len(content) // 2))
        assert type(outcome(copy.path, algorithm)) is CorruptMaster
        file.write_bytes(content)
        assert outcome(copy.path, algorithm) is None
