"""What a person sees of the shop: a table that is kept up to date on a terminal, a line a second elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .counting import Figures

_OVER = 3.0  # seconds over which rates are taken


def open_console() -> Console:
    """Standard output, wide enough for the tables if it is a file."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@contextmanager
def step(console: Console, what: str) -> Iterator[None]:
    """Say what is done and how long it took."""
    begun = time.perf_counter()
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        yield
    console.print(f"{what}: {time.perf_counter() - begun:.1f} s")


class View:
    """Shows figures as they come; what is told in between stays above them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = time.monotonic()
        self._past: deque[Figures] = deque()
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, line: str) -> None:
        """A line that stays."""
        self._console.print(f"{self._seconds(time.monotonic())}  {line}", style="bold")

    def show(self, now: Figures, *, about: str) -> None:
        """The figures of now, and the rates of the last seconds."""
        self._past.append(now)
        while len(self._past) > 2 and now.at - self._past[1].at > _OVER:
            self._past.popleft()
        if self._live is not None:
            self._live.update(self._table(now, about), refresh=True)
        else:
            self._console.print(self._line(now), soft_wrap=True)

    def _seconds(self, at: float) -> str:
        return f"{at - self._begun:6.1f} s"

    def _rate(self, name: str) -> str:
        """How fast a counter grows, of those moments at which it could be asked."""
        known = [(one.at, value) for one in self._past if (value := _value(one, name)) is not None]
        if len(known) < 2 or _value(self._past[-1], name) is None:
            return "-"
        return f"{(known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0]):,.0f}"

    def _line(self, now: Figures) -> str:
        waiting = _waiting(now)
        parts = [
            self._seconds(now.at),
            f"orders {self._rate('sent')}/s",
            f"flow {self._rate('done')}/s",
            f"at sources {waiting[0]}",
            f"in staging {waiting[1]}",
            f"loaded {_number(now.loaded)}",
            f"rejected {_number(now.rejected)}",
        ]
        if now.fresh is not None:
            parts.append("fresh p50 {:.2f} p95 {:.2f} p99 {:.2f} s".format(*now.fresh))
        if now.hits:
            parts.append(f"hits {now.hits}")
        return " | ".join(parts)

    def _table(self, now: Figures, about: str) -> Group:
        waiting = _waiting(now)
        table = Table(title=f"the shop: {about}", title_justify="left")
        for name in ("", "orders", "per second", "waiting", ""):
            table.add_column(name, justify="left" if not name else "right")
        for name, count in now.sent.items():
            table.add_row(name, f"{count:,}", self._rate(name), "", "")
        table.add_row("staging", _number(now.staged), self._rate("staged"), waiting[0], "at the sources")
        fresh = "-" if now.fresh is None else "fresh p50 {:.2f} p95 {:.2f} p99 {:.2f} s".format(*now.fresh)
        table.add_row("flow", _number(now.done), self._rate("done"), waiting[1], f"cache hits {now.hits or '-'}")
        table.add_row("warehouse", _number(now.loaded), self._rate("loaded"), "", fresh)
        table.add_row("rejects", _number(now.rejected), self._rate("rejected"), "", f"{now.unreadable:,} unreadable")
        return Group(table, Text(f"{self._seconds(now.at)}  Ctrl-C ends everything", style="dim"))


def _value(figures: Figures, name: str) -> int | None:
    if name in figures.sent:
        return figures.sent[name]
    if name == "sent":
        return sum(figures.sent.values())
    value: int | None = getattr(figures, name)
    return value


def _waiting(now: Figures) -> tuple[str, str]:
    """Orders that have not come to staging, and those there that have not come to the warehouse."""
    at_sources = None if now.staged is None else max(0, now.captured - now.staged)
    in_staging = None if now.staged is None or now.done is None else max(0, now.staged - now.done)
    return _number(at_sources), _number(in_staging)


def _number(value: int | None) -> str:
    return "away" if value is None else f"{value:,}"
