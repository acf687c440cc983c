"""What the warehouse answers: the receipt of a commit, and how fresh a table is."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

State = Literal["committed", "accepted", "failed"]


@dataclass(frozen=True)
class Receipt:
    """What became of a batch in one table.

    state: "committed"; "accepted" if it is durable and will be committed in the background; "failed" with `reason`.
    rows: rows of the parts (those of the first time, if this is a `duplicate`).
    duplicate: the batch was there already, and nothing was done.
    committed_at: when it was committed, by the clock of the warehouse.
    p50, p95, p99: seconds from capture to commit of the batch's rows; None if they have no `_captured`.
    counts: what the flow counted for this batch, as given with the commit.
    """

    flow: str
    batch: int
    table: str
    state: State = "committed"
    rows: int = 0
    duplicate: bool = False
    committed_at: datetime.datetime | None = None
    seconds: float = 0.0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """The receipt as plain JSON."""
        value = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return value | {"committed_at": self.committed_at and self.committed_at.isoformat()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Receipt:
        """The receipt that `to_json` gave; members that a later version adds are left out."""
        known = {entry.name: value[entry.name] for entry in fields(cls) if entry.name in value}
        at = known.get("committed_at")
        return cls(**known | {"committed_at": at and datetime.datetime.fromisoformat(at)})


@dataclass(frozen=True)
class Freshness:
    """How long the rows of a flow took from their capture to the commit in a table, in seconds.

    `above` is the share of rows that took longer than `bound`, `time_above` the share of the time in which the batch
    that came last had such a row. `ahead` counts rows whose capture time lay after the commit (a clock is wrong; they
    count as 0 seconds), and `clock_jumps` the batches before which the warehouse's own clock was set.
    """

    flow: str
    table: str
    batches: int
    rows: int
    p50: float | None
    p95: float | None
    p99: float | None
    longest: float | None
    bound: float
    above: float | None
    time_above: float | None
    ahead: int
    clock_jumps: int
    last_commit: datetime.datetime | None

    def to_json(self) -> dict[str, Any]:
        """The figures as plain JSON."""
        value = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return value | {"last_commit": self.last_commit and self.last_commit.isoformat()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Freshness:
        """The figures that `to_json` gave."""
        known = {entry.name: value.get(entry.name) for entry in fields(cls)}
        at = known["last_commit"]
        return cls(**known | {"last_commit": at and datetime.datetime.fromisoformat(at)})
