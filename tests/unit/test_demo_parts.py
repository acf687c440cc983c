"""A part of the demo: what it said last is told when it ends too early, and it can be killed and started again."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from millstream.cli.demo.memory import Memory
from millstream.cli.demo.parts import Part
from millstream.errors import MillstreamError

PARENT = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True).pid, flush=True)
time.sleep(60)
"""


def test_a_part_that_ends_too_early(tmp_path: Path) -> None:
    part = Part("flow", ["-c", "exit('millstream: no Java')"], log=tmp_path / "log", environment={})
    part.start()
    with pytest.raises(MillstreamError, match=r"^the flow of the demo has ended: no Java$"):
        part.until(lambda: False, seconds=30)


def test_a_part_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    part = Part("flow", ["-c", PARENT], log=tmp_path / "log", environment={})
    for _ in range(2):
        part.start()
        assert part.runs
        part.until(lambda: part.said.endswith("\n"), seconds=30)
        child = int(part.said)
        assert psutil.pid_exists(child)
        part.kill()
        assert not part.runs
        assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    part.check()  # somebody has ended it


def test_the_memory_of_a_part_and_of_what_it_started(tmp_path: Path) -> None:
    part = Part("flow", ["-c", PARENT], log=tmp_path / "log", environment={})
    memory = Memory({"flow": part, "staging": Part("staging", [], log=tmp_path / "other", environment={})})
    memory.note(0.0)
    part.start()
    part.until(lambda: bool(part.said.strip()))
    memory.note(5.0)
    memory.note(10.0)
    part.kill()
    spans = memory.spans()
    assert list(spans) == ["flow", "flow: sender"]
    early, *_, late = spans["flow"]
    assert early is None
    assert late is not None
    assert late > 1_000_000
    assert memory.table().row_count == 2
