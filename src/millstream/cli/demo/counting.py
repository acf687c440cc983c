"""What the shop's sources, staging and warehouse say of themselves while it runs, each asked on its own."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from millstream.errors import MillstreamError
from millstream.staging import Client as Staging
from millstream.warehouse import Client as Warehouse

from .parts import Part
from .sources import RECORD_BYTES

STREAM, FLOW = "orders", "shop"
FACTS, VIEW, REJECTS = "fact_orders", "revenue_by_category", "rejects"
LEGACY, TILL = "legacy", "till"  # the names of the two sources
_RECENT = 5.0  # seconds over which freshness is shown
_LOADED = f"""
SELECT COUNT(*) AS batches, COALESCE(SUM(rows), 0) AS loaded,
       COALESCE(SUM(CAST(counts->>'rejected' AS BIGINT)), 0) AS rejected
FROM millstream.ledger WHERE flow = '{FLOW}' AND table_name = '{FACTS}'
"""


class Sources:
    """Counts what the sources have in their own files, which neither staging nor warehouse have any part in."""

    def __init__(self, folder: Path) -> None:
        self._orders, self._csv = folder / "legacy" / "orders.dat", folder / "till" / "till.csv"
        self._rejects = [folder / "capture" / "rejects.jsonl", folder / "capture" / "spool" / "rejects.jsonl"]
        self._read = self._lines = 0

    def sent(self) -> dict[str, int]:
        """Orders by source: records in the file of the legacy application, lines in that of the till."""
        records = self._orders.stat().st_size // RECORD_BYTES if self._orders.exists() else 0
        if self._csv.exists():
            with open(self._csv, "rb") as file:
                file.seek(self._read)
                while piece := file.read(1 << 20):
                    self._lines += piece.count(b"\n")
                    self._read += len(piece)
        return {LEGACY: records, TILL: max(0, self._lines - 1)}

    def unreadable(self) -> int:
        """Lines of the till that the capture could make nothing of, and has set aside."""
        return sum(len(_records(path)) for path in self._rejects)


def _records(path: Path) -> set[int]:
    found = set()
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.add(json.loads(line)["record"])
        except ValueError:
            continue  # torn by a kill; it is written again
    return found


@dataclass(frozen=True)
class Figures:
    """How the shop stands; None for what could not be asked because a part is away."""

    at: float
    sent: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0
    staged: int | None = None
    batches: int | None = None
    loaded: int | None = None
    rejected: int | None = None
    fresh: tuple[float, float, float] | None = None
    hits: str = ""

    @property
    def captured(self) -> int:
        """Orders that staging should get."""
        return sum(self.sent.values()) - self.unreadable

    @property
    def done(self) -> int | None:
        """Orders that have come to their end in the warehouse."""
        return None if self.loaded is None or self.rejected is None else self.loaded + self.rejected


class Observer:
    """Asks all of them; keeps the last answer of a part that is away, for the rates."""

    def __init__(self, sources: Sources, staging: Staging, warehouse: Warehouse, flow: Part) -> None:
        self._sources, self._staging, self._warehouse, self._flow = sources, staging, warehouse, flow

    def look(self) -> Figures:
        """The figures of now."""
        staged = self._staged()
        known = self._known()
        batches, loaded, rejected = known if known is not None else (None, None, None)
        found = re.findall(r"hits (\d+%)", self._flow.said)
        return Figures(
            at=time.monotonic(),
            sent=self._sources.sent(),
            unreadable=self._sources.unreadable(),
            staged=staged,
            batches=batches,
            loaded=loaded,
            rejected=rejected,
            fresh=self._fresh() if known is not None else None,
            hits=found[-1] if found else "",
        )

    def _staged(self) -> int | None:
        try:
            return sum(stream.end for stream in self._staging.streams() if stream.name == STREAM)
        except MillstreamError:
            return None

    def _known(self) -> tuple[int, int, int] | None:
        try:
            (line,) = self._warehouse.query(_LOADED).to_pylist()
        except MillstreamError:
            return None
        return int(line["batches"]), int(line["loaded"]), int(line["rejected"])

    def _fresh(self) -> tuple[float, float, float] | None:
        try:
            told = self._warehouse.freshness(FLOW, table=FACTS, since=_RECENT)
        except MillstreamError:
            return None
        for one in told:
            if one.p50 is not None and one.p95 is not None and one.p99 is not None:
                return one.p50, one.p95, one.p99
        return None
