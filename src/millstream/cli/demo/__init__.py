"""`millstream demo`: a shop with all its parts, from the sources to the warehouse; `demo join` shows the join alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..parser import add_command, positive
from . import join

if TYPE_CHECKING:
    from ..parser import Commands


def register(commands: Commands) -> None:
    """Add `demo` and `demo join`."""
    parser = add_command(
        commands,
        "demo",
        summary="run a shop from the till to the warehouse, and prove that no order was lost or doubled",
        about="Starts staging, a warehouse (DuckDB), a legacy order application, a till that writes CSV and the flow\n"
        "examples/shop.yaml on Spark, each as a process of its own on free ports, shows how they get on, drains them\n"
        "and compares what the sources counted with SQL over the warehouse. Exits with 1 if that does not add up.\n"
        "Everything is ended and removed afterwards, except for the product master, which is kept for the next time.",
        example="millstream demo --rate 20000 --seconds 60 --kill",
    )
    parser.add_argument("--rate", metavar="N", type=positive, default=10_000, help="orders per second (default: 10000)")
    parser.add_argument("--seconds", metavar="N", type=positive, default=30, help="how long (default: 30)")
    parser.add_argument("--kill", action="store_true", help="kill each part (SIGKILL) on the way, and start it again")
    parser.add_argument(
        "--products", metavar="N", type=positive, default=1_000_000, help="rows of the master (default: 1000000)"
    )
    parser.add_argument(
        "--cache", metavar="DIR", type=Path, help="where the master is kept (default: ~/.cache/millstream/demo)"
    )
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep the data in this new or empty directory")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the figures into this file, as JSON")
    parser.set_defaults(run=run)
    join.register(parser.add_subparsers(title="another demo", metavar="[DEMO]"))


def run(arguments: argparse.Namespace) -> None:
    """Run the shop."""
    from .shop import run_shop

    run_shop(arguments)
