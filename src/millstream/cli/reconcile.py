"""`millstream reconcile`: prove that sent = loaded + rejected, per flow and target."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from millstream.errors import MillstreamError

from .parser import add_command

if TYPE_CHECKING:
    from rich.table import Table

    from millstream.flow.reconcile import Account, Intake

    from .parser import Commands


def register(commands: Commands) -> None:
    """Add `reconcile`."""
    parser = add_command(
        commands,
        "reconcile",
        summary="prove from the ledger that every row sent was loaded or rejected, per flow and table",
        about="With --staging, what the ledger has account of is compared with what staging handed out. Exits with\n"
        "1 if anything does not add up.",
        example="millstream reconcile http://127.0.0.1:7421 --staging grpc://127.0.0.1:7411",
    )
    parser.add_argument("url", metavar="URL", help="the warehouse, such as http://127.0.0.1:7421")
    parser.add_argument("--flow", help="this flow only")
    parser.add_argument("--staging", metavar="URL", help="the staging area, such as grpc://127.0.0.1:7411")
    parser.add_argument("--token", help="token of both (default: MILLSTREAM_TOKEN)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print the accounts; an error if they do not balance."""
    reconcile(arguments.url, staging=arguments.staging, flow=arguments.flow, token=arguments.token)


def reconcile(url: str, *, staging: str | None = None, flow: str | None = None, token: str | None = None) -> None:
    """Print the account of each flow and table; raises if anything does not add up."""
    from rich.console import Console

    from millstream.flow.reconcile import accounts, differences, intakes
    from millstream.staging import connect as connect_staging
    from millstream.warehouse import connect

    with connect(url, token=token, patience=10) as warehouse:
        found = accounts(warehouse, flow=flow)
    taken = []
    if staging is not None:
        with connect_staging(staging, token) as client:
            taken = intakes(client, flow=flow)
    console = Console(highlight=False, width=None if Console().is_terminal else 120)
    if not found:
        raise MillstreamError(f"the warehouse has no batches of {'flow ' + repr(flow) if flow else 'any flow'}")
    console.print(as_table(found))
    if taken:
        console.print(_intake_table(taken))
    wrong = differences(found, taken)
    for line in wrong:
        console.print(f"[red]{line}[/red]")
    if wrong:
        raise MillstreamError(f"{len(wrong)} of the accounts do not add up")
    console.print("every row is accounted for")


def as_table(found: list[Account]) -> Table:
    """The accounts for a reader; columns that are 0 everywhere are left out."""
    from rich.table import Table

    table = Table(title="sent = loaded + rejected", title_justify="left", title_style="bold")
    names = ["sent", "loaded", "rejected"]
    names += [name for name in ("elsewhere", "merged") if any(getattr(one, name) for one in found)]
    for name in ("flow", "table"):
        table.add_column(name)
    for name in ("batches", *names, ""):
        table.add_column(name, justify="right")
    for one in found:
        figures = [f"{getattr(one, name):,}" for name in ("batches", *names)]
        table.add_row(one.flow, one.table, *figures, "ok" if one.balanced else "DIFFERENT")
    return table


def _intake_table(taken: list[Intake]) -> Table:
    from rich.table import Table

    table = Table(title="staging", title_justify="left", title_style="bold")
    for name, side in (("stream", "left"), ("flow", "left"), ("stored", "right"), ("consumed", "right")):
        table.add_column(name, justify="right" if side == "right" else "left")
    for one in taken:
        table.add_row(one.stream, one.flow, f"{one.stored:,}", f"{one.consumed:,}")
    return table
