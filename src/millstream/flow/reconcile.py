"""The proof that nothing was lost or doubled: what staging handed out, against the ledger of the warehouse."""

from __future__ import annotations

from dataclasses import dataclass

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


def intakes(staging: Staging, *, flow: str | None = None) -> list[Intake]:
    """What staging has of each stream for each flow."""
    return [
        Intake(stream.name, name, stream.end, position)
        for stream in staging.streams()
        for name, position in sorted(stream.flows.items())
        if flow is None or name == flow
    ]


def differences(found: list[Account], taken: list[Intake]) -> list[str]:
    """Everything that does not add up, in words; empty is the proof."""
    wrong = [
        f"flow {one.flow}, table {one.table}: sent {one.sent:,} is not loaded {one.loaded:,} + rejected "
        f"{one.rejected:,} + elsewhere {one.elsewhere:,} + merged {one.merged:,}, or {one.written:,} rows were written"
        for one in found
        if not one.balanced
    ]
    for intake in taken:
        wrong += [
            f"flow {one.flow}, table {one.table}: of the {intake.stored:,} records of {intake.stream} in staging "
            f"{intake.consumed:,} were consumed, but the warehouse has account of {one.sent:,}"
            for one in found
            if one.flow == intake.flow and not intake.consumed <= one.sent <= intake.stored
        ]
    return wrong
