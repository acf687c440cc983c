"""The memory of every process of the shop while it is open, seen from outside."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping

import psutil
from rich.table import Table

from .parts import Part

_MB = 1_000_000
_COLUMNS = 5


class Memory:
    """Resident sets by process, noted now and then; workers of Spark are one line, as they come and go."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = parts
        self.noted: list[tuple[float, dict[str, int]]] = []

    def note(self, at: float) -> None:
        """Look at all processes, `at` seconds after the opening."""
        found: dict[str, int] = {}
        for name, part in self._parts.items():
            for label, size in _processes(name, part.pid):
                found[label] = found.get(label, 0) + size
        self.noted.append((at, found))

    def table(self) -> Table:
        """The means of equal spans of the time that was noted, in megabytes."""
        spans = self.spans()
        table = Table(
            title="memory: resident set of each process in MB, mean over the time up to", title_justify="left"
        )
        table.title_style = "bold"
        table.add_column("process")
        length = self.noted[-1][0] if self.noted else 0.0
        for number in range(_COLUMNS):
            table.add_column(f"{length * (number + 1) / _COLUMNS:.0f} s", justify="right")
        for name, values in spans.items():
            table.add_row(name, *("-" if value is None else f"{value / _MB:,.0f}" for value in values))
        return table

    def spans(self) -> dict[str, list[float | None]]:
        """Mean bytes of each process in each of some equal spans of time; None where there was no such process."""
        length = (self.noted[-1][0] if self.noted else 0.0) or 1.0
        names = list(dict.fromkeys(name for _, found in self.noted for name in found))
        spans: dict[str, list[float | None]] = {}
        for name in names:
            held: list[list[int]] = [[] for _ in range(_COLUMNS)]
            for at, found in self.noted:
                if name in found:
                    held[min(_COLUMNS - 1, int(_COLUMNS * at / length))].append(found[name])
            spans[name] = [statistics.fmean(values) if values else None for values in held]
        return spans


def _processes(name: str, pid: int | None) -> list[tuple[str, int]]:
    """The processes of a part by what they are, with their resident sets."""
    found: list[tuple[str, int]] = []
    if pid is None:
        return found
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid)
        found.append((name, parent.memory_info().rss))
        for child in parent.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                words = " ".join(child.cmdline())
                kind = (
                    "JVM" if "java" in words.partition(" ")[0] else "Python workers" if "pyspark" in words else "sender"
                )
                found.append((f"{name}: {kind}", child.memory_info().rss))
    return found
