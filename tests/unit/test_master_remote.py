"""A master on a filesystem that is not local: built, read and joined through pyarrow alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from pyarrow._fs import _MockFileSystem

from driving import run_join
from millstream import joins
from millstream.errors import BuildConflict, CorruptMaster, InputError, MasterNotFound, NotAMaster
from millstream.master import Build, Master, build_local, write_part
from millstream.master import files as master_files
from millstream.master.files import Store
from millstream.master.retention import sweep
from oracle import assert_same_bag, expected_join

URI = "far://bucket/master"
TABLE = pa.table(
    {
        "k": pa.array([*range(2_000), *([7] * 40), None, None], pa.int64()),
        "text": [f"row {i}" * (i % 5) for i in range(2_042)],
        "hits": pa.array(np.arange(2_042) % 17),
    }
)
STREAM = pa.table({"k": pa.array([*range(0, 4_000, 3), 7, 7, None]), "event": np.arange(1_337)})


@pytest.fixture(params=["memory", "subtree"])
def remote(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[pafs.FileSystem]:
    """What `far://` opens: a filesystem in memory, or one of pyarrow's that is not the local one."""
    filesystem: Any = (
        _MockFileSystem()
        if request.param == "memory"
        else pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    )

    class Filesystems:
        LocalFileSystem, FileSelector, FileType = pafs.LocalFileSystem, pafs.FileSelector, pafs.FileType

        class FileSystem:
            @staticmethod
            def from_uri(uri: str) -> tuple[pafs.FileSystem, str]:
                return filesystem, uri.removeprefix("far://")

    monkeypatch.setattr(master_files, "pafs", Filesystems)
    return filesystem


def build(table: pa.Table = TABLE, **arguments: Any) -> Master:
    return build_local(table, URI, **{"key": "k", "segment_bytes": 1_024, **arguments})


def files(remote: pafs.FileSystem, folder: str = "bucket/master") -> dict[str, bytes]:
    found = {}
    for info in remote.get_file_info(pafs.FileSelector(folder, recursive=True, allow_not_found=True)):
        if info.type == pafs.FileType.File:
            with remote.open_input_file(info.path) as file:
                found[info.path] = file.read()
    return found


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("layout", ["key", "frequency"])
@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
@pytest.mark.usefixtures("remote")
def test_every_join(algorithm: str, layout: str, how: str) -> None:
    build(layout=layout, frequency="hits" if layout == "frequency" else None)
    master = Master.open(URI)
    assert (master.path, master.store.local, master.version, master.rows) == (URI, False, 1, len(TABLE))
    assert master.verify() > 50
    least = joins.least_memory(algorithm, master, on="k", how=how)
    for memory in (least, 4_000_000):
        result = run_join(algorithm, master, STREAM, on="k", how=how, memory=memory)
        assert_same_bag(result, expected_join(STREAM, TABLE, on="k", how=how))


@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_text_keys_and_many_absent_ones(algorithm: str, remote: pafs.FileSystem) -> None:
    """The filter is read from there too, and direct reads are asked for in vain."""
    table = pa.table({"k": [f"key {i}" for i in range(500)], "v": np.arange(500)})
    build(table)
    stream = pa.table({"k": [f"key {i}" for i in range(0, 20_000, 5)]})
    result = run_join(algorithm, Master.open(URI, direct=True), stream, on="k", how="left", memory="2MB")
    assert_same_bag(result, expected_join(stream, table, on="k", how="left"))


def test_versions_and_leftovers(remote: pafs.FileSystem) -> None:
    assert [build().version for _ in range(3)] == [1, 2, 3]
    assert Master.open(URI, version=2).verify() > 0
    assert sweep(Store(URI), keep_seconds=0) == [1, 2]
    assert Master.open(URI).versions == [3]
    assert Master.open(URI).verify() > 0
    with pytest.raises(MasterNotFound, match="no version 1"):
        Master.open(URI, version=1)


def test_dropped_versions_leave_no_files(remote: pafs.FileSystem) -> None:
    for _ in range(3):
        build()
    sweep(Store(URI), keep_seconds=0)
    wanted = {f"bucket/master/{name}" for name in Master.open(URI).manifest.files()}
    assert {name for name in files(remote) if "/data/" in name} == wanted


def test_two_builders(remote: pafs.FileSystem) -> None:
    """Without a lock both begin; the second to commit is refused and takes its files away."""
    build()
    sorted_table = TABLE.drop_null().sort_by("k")
    with Build.begin(URI, TABLE.schema, key="k") as first, Build.begin(URI, TABLE.schema, key="k") as second:
        summaries = [write_part(one.spec, sorted_table.to_batches(), 0) for one in (first, second)]
        assert first.commit([summaries[0]]).version == 2
        after = files(remote)
        with pytest.raises(BuildConflict, match="version 2"):
            second.commit([summaries[1]])
    assert Master.open(URI).version == 2
    assert Master.open(URI).verify() > 0
    gone = after.keys() - files(remote).keys()
    assert gone
    assert all(second.spec.folder in name for name in gone)


def test_a_build_that_fails_leaves_the_old_version(remote: pafs.FileSystem) -> None:
    build()
    before = files(remote)
    backwards = TABLE.take(pa.array(range(1_999, -1, -1)))
    with pytest.raises(InputError, match="sorted"), Build.begin(URI, TABLE.schema, key="k") as failing:
        write_part(failing.spec, backwards.to_batches(), 0)
    assert files(remote) == before


@pytest.mark.usefixtures("remote")
def test_nothing_there() -> None:
    with pytest.raises(MasterNotFound, match=URI):
        Master.open(URI)


def test_something_else_is_there(remote: pafs.FileSystem) -> None:
    remote.create_dir("bucket/master")
    with remote.open_output_stream("bucket/master/precious.csv") as file:
        file.write(b"1,2")
    with pytest.raises(NotAMaster, match=URI):
        Master.open(URI)
    with pytest.raises(InputError, match=URI):
        build()


@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_damage(algorithm: str, remote: pafs.FileSystem) -> None:
    master = build()
    name = f"bucket/master/{master.manifest.parts[0].file}"
    content = bytearray(files(remote)[name])
    at = int(master.index.offset[20]) + 100
    content[at] ^= 1

    def spoiled(data: bytes) -> CorruptMaster:
        with remote.open_output_stream(name) as file:
            file.write(data)
        with pytest.raises(CorruptMaster) as caught:
            run_join(algorithm, Master.open(URI), STREAM, on="k")
        return caught.value

    assert "segment 20 of" in str(spoiled(bytes(content)))
    assert "is cut off" in str(spoiled(bytes(content[:at])))
    remote.delete_file(name)
    with pytest.raises(MasterNotFound, match="is gone"):
        run_join(algorithm, Master.open(URI), STREAM, on="k")


@pytest.mark.parametrize("form", ["{}", "file://{}"])
@pytest.mark.parametrize("folder", ["plain", "with space", "ünïcode 日本", "per%20cent", "a#b?c", "dots.and-dashes"])
def test_local_paths(folder: str, form: str, tmp_path: Path) -> None:
    """Any folder as a path; as a URI too, when it is written as URIs are."""
    place = tmp_path / folder / "m"
    path = str(place) if form == "{}" else place.as_uri()
    table = pa.table({"k": [1, 2], "v": [3, 4]})
    assert build_local(table, path, key="k").version == 1
    assert place.is_dir()
    assert Master.open(path).store.local
    assert Master.open(place).path == Master.open(path).path
    assert run_join("auto", Master.open(path), pa.table({"k": [2]}), on="k")["v"].to_pylist() == [4]
