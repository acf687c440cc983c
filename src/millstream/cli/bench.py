"""`millstream bench`: measure everything on this machine, with targets."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .parser import add_command, positive

if TYPE_CHECKING:
    from rich.console import Console

    from millstream.bench.report import Section, Table

    from .parser import Commands

NAMES = (
    "operators",
    "identity",
    "spark",
    "build",
    "memory",
    "scan",
    "tuning",
    "staging",
    "source",
    "warehouse",
    "flow",
)


def register(commands: Commands) -> None:
    """Add `bench`."""
    parser = add_command(
        commands,
        "bench",
        summary="measure the joins, Spark with and without them, builds, memory, staging, sources, loading and flows",
        about="Prints tables with a verdict for each target; all comparisons are within one run. The full size needs "
        "about 40 GB of disk\nand about two hours on two cores; --quick takes some minutes and judges what it can.",
        example="millstream bench operators build --quick",
    )
    parser.add_argument(
        "what", nargs="*", choices=(*NAMES, "all"), default="all", metavar="WHAT", help=f"{', '.join(NAMES)} or all"
    )
    parser.add_argument("--rows", metavar="N", type=positive, help="rows of R (default: 20000000, or 1000000 if quick)")
    parser.add_argument(
        "--sizes",
        metavar="N[,N...]",
        type=_sizes,
        help="rows of R next to Spark's own join (default: 1, 5, 20 and 50 million)",
    )
    parser.add_argument(
        "--minutes",
        metavar="N",
        type=positive,
        default=1,
        help="how long flow is watched at 20,000 rows/s (default: 1)",
    )
    parser.add_argument("--quick", action="store_true", help="a small R and short windows, to see that all works")
    parser.add_argument(
        "--data",
        metavar="DIR",
        type=Path,
        default=Path("~/.cache/millstream-bench"),
        help="where masters and streams are kept between runs (default: ~/.cache/millstream-bench)",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="write benchmarks.md, plots and raw data there, e.g. docs"
    )
    parser.set_defaults(run=run)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({positive(part.strip()) for part in text.split(",")}))


def run(arguments: argparse.Namespace) -> None:
    """Run the benchmarks and print what they found."""
    from rich.console import Console

    from millstream.bench.data import Data
    from millstream.bench.suite import FULL_ROWS, FULL_SIZES, QUICK_ROWS, Suite

    from .progress import counting
    from .session import quiet_session

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    rows = arguments.rows or (QUICK_ROWS if arguments.quick else FULL_ROWS)
    sizes = arguments.sizes or ((rows // 4, rows) if arguments.quick else FULL_SIZES)
    folder = arguments.data.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - begun:7.1f} s  {text}\n")

    for name in NAMES if "all" in arguments.what else arguments.what:
        suite = Suite(
            data=Data(folder, say),
            rows=rows,
            sizes=sizes,
            quick=arguments.quick,
            session=lambda: quiet_session("millstream bench", memory="4g"),
            counting=counting,
            command=_command(arguments, name),
            out=arguments.out,
            minutes=arguments.minutes,
        )
        _show(console, suite.run(name))
    if arguments.out is not None:
        console.print(f"written: {arguments.out / 'benchmarks.md'}")


def _command(arguments: argparse.Namespace, name: str) -> str:
    """The command that runs one benchmark of these again."""
    options = {
        "--rows": arguments.rows,
        "--sizes": arguments.sizes and ",".join(map(str, arguments.sizes)),
        "--minutes": arguments.minutes if name == "flow" and arguments.minutes > 1 else None,
    }
    words = ["millstream", "bench", name, *(["--quick"] if arguments.quick else [])]
    words += [str(word) for option, value in options.items() if value for word in (option, value)]
    return shlex.join(words)


def _show(console: Console, section: Section) -> None:
    console.rule(section.title)
    console.print(section.command)
    console.print(f"load of the machine at the end: {os.getloadavg()[0]:.1f}")
    for table in (section.check_table, *section.tables):
        _print(console, table)
    console.print()


def _print(console: Console, table: Table) -> None:
    from rich.table import Table as Grid

    grid = Grid(title=table.title, caption=table.note or None, title_justify="left", caption_justify="left")
    for number, head in enumerate(table.head):
        grid.add_column(head, justify="right" if number else "left", overflow="fold")
    for row in table.rows:
        styled = [{"PASS": "[green]PASS[/]", "FAIL": "[red]FAIL[/]"}.get(cell, cell) for cell in row]
        grid.add_row(*styled)
    console.print()
    console.print(grid)
