"""Times the steps of an operator while it runs: each second is counted once, for the innermost step."""

from __future__ import annotations

import time
from collections.abc import Callable
from inspect import isgeneratorfunction
from typing import Any

from .curves import Sample

Tuples = Callable[[tuple[Any, ...], Any], float]


class Stopwatch:
    """Sums of seconds, calls and tuples by step. `tuples(arguments, result)` says how many a call worked on."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._stack: list[str] = []
        self._since = 0.0

    def reset(self) -> None:
        """Begin anew."""
        self._sums = {}
        self._since = time.perf_counter()

    def sample(self, step: str, size: float) -> Sample:
        """What was measured of a step, with a structure of this size."""
        seconds, calls, tuples = self._sums.get(step, (0.0, 0, 0.0))
        return Sample(size, int(calls), tuples, seconds)

    def time(self, owner: object, name: str, step: str, tuples: Tuples | None = None, *, inside: str = "") -> None:
        """Time a method of one object; a call inside of the step `inside` counts as `inside` + "." + `step`.

        Without `tuples` the seconds are the step's, but the call is not counted as one of it.
        """
        function = getattr(owner, name)

        def named() -> str:
            return f"{inside}.{step}" if inside and self._stack and self._stack[-1] == inside else step

        def call(*arguments: Any, **options: Any) -> Any:
            self._enter(named())
            result = None
            try:
                result = function(*arguments, **options)
            finally:
                self._leave(tuples, arguments, result)
            return result

        def generate(*arguments: Any) -> Any:
            self._enter(named())
            result = None
            try:
                result = yield from function(*arguments)
            finally:
                self._leave(tuples, arguments, result)
            return result

        setattr(owner, name, generate if isgeneratorfunction(function) else call)

    def _enter(self, step: str) -> None:
        self._charge()
        self._stack.append(step)

    def _leave(self, tuples: Tuples | None, arguments: tuple[Any, ...], result: Any) -> None:
        self._charge()
        step = self._stack.pop()
        if tuples is not None:
            sums = self._sums.setdefault(step, [0.0, 0, 0.0])
            sums[1] += 1
            sums[2] += tuples(arguments, result)

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._stack:
            self._sums.setdefault(self._stack[-1], [0.0, 0, 0.0])[0] += now - self._since
        self._since = now
