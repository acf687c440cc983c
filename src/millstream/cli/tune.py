"""`millstream tune`: what rate a memory sustains on this machine, or what memory a rate needs, for each algorithm."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import BudgetTooSmall, InputError, RateUnreachable
from millstream.units import format_bytes

from .parser import add_command, names, positive, size

if TYPE_CHECKING:
    from millstream.master import Master
    from millstream.tuning import Factors, Plan

    from .parser import Commands


def register(commands: Commands) -> None:
    """Add `tune`."""
    parser = add_command(
        commands,
        "tune",
        summary="predict which rate a memory sustains, or which memory a rate needs",
        about="Measures the cost factors of a master on this machine once, in less than a minute, and keeps them.\n"
        "Memory is that of one task slot, rates are those of one task. Nothing is changed in the master.",
        example="millstream tune /data/products --rate 50000 --skew 1.0 --plot rates.png",
    )
    parser.add_argument("master", metavar="MASTER", help="directory of the master")
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument("--memory", metavar="SIZE", type=size, help="the budget, e.g. 256MB: find the highest rate")
    goal.add_argument("--rate", metavar="TUPLES", type=positive, help="tuples a second: find the least memory")
    skew = parser.add_mutually_exclusive_group()
    skew.add_argument(
        "--skew",
        metavar="Z",
        type=_skew,
        default=0.0,
        help="exponent of Zipf's law that the stream's keys follow (default: 0, a flat stream, the worst case)",
    )
    skew.add_argument(
        "--sample", metavar="FILE", type=Path, help="Parquet file of the stream to estimate the skew from"
    )
    parser.add_argument(
        "--how", default="inner", help="kind of join: inner, left, left_semi, left_anti (default: inner)"
    )
    parser.add_argument("--columns", metavar="COLUMN[,COLUMN...]", type=names, help="columns of the master to bring")
    parser.add_argument("--row-bytes", metavar="N", type=positive, help="bytes of a stream tuple (default: 20)")
    parser.add_argument("--direct", action="store_true", help="read with O_DIRECT, without the page cache")
    parser.add_argument("--again", action="store_true", help="measure again even if the machine was measured before")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw the rate over the size of the disk buffer")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _skew(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not an exponent, a number like 0, 0.5 or 1")
    return value


def run(arguments: argparse.Namespace) -> None:
    """Calibrate if need be, plan for each algorithm, print the table and the advice."""
    from millstream import tuning
    from millstream.joins.plan import check_how
    from millstream.master import Master

    check_how(arguments.how)
    master = Master.open(arguments.master, direct=arguments.direct)
    skew = _estimated(arguments.sample, master) if arguments.sample else arguments.skew
    factors = _factors(arguments, master)
    plans: dict[str, Plan | str] = {}
    for algorithm in tuning.ALGORITHMS:
        try:
            plans[algorithm] = tuning.plan(
                algorithm, master, factors, memory=arguments.memory, rate=arguments.rate, skew=skew, how=arguments.how
            )
        except RateUnreachable as problem:
            plans[algorithm] = f"no: at most {problem.highest:,.0f} tuples/s"
        except BudgetTooSmall as problem:
            plans[algorithm] = f"needs at least {format_bytes(problem.least)}"
    advice = tuning.advice({name: one for name, one in plans.items() if not isinstance(one, str)}, skew=skew)
    if arguments.json:
        found = {name: one if isinstance(one, str) else asdict(one) for name, one in plans.items()}
        sys.stdout.write(json.dumps({"skew": skew, "advice": advice, "plans": found}, indent=1) + "\n")
    else:
        _show(master, arguments, skew, plans, advice)
    if arguments.plot:
        from millstream.bench.plots import buffer_curves

        curves = tuning.curves(
            [name for name, one in plans.items() if not isinstance(one, str)],
            master, factors, memory=_budget(arguments, plans), skew=skew, how=arguments.how,
        )  # fmt: skip
        buffer_curves(curves, arguments.plot)
        sys.stderr.write(f"written: {arguments.plot}\n")


def _budget(arguments: argparse.Namespace, plans: dict[str, Plan | str]) -> int | dict[str, int]:
    if arguments.memory is not None:
        return int(arguments.memory)
    return {name: one.memory for name, one in plans.items() if not isinstance(one, str)}


def _estimated(file: Path, master: Master) -> float:
    import pyarrow.parquet as pq

    from millstream import tuning

    if not file.exists():
        raise InputError(f"there is no sample at {file}")
    return tuning.estimate_skew(pq.read_table(file), master=master)


def _factors(arguments: argparse.Namespace, master: Master) -> Factors:
    """The stored factors if they fit the question, otherwise new ones."""
    from millstream import tuning
    from millstream.tuning.factors import stored

    from .progress import counting

    row_bytes = arguments.row_bytes or tuning.STREAM_ROW_BYTES
    known = None if arguments.again else stored(master)
    columns = None if arguments.columns is None else tuple(arguments.columns)
    if known is not None and (known.columns, known.row_bytes) == (columns, row_bytes):
        return known
    with counting("measuring this machine with this master") as report:
        return tuning.calibrate(
            master,
            columns=arguments.columns,
            row_bytes=row_bytes,
            progress=lambda done, total, what: report(done, total),
        )


def _show(
    master: Master, arguments: argparse.Namespace, skew: float, plans: dict[str, Plan | str], advice: str
) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    goal = f"memory {format_bytes(arguments.memory)}" if arguments.memory else f"rate {arguments.rate:,} tuples/s"
    table = Table(
        title=f"{master.path}: {master.rows:,} rows, {format_bytes(master.statistics.bytes)}; {goal}, skew {skew:g}",
        title_justify="left",
    )
    for head in ("algorithm", "tuples/s", "memory", "disk buffer", "default buffer (loss)", "where the memory goes"):
        table.add_column(head, justify="left" if head in ("algorithm", "where the memory goes") else "right")
    for name, one in plans.items():
        if isinstance(one, str):
            table.add_row(name, one, "", "", "", "")
            continue
        buffer = one.parameters.get("disk_buffer")
        table.add_row(
            name,
            f"{one.rate:,.0f}",
            format_bytes(one.memory),
            format_bytes(buffer) if buffer else "",
            f"{format_bytes(one.default_buffer)} ({one.loss:.1%})" if one.default_buffer else "",
            ", ".join(f"{part} {format_bytes(bytes_)}" for part, bytes_ in _largest(one.split)),
        )
    console.print(table)
    console.print(advice, soft_wrap=True)


def _largest(split: dict[str, int]) -> list[tuple[str, int]]:
    """The components that matter: those with more than a hundredth of the memory, the largest first."""
    total = sum(split.values())
    return sorted(((name, one) for name, one in split.items() if one > total / 100), key=lambda pair: -pair[1])
