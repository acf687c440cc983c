"""The proof that nothing was lost or doubled: what staging handed out, against the ledger of the warehouse.

A flow with queues has an account for each of its targets from the queue in front of the target on. The way there is in
the counts of the activities: what left one must have come to those behind it, or wait in their queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..staging import Client as Staging
from ..warehouse import Client as Warehouse

_ACCOUNTS = """
SELECT flow, table_name, COUNT(*) AS batches,
       SUM(CAST(counts->>'sent' AS BIGINT)) AS sent,
       SUM(CAST(counts->>'loaded' AS BIGINT)) AS loaded,
       SUM(CAST(counts->>'rejected' AS BIGINT)) AS rejected,
       SUM(CAST(counts->>'elsewhere' AS BIGINT)) AS elsewhere,
       SUM(CAST(counts->>'merged' AS BIGINT)) AS merged,
       SUM(rows) AS written
FROM millstream.ledger WHERE counts->>'sent' IS NOT NULL GROUP BY flow, table_name ORDER BY flow, table_name
"""

_ACTIVITIES = """
SELECT flow, activity, MAX(kind) AS kind, MAX(after) AS after,
       SUM(rows_in) AS rows_in, SUM(rows_out) AS rows_out, SUM(rejected) AS rejected
FROM flow_activities GROUP BY flow, activity ORDER BY flow, activity
"""
# an activity with a queue loads its counts under a name of its own
_LOADING = "SELECT DISTINCT flow FROM millstream.ledger WHERE table_name = 'flow_activities'"
_ENDS = ("target", "parquet")


@dataclass(frozen=True)
class Account:
    """All batches of a flow in one table: `sent` is the sum of the four that follow it.

    written: rows that the warehouse itself counted while it loaded, which must be those that the flow says it sent.
    """

    flow: str
    table: str
    batches: int
    sent: int
    loaded: int
    rejected: int
    elsewhere: int
    merged: int
    written: int

    @property
    def balanced(self) -> bool:
        together = self.loaded + self.rejected + self.elsewhere + self.merged
        return self.sent == together and self.loaded == self.written


@dataclass(frozen=True)
class Intake:
    """A stream of staging and a flow that reads it: `stored` records in all, `consumed` of them by the flow."""

    stream: str
    flow: str
    stored: int
    consumed: int


@dataclass(frozen=True)
class Passage:
    """What an activity with a queue did in all: of the rows that were sent to it, `waiting` are not taken yet."""

    flow: str
    activity: str
    waiting: int
    rows_in: int
    rows_out: int
    rejected: int


def accounts(warehouse: Warehouse, *, flow: str | None = None) -> list[Account]:
    """The account of each flow and table."""
    lines = warehouse.query(_ACCOUNTS).to_pylist()
    found = [
        Account(
            line["flow"],
            line["table_name"],
            *(int(line[name]) for name in ("batches", "sent", "loaded", "rejected", "elsewhere", "merged", "written")),
        )
        for line in lines
    ]
    return [one for one in found if flow is None or one.flow == flow or one.flow.startswith(f"{flow}.")]


def passages(warehouse: Warehouse, *, flow: str | None = None) -> list[Passage]:
    """The activities of flows with queues."""
    table = warehouse.tables().get("flow_activities")
    if table is None or "after" not in table.schema.names:
        return []
    alone = {line["flow"] for line in warehouse.query(_LOADING).to_pylist()}
    lines = [
        line
        for line in warehouse.query(_ACTIVITIES).to_pylist()
        if flow in (None, line["flow"]) and f"{line['flow']}.{line['activity']}" in alone
    ]
    named = {(line["flow"], line["activity"]): line for line in lines}
    found = [
        Passage(
            line["flow"],
            line["activity"],
            _sent_to(line, named) - int(line["rows_in"]),
            *(int(line[name]) for name in ("rows_in", "rows_out", "rejected")),
        )
        for line in sorted(lines, key=lambda line: (line["flow"], _depth(line, named)))
    ]
    # an activity that has not done anything yet has no line
    found += [
        Passage(line["flow"], f"behind {line['activity']}", int(line["rows_out"]), 0, 0, 0)
        for line in lines
        if line["kind"] not in _ENDS and line["rows_out"] and not any(_follows(one, line) for one in lines)
    ]
    return found


def _depth(line: dict[str, Any], named: dict[tuple[str, str], dict[str, Any]]) -> int:
    """How many activities there are in front of one."""
    depth, at = 0, named.get((line["flow"], (line["after"] or "").partition(".")[0]))
    while at is not None and depth < len(named):
        depth, at = depth + 1, named.get((at["flow"], (at["after"] or "").partition(".")[0]))
    return depth


def _sent_to(line: dict[str, Any], named: dict[tuple[str, str], dict[str, Any]]) -> int:
    """How many rows were sent to an activity, as those in front of it say."""
    name, _, branch = (line["after"] or "").partition(".")
    before = named.get((line["flow"], name))
    if before is None:
        return int(line["rows_in"])
    if before["kind"] != "route":
        return int(before["rows_out"])
    # nobody says how a route divides its rows: what is missing from all branches together is missing here
    ways = {one["after"]: int(one["rows_in"]) for one in named.values() if _follows(one, before)}
    return int(before["rows_out"]) - sum(rows for way, rows in ways.items() if way != f"{name}.{branch}")


def _follows(line: dict[str, Any], before: dict[str, Any]) -> bool:
    return line["flow"] == before["flow"] and (line["after"] or "").partition(".")[0] == before["activity"]


def intakes(staging: Staging, *, flow: str | None = None) -> list[Intake]:
    """What staging has of each stream for each flow."""
    return [
        Intake(stream.name, name, stream.end, position)
        for stream in staging.streams()
        for name, position in sorted(stream.flows.items())
        if flow is None or name == flow
    ]


def differences(
    found: list[Account], taken: list[Intake], passed: Sequence[Passage] = (), *, drained: bool = False
) -> list[str]:
    """Everything that does not add up, in words; empty is the proof.

    drained: the queues of the flow are empty, so that no row may wait.
    """
    wrong = [
        f"flow {one.flow}, table {one.table}: sent {one.sent:,} is not loaded {one.loaded:,} + rejected "
        f"{one.rejected:,} + elsewhere {one.elsewhere:,} + merged {one.merged:,}, or {one.written:,} rows were written"
        for one in found
        if not one.balanced
    ]
    wrong += [
        f"flow {one.flow}, activity {one.activity}: it has taken {one.rows_in:,} rows, but "
        f"{one.rows_in + one.waiting:,} were sent to it"
        for one in passed
        if one.waiting < 0 or (drained and one.waiting)
    ]
    for intake in taken:
        wrong += [
            f"flow {one.flow}, table {one.table}: of the {intake.stored:,} records of {intake.stream} in staging "
            f"{intake.consumed:,} were consumed, but the warehouse has account of {one.sent:,}"
            for one in found
            if one.flow == intake.flow and not intake.consumed <= one.sent <= intake.stored
        ]
    return wrong
