"""Builders that are killed at any point, and builders in two processes at once.

Whatever happens to a builder, the newest version opens, has exactly the rows of one build, and the next build works and
sweeps away what the dead one left.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from driving import run_join
from faults import builder_farm
from millstream.errors import BuildConflict, NotAMaster
from millstream.master import Master, build_local
from millstream.master.files import Store
from millstream.master.retention import sweep

ROWS = 3_000


class Farm:
    """Builders in processes of their own."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, builder_farm.__file__, str(folder / "warm")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words: object) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(*words, sep="\t", file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def start(self, where: str, path: Path, *, wait_until_ready: bool = True) -> int:
        pid = self.ask("start", path, ROWS, where)
        while wait_until_ready and not (path.parent / f"ready.{pid}").exists():
            time.sleep(0.002)
        return pid

    def wait(self, pid: int) -> int:
        return self.ask("wait", pid)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        assert self.wait(pid) == -signal.SIGKILL

    def build(self, where: str, path: Path) -> int:
        return self.wait(self.start(where, path, wait_until_ready=False))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    farm = Farm(tmp_path_factory.mktemp("farm"))
    yield farm
    farm.close()


def table(version: int) -> pa.Table:
    return builder_farm.table(ROWS, version)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    build_local(table(1), tmp_path / "m", key="k", segment_bytes=1_024)
    return tmp_path / "m"


def assert_sound(path: Path, rows_of: int, version: int | None = None) -> Master:
    """The newest version (or that one) is whole and has the rows of one build."""
    master = Master.open(path, version=version)
    master.verify()
    assert master.rows == ROWS
    found = run_join("auto", master, pa.table({"k": np.arange(0, ROWS, 7)}), on="k", memory="1MB")
    assert found["version"].unique().to_pylist() == [rows_of]
    assert sorted(found["text"].to_pylist()) == sorted(f"{i} of {rows_of}" for i in range(0, ROWS, 7))
    return master


def folders(path: Path) -> set[str]:
    return {f"data/{name}" for name in os.listdir(path / "data")}


def folders_of(path: Path) -> set[str]:
    """The data folders that some version uses."""
    versions = Master.open(path).versions
    return {name.rpartition("/")[0] for v in versions for name in Master.open(path, version=v).manifest.files()}


def assert_next_build_works(path: Path, before: int) -> None:
    assert build_local(table(3), path, key="k", segment_bytes=1_024).version == before + 1
    assert_sound(path, 3)
    assert folders(path) == folders_of(path), "nothing is left of the build that died"
    assert [name for name in os.listdir(path / "manifests") if not re.fullmatch(r"\d{10}\.json", name)] == []


@pytest.mark.parametrize("where", builder_farm.BEFORE_COMMIT)
def test_killed_before_the_commit(where: str, path: Path, farm: Farm) -> None:
    assert farm.build(where, path) == -signal.SIGKILL
    assert_sound(path, 1)
    assert Master.open(path).versions == [1]
    assert_next_build_works(path, 1)
    assert_sound(path, 1, version=1)


@pytest.mark.parametrize("where", builder_farm.BEFORE_COMMIT)
def test_killed_before_the_first_commit(where: str, tmp_path: Path, farm: Farm) -> None:
    """There is no master then, but nothing that is in the way of one."""
    assert farm.build(where, tmp_path / "m") == -signal.SIGKILL
    with pytest.raises(NotAMaster):
        Master.open(tmp_path / "m")
    assert_next_build_works(tmp_path / "m", 0)


@pytest.mark.parametrize("where", builder_farm.AFTER_COMMIT)
def test_killed_after_the_commit(where: str, path: Path, farm: Farm) -> None:
    assert farm.build(where, path) == -signal.SIGKILL
    assert assert_sound(path, 2).version == 2
    if where != "in the sweep":
        assert_sound(path, 1, version=1)
    assert_next_build_works(path, 2)


def test_killed_at_random_moments(path: Path, farm: Farm) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    moments = random.Random(seed)
    for _ in range(8):
        known = Master.open(path).version
        builder = farm.start("for ever", path)
        time.sleep(moments.uniform(0.0, 0.1))
        farm.kill(builder)
        assert Master.open(path).version >= known
        assert_sound(path, 1)
    assert_next_build_works(path, Master.open(path).version)


def test_a_second_process_is_refused_while_the_first_builds(path: Path, farm: Farm) -> None:
    builder = farm.start("hold", path)
    before = sorted(str(file) for file in path.rglob("*"))
    with pytest.raises(BuildConflict, match=re.escape(str(path))) as caught:
        build_local(table(9), path, key="k")
    assert caught.value.retryable
    assert sorted(str(file) for file in path.rglob("*")) == before
    assert_sound(path, 1)
    (path.parent / "go").touch()
    assert farm.wait(builder) == 0
    assert assert_sound(path, 7).version == 2


def test_the_lock_goes_with_a_killed_process(path: Path, farm: Farm) -> None:
    farm.kill(farm.start("hold", path))
    assert_next_build_works(path, 1)


def test_two_processes_race(path: Path, farm: Farm) -> None:
    """Each version has one winner, the others are told so, and every version is whole."""
    racers = [farm.start("race", path) for _ in range(2)]
    (path.parent / "go").touch()
    assert [farm.wait(racer) for racer in racers] == [0, 0]
    won = [int(version) for racer in racers for version in (path.parent / f"won.{racer}").read_text().split()]
    assert len(won) >= 2
    assert sorted(won) == list(range(2, len(won) + 2))
    assert Master.open(path).versions == list(range(1, len(won) + 2))
    for version in (2, max(won)):
        assert_sound(path, 0, version=version)
    assert sweep(Store(path), keep_seconds=0) == list(range(1, max(won)))
    assert folders(path) == folders_of(path)
