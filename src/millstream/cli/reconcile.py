"""`millstream reconcile`: prove that sent = loaded + rejected, per flow and target."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from millstream.errors import MillstreamError

from .parser import add_command

if TYPE_CHECKING:
    from rich.table import Table

    from millstream.flow.reconcile import Account, Intake, Passage

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


def reconcile(
    url: str,
    *,
    staging: str | None = None,
    flow: str | None = None,
    token: str | None = None,
    drained: bool = False,
    may_be_empty: bool = False,
) -> None:
    """Print the account of each flow and table; raises if anything does not add up.

    drained: nothing may wait in the queues of the flow. may_be_empty: no batch at all is no error.
    """
    from rich.console import Console

    from millstream.flow.reconcile import accounts, differences, intakes, passages
    from millstream.staging import connect as connect_staging
    from millstream.warehouse import connect

    with connect(url, token=token, patience=10) as warehouse:
        found = accounts(warehouse, flow=flow)
        passed = passages(warehouse, flow=flow)
        if any(
            one.waiting < 0 for one in passed
        ):  # the flow runs, and an activity was counted before the one it follows
            time.sleep(2)
            passed = passages(warehouse, flow=flow)
    taken = []
    if staging is not None:
        with connect_staging(staging, token) as client:
            taken = intakes(client, flow=flow)
    console = Console(highlight=False, width=None if Console().is_terminal else 120)
    if not found and not passed:
        if may_be_empty:
            console.print("no row has come yet")
            return
        raise MillstreamError(f"the warehouse has no batches of {'flow ' + repr(flow) if flow else 'any flow'}")
    if passed:
        console.print(_passage_table(passed))
    if found:
        console.print(as_table(found))
    if taken:
        console.print(_intake_table(taken))
    wrong = differences(found, taken, passed, drained=drained)
    for line in wrong:
        console.print(f"[red]{line}[/red]")
    if wrong:
        raise MillstreamError(f"{len(wrong)} of the accounts do not add up")
    waiting = sum(one.waiting for one in passed)
    console.print(f"every row is accounted for{f'; {waiting:,} wait in queues' if waiting else ''}")


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


def _passage_table(passed: list[Passage]) -> Table:
    from rich.table import Table

    table = Table(title="activities", title_justify="left", title_style="bold")
    for name in ("flow", "activity"):
        table.add_column(name)
    for name in ("waiting", "in", "out", "rejected"):
        table.add_column(name, justify="right")
    for one in passed:
        figures = (one.waiting, one.rows_in, one.rows_out, one.rejected)
        table.add_row(one.flow, one.activity, *[f"{figure:,}" for figure in figures])
    return table


def _intake_table(taken: list[Intake]) -> Table:
    from rich.table import Table

    table = Table(title="staging", title_justify="left", title_style="bold")
    for name, side in (("stream", "left"), ("flow", "left"), ("stored", "right"), ("consumed", "right")):
        table.add_column(name, justify="right" if side == "right" else "left")
    for one in taken:
        table.add_row(one.stream, one.flow, f"{one.stored:,}", f"{one.consumed:,}")
    return table
