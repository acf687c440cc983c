"""What a benchmark has found: tables, targets with a verdict, and the files in `docs/`."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

RESULTS = "benchmarks/results.json"
PAGE = "benchmarks.md"
IMAGES = "images"

_TITLE = """\
# Benchmarks

Measured with `make bench ARGS="--out docs"`; the tables and plots below are written by it, as is
[the raw data](benchmarks/results.json). Everything is a comparison within one run: rates of a single machine say little
about another one, their ratios more. The targets are those that Millstream sets itself; where one is missed it says so.
"""


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; all columns but the first are numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", _line(self.head), _line(["---", *["---:"] * (len(self.head) - 1)])]
        lines += [_line(row) for row in self.rows]
        return "\n".join([*lines, "", self.note] if self.note else lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Check:
    """A figure with its target; `passed` is None for a figure that has no target, or that this run cannot judge."""

    what: str
    found: str
    target: str
    passed: bool | None

    @property
    def verdict(self) -> str:
        return {True: "PASS", False: "FAIL", None: "-"}[self.passed]


@dataclass(frozen=True)
class Section:
    """One benchmark's part of the report."""

    name: str
    title: str
    about: str
    checks: Sequence[Check]
    tables: Sequence[Table]
    raw: dict[str, Any]
    command: str = ""
    images: Sequence[str] = ()
    machine: dict[str, Any] = field(default_factory=lambda: machine())
    when: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))

    @property
    def check_table(self) -> Table:
        rows = [(check.what, check.found, check.target, check.verdict) for check in self.checks]
        return Table("Targets", ("", "found", "target", ""), rows)

    def markdown(self) -> str:
        """The section as it stands in `docs/benchmarks.md`."""
        machine = self.machine
        told = (
            f"`{self.command}` on {self.when[:10]}: {machine['cores']} cores ({machine['processor']}), "
            f"{machine['memory_gb']} GB of memory, Python {machine['python']}, load {machine['load']} at the end."
        )
        images = [f"![{alt}]({IMAGES}/{alt}.png)" for alt in self.images]
        tables = [table.markdown() for table in (self.check_table, *self.tables)]
        return "\n\n".join([f"## {self.title}", self.about, told, *images, *tables])


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "python": platform.python_version(),
        "system": platform.platform(),
        "load": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def write(section: Section, out: Path) -> list[Path]:
    """Put a section into the page and its raw data into the results file, beside what other sections have there."""
    page, results = out / PAGE, out / RESULTS
    results.parent.mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    known[section.name] = {
        "command": section.command,
        "when": section.when,
        "machine": section.machine,
        "checks": [{**asdict(check), "verdict": check.verdict} for check in section.checks],
        **section.raw,
    }
    results.write_text(json.dumps(known, indent=1) + "\n")
    text = page.read_text() if page.exists() else _TITLE
    page.write_text(replaced(text, section.name, section.markdown()))
    return [page, results]


def replaced(text: str, name: str, content: str) -> str:
    """The text with the part between the markers of this name replaced, or with such a part at its end."""
    begin, end = f"<!-- {name}: written by millstream bench -->", f"<!-- end of {name} -->"
    part = f"{begin}\n\n{content}\n\n{end}"
    if begin in text and end in text:
        return text[: text.index(begin)] + part + text[text.index(end) + len(end) :]
    return f"{text.rstrip()}\n\n{part}\n"
