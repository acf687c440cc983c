"""Runs join operators in other processes, which have seen nothing before: one for a time, or several by turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

from ..errors import MillstreamError
from .operator import Case, Measured


def measure_apart(case: Case) -> Measured:
    """Measure a case in a new process."""
    with _Process(case.name, asdict(case)) as process:
        return Measured(**process.answer())


class ByTurns:
    """Operators that are warm in a process of their own, and run for a window when they are asked to."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._all = list(range(len(cases)))
        self._process = _Process(cases[0].name, [asdict(case) for case in cases])

    def __enter__(self) -> ByTurns:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def turn(self, *places: int) -> list[float]:
        """The rates of these cases, or of all, one after the other."""
        self._process.ask(places or self._all)
        rates: list[float] = self._process.answer()
        return rates

    def close(self) -> None:
        self._process.close()


class _Process:
    """A process that measures what it is given and answers in lines of JSON."""

    def __init__(self, name: str, given: Any) -> None:
        self.name = name
        self.complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "millstream.bench.operator", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def ask(self, what: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self._fail()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else self._fail()

    def _fail(self) -> None:
        self.close()
        raise MillstreamError(f"measuring {self.name} failed: {self.said}")

    def close(self) -> None:
        if self.complaints.closed:
            return
        self.process.communicate()
        self.complaints.seek(0)
        self.said = (self.complaints.read().strip() or f"it ended with {self.process.returncode}").splitlines()[-1]
        self.complaints.close()
