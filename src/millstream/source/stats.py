"""What a regulator counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .state import State


@dataclass(frozen=True)
class SourceStats:
    """What a regulator has done since it was made; `rejected`, `dropped`, `lost` and `repeats` since its spool was.

    `sent` records were given to it. They are acknowledged, `spooled` (on disk, not acknowledged), `pending` (in
    memory), rejected or dropped. `application_ns` is CPU time that the application's threads spent on whole blocks,
    `sender_ns` that of the sender.
    """

    sent: int
    pending: int
    spooled: int
    acknowledged: int
    rejected: int
    dropped: int
    lost: int
    repeats: int
    blocks: int
    batches: int
    bytes_spooled: int
    bytes_sent: int
    spool_bytes: int
    reconnects: int
    connected: bool
    problem: str
    application_ns: int
    sender_ns: int

    @classmethod
    def read(cls, state: State, **own: int) -> SourceStats:
        """The application's own counters, and those that it shares with the sender."""
        return cls(
            rejected=state.get("rejected") + state.get("refused"),
            dropped=state.get("dropped"),
            lost=state.get("lost"),
            repeats=state.get("repeats"),
            batches=state.get("batches"),
            bytes_sent=state.get("bytes_sent"),
            reconnects=state.get("reconnects"),
            connected=bool(state.get("connected")),
            problem=state.error,
            sender_ns=state.get("cpu_ns"),
            **own,
        )

    @property
    def application_ns_per_record(self) -> float:
        return self.application_ns / max(1, self.sent)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
