"""Failpoints do what they are told, when they are told, and nothing otherwise."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from millstream import failpoints
from millstream.errors import InputError


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def test_nothing_happens_when_off() -> None:
    failpoints.reach("anything")


@pytest.mark.parametrize(("action", "number"), [("error", errno.EIO), ("enospc", errno.ENOSPC)])
def test_errors(action: str, number: int) -> None:
    failpoints.arm(f"a.b={action}, c.d={action}:2")
    failpoints.reach("a")
    for _ in range(2):
        with pytest.raises(OSError, match=r"a\.b") as caught:
            failpoints.reach("a.b")
        assert caught.value.errno == number
    failpoints.reach("c.d")
    with pytest.raises(OSError, match=r"c\.d"):
        failpoints.reach("c.d")
    failpoints.reach("c.d")


def test_sleep() -> None:
    failpoints.arm("a=sleep:0.05")
    begun = time.perf_counter()
    failpoints.reach("a")
    assert time.perf_counter() - begun >= 0.05


def test_kill_at_the_second_time() -> None:
    program = "from millstream.failpoints import reach\nfor i in range(5): reach('x'); print(i, flush=True)"
    environment = {**os.environ, "MILLSTREAM_FAILPOINTS": "x=kill:2"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == "0\n"


@pytest.mark.parametrize("text", ["a=explode", "a=kill:x", "a", "a=sleep:", "a=sleep:soon"])
def test_wrong_words(text: str) -> None:
    with pytest.raises(InputError, match="MILLSTREAM_FAILPOINTS"):
        failpoints.arm(text)
