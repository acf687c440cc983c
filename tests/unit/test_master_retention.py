"""Which versions of a master stay, and that what goes leaves nothing behind."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from driving import run_join
from millstream import joins
from millstream.errors import MasterNotFound, MillstreamError
from millstream.master import Build, Master, build_local, retention, write_part
from millstream.master.files import Store
from millstream.master.retention import PIN_SECONDS, pinned, sweep


def table(version: int) -> pa.Table:
    return pa.table({"k": np.arange(300), "version": np.full(300, version)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A master with five versions."""
    for version in range(1, 6):
        build_local(table(version), tmp_path / "m", key="k", segment_bytes=1_024)
    return tmp_path / "m"


def pin(path: Path, version: int, *, query: str = "query", batch: int = 0, age: float = 0) -> Path:
    file = path / "pins" / query / str(batch)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(str(version))
    os.utime(file, (time.time() - age,) * 2)
    return file


def folders(path: Path) -> int:
    return len(os.listdir(path / "data"))


def assert_there(path: Path, *expected: int) -> None:
    assert Master.open(path).versions == list(expected)
    assert folders(path) == len(expected)
    for version in expected:
        master = Master.open(path, version=version)
        master.verify()
        found = run_join("inlj", master, pa.table({"k": [0, 299]}), on="k")
        assert found["version"].to_pylist() == [version] * 2


def test_recent_versions_stay(path: Path) -> None:
    assert sweep(Store(path)) == []
    assert_there(path, 1, 2, 3, 4, 5)


def test_old_versions_go_but_the_newest(path: Path) -> None:
    assert sweep(Store(path), keep_seconds=0) == [1, 2, 3, 4]
    assert_there(path, 5)
    assert sweep(Store(path), keep_seconds=0) == []
    assert build_local(table(6), path, key="k").version == 6
    assert_there(path, 5, 6)


def test_pinned_versions_stay(path: Path) -> None:
    pin(path, 2)
    pin(path, 4, batch=1)
    file = pin(path, 4, query="other", batch=17)
    assert pinned(Store(path)) == {2, 4}
    assert sweep(Store(path), keep_seconds=0) == [1, 3]
    assert_there(path, 2, 4, 5)
    file.unlink()
    pin(path, 5, batch=1)
    assert sweep(Store(path), keep_seconds=0) == [4]
    assert_there(path, 2, 5)


def test_old_and_unreadable_pins_hold_nothing(path: Path) -> None:
    pin(path, 2, age=PIN_SECONDS + 60)
    pin(path, 77, batch=1)
    pin(path, 3, batch=2).write_bytes(b"\xff three")
    pin(path, 3, batch=3).write_bytes(b"")
    assert pinned(Store(path)) == {77}
    assert sweep(Store(path), keep_seconds=0) == [1, 2, 3, 4]


def test_a_version_is_as_old_as_what_superseded_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest may be a year old: it goes a day after it was replaced, not with the build that replaces it."""
    real = retention.manifests.load

    def backdated(store: Store, version: int | None = None) -> object:
        manifest = real(store, version)
        if manifest.version <= 4:
            object.__setattr__(manifest, "created", f"2020-01-0{manifest.version}T00:00:00+00:00")
        return manifest

    monkeypatch.setattr(retention.manifests, "load", backdated)
    assert sweep(Store(path)) == [1, 2, 3]


def test_folders_of_dead_builds_go_and_running_ones_are_not_disturbed(path: Path) -> None:
    (path / "data" / "0123" / "deeper").mkdir(parents=True)
    (path / "data" / "0123" / "part-00000.arrow").write_bytes(b"half")
    assert sweep(Store(path)) == []
    assert_there(path, 1, 2, 3, 4, 5)
    with Build.begin(path, table(6).schema, key="k") as build:
        summary = write_part(build.spec, table(6).to_batches(), 0)
        build.commit([summary])
    assert_there(path, 1, 2, 3, 4, 5, 6)


def test_an_aborted_build_leaves_nothing(path: Path) -> None:
    with Build.begin(path, table(6).schema, key="k") as build:
        write_part(build.spec, table(6).to_batches(), 0)  # and no commit
    assert_there(path, 1, 2, 3, 4, 5)
    with Build.begin(path, table(6).schema, key="k") as build:
        build.abort()
        build.abort()
    assert_there(path, 1, 2, 3, 4, 5)


def test_a_failure_after_the_commit_leaves_the_new_version(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its manifest is there a version is there, whatever goes wrong in tidying up."""

    def failing(*_: object, **__: object) -> list[int]:
        raise PermissionError("no deleting here")

    monkeypatch.setattr("millstream.master.build.sweep", failing)
    try:
        build_local(table(6), path, key="k")
    except (OSError, MillstreamError):
        assert 6 in Master.open(path).versions
    assert Master.open(path).version == 6
    assert Master.open(path).verify() > 0


@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_reading_a_version_that_was_dropped(algorithm: str, path: Path) -> None:
    """Files that are open are read on; those opened too late are missing by name."""
    late = Master.open(path, version=1)
    reading = joins.create(algorithm, Master.open(path, version=1), on="k", memory="1MB")
    stream = pa.RecordBatch.from_pydict({"k": [5]})
    assert len([*reading.process(stream), *reading.flush()]) == 1
    sweep(Store(path), keep_seconds=0)
    again = [*reading.process(pa.RecordBatch.from_pydict({"k": [5, 200]})), *reading.flush()]
    assert sum(len(batch) for batch in again) == 2
    reading.close()
    with pytest.raises(MasterNotFound, match=re.escape(str(path))):
        run_join(algorithm, late, [stream], on="k")
