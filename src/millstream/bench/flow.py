"""The flow of the demo from capture to commit: how fresh the warehouse is at a rate, and which rate is sustained.

Each measurement is a run of `millstream demo`, with all its processes on this machine:

    at the rate       freshness of each table, and the memory of each process, once it has been open for a while
    beyond its power  more orders than can be loaded: a backlog grows in staging while the shop is open, and is worked
                      off when it is closed; batches are then as large as they may be, one after the other
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import MillstreamError
from ..units import format_bytes
from .report import Check, Section, Table

RATE = 20_000
OVERLOAD = 70_000
SUSTAINED_TARGET = 50_000
P50_TARGET, P99_TARGET = 1.0, 2.0
FLAT = 1.1  # the last span of time against the second one: in the first, caches and heaps still fill up
JUDGED = 300  # seconds: shorter runs say nothing about memory
_FULL = 0.9  # of the largest batch: there was more to take
_DEMO = "import sys; from millstream.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class Shop:
    """A run of the demo. `batches`: (seconds since the opening, rows). `memory`: mean bytes in spans of the time."""

    rate: int
    seconds: int
    closed: float
    freshness: dict[str, dict[str, Any]] = field(default_factory=dict)
    batches: list[tuple[float, int]] = field(default_factory=list)
    memory: dict[str, list[float | None]] = field(default_factory=dict)

    def sustained(self, *, closed: bool) -> float | None:
        """Rows/s from full batch to full batch, while the shop was open or after it was closed; None without any."""
        largest = max((rows for _, rows in self.batches), default=0)
        taken = [(at, rows) for at, rows in self.batches if rows >= _FULL * largest and (at > self.closed) == closed]
        if len(taken) < 3:
            return None
        return sum(rows for _, rows in taken[1:]) / (taken[-1][0] - taken[0][0])


def run_demo(rate: int, seconds: int, data: Path) -> Shop:
    """Run the demo; raises if it fails, which it does when an order is lost or doubled."""
    with tempfile.TemporaryDirectory(prefix="millstream-bench-flow-") as folder:
        report = Path(folder) / "report.json"
        options = ["--rate", str(rate), "--seconds", str(seconds), "--cache", str(data), "--report", str(report)]
        done = subprocess.run(
            [sys.executable, "-c", _DEMO, "demo", *options], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise MillstreamError(f"the demo failed: {(done.stderr or done.stdout).strip()[-500:]}")
        found = json.loads(report.read_text())
    return Shop(**found | {"batches": [(at, rows) for at, rows in found["batches"]]})


def run(data: Path, *, seconds: int, overload: int, say: Callable[[str], None]) -> tuple[Shop, Shop]:
    """The shop at its rate for so many seconds, then with more orders than it can take."""
    say(f"flow: {RATE:,} orders/s for {seconds} s")
    steady = run_demo(RATE, seconds, data)
    say(f"flow: {OVERLOAD:,} orders/s for {overload} s, then what has piled up")
    return steady, run_demo(OVERLOAD, overload, data)


def section(steady: Shop, crowded: Shop, *, command: str, full: bool) -> Section:
    """The report."""
    loaded = {name: one for name, one in steady.freshness.items() if one["p50"] is not None}
    p50, p99 = (max((one[name] for one in loaded.values()), default=0.0) for name in ("p50", "p99"))
    behind, along = crowded.sustained(closed=True), crowded.sustained(closed=False)
    flat = [name for name, spans in steady.memory.items() if (_growth(spans) or 0.0) > FLAT]
    at = f"at {steady.rate:,} rows/s"
    checks = [
        Check(f"freshness p50 {at}, worst table", f"{p50:.2f} s", f"<= {P50_TARGET:g} s", p50 <= P50_TARGET),
        Check(f"freshness p99 {at}, worst table", f"{p99:.2f} s", f"<= {P99_TARGET:g} s", p99 <= P99_TARGET),
        Check(
            "sustained by the flow, from staging to the warehouse",
            "-" if behind is None else f"{behind:,.0f} rows/s",
            f">= {SUSTAINED_TARGET:,} rows/s",
            behind is not None and behind >= SUSTAINED_TARGET if full else None,
        ),
        Check(
            f"processes whose memory grows by more than {FLAT - 1:.0%} in {steady.seconds} s",
            ", ".join(flat) or "none",
            "none",
            not flat if steady.seconds >= JUDGED else None,
        ),
    ]
    return Section(
        name="flow",
        title="The flow of the demo",
        about="`millstream demo`: two sources, their capture, staging, the flow on Spark with a master of a million "
        "products, and a DuckDB warehouse, all on one machine. Freshness is from the capture of a row to its commit.",
        checks=checks,
        tables=[_fresh_table(steady, loaded), _rate_table(crowded, behind, along), _memory_table(steady)],
        raw={"steady": asdict(steady), "crowded": asdict(crowded)},
        command=command,
    )


def _fresh_table(steady: Shop, loaded: dict[str, dict[str, Any]]) -> Table:
    names = ("p50", "p95", "p99", "longest")
    rows = [
        [table, f"{one['rows']:,}", *("-" if one[name] is None else f"{one[name]:.2f} s" for name in names)]
        for table, one in loaded.items()
    ]
    return Table(f"Freshness at {steady.rate:,} rows/s over {steady.seconds} s", ("table", "rows", *names), rows)


def _rate_table(crowded: Shop, behind: float | None, along: float | None) -> Table:
    said = {"while the sources make more": along, "when they are closed, working off the backlog": behind}
    rows = [[name, "-" if rate is None else f"{rate:,.0f}"] for name, rate in said.items()]
    return Table(
        f"Rows/s of the flow at {crowded.rate:,} orders/s",
        ("", "rows/s"),
        rows,
        note="From full batch to full batch. While the shop is open, its sources and their capture take part of the "
        "same cores.",
    )


def _memory_table(steady: Shop) -> Table:
    count = max((len(spans) for spans in steady.memory.values()), default=0)
    head = ("process", *(f"{steady.seconds * (number + 1) / count:.0f} s" for number in range(count)), "growth")
    rows = [
        [
            name,
            *("-" if value is None else format_bytes(value) for value in spans),
            "-" if (growth := _growth(spans)) is None else f"{growth - 1:+.0%}",
        ]
        for name, spans in steady.memory.items()
    ]
    return Table(
        "Memory of each process",
        head,
        rows,
        note="Resident set, mean over the time up to the second at the head of the column, with the pages that "
        "processes share; growth is that of the last column over the second.",
    )


def _growth(spans: Sequence[float | None]) -> float | None:
    if len(spans) < 3 or not spans[1] or spans[-1] is None:
        return None
    return spans[-1] / spans[1]
