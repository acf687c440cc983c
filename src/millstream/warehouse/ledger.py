"""The ledger: a line for each (flow, batch, table) that was committed, written in the transaction that loaded it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError
from .spec import check_name

SCHEMA = "millstream"
TABLES, LEDGER, BALANCE = f"{SCHEMA}.tables", f"{SCHEMA}.ledger", f"{SCHEMA}.balance"

# column, type; JSON is the database's own type for it
COLUMNS = (
    ("flow", "TEXT NOT NULL"),
    ("batch", "BIGINT NOT NULL"),
    ("table_name", "TEXT NOT NULL"),
    ("rows", "BIGINT NOT NULL"),
    ("parts", "BIGINT NOT NULL"),
    ("bytes", "BIGINT NOT NULL"),
    ("origin", "TEXT"),
    ("captured_min", "TIMESTAMP WITH TIME ZONE"),
    ("captured_max", "TIMESTAMP WITH TIME ZONE"),
    ("committed_at", "TIMESTAMP WITH TIME ZONE NOT NULL"),
    ("seconds", "DOUBLE PRECISION NOT NULL"),
    ("ahead", "BIGINT NOT NULL"),
    ("clock_jump", "DOUBLE PRECISION NOT NULL"),
    ("lags", "JSON NOT NULL"),
    ("counts", "JSON NOT NULL"),
)
NAMES = tuple(name for name, _ in COLUMNS)
SELECT = f"SELECT {', '.join(NAMES)} FROM {LEDGER}"

_COUNTED = ("rejected", "parked", "shed")

# what must be there before the first table is made; each statement can be repeated
STATEMENTS = (
    f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
    f"CREATE TABLE IF NOT EXISTS {TABLES} (name TEXT PRIMARY KEY, spec JSON NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {LEDGER} ({', '.join(map(' '.join, COLUMNS))}, PRIMARY KEY (flow, batch, table_name))",
    f"CREATE OR REPLACE VIEW {BALANCE} AS SELECT flow, batch, table_name, rows_in, loaded, rejected, parked, shed, "
    "rows_in = loaded + rejected + parked + shed AS balanced FROM (SELECT flow, batch, table_name, "
    "CAST(counts->>'in' AS BIGINT) AS rows_in, COALESCE(CAST(counts->>'loaded' AS BIGINT), rows) AS loaded, "
    + ", ".join(f"COALESCE(CAST(counts->>'{name}' AS BIGINT), 0) AS {name}" for name in _COUNTED)
    + f" FROM {LEDGER}) AS counted WHERE rows_in IS NOT NULL",
)


@dataclass(frozen=True)
class Entry:
    """A line of the ledger; `lags` is the histogram of `freshness`, `clock_jump` the seconds that the clock was set."""

    flow: str
    batch: int
    table: str
    rows: int
    parts: int
    bytes: int
    committed_at: datetime.datetime
    origin: str | None = None
    captured_min: datetime.datetime | None = None
    captured_max: datetime.datetime | None = None
    seconds: float = 0.0
    ahead: int = 0
    clock_jump: float = 0.0
    lags: Mapping[int, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    def values(self) -> list[Any]:
        """The entry in the order of `COLUMNS`."""
        json_columns = {"lags": json.dumps(dict(self.lags)), "counts": json.dumps(dict(self.counts))}
        names = [{"table_name": "table"}.get(name, name) for name in NAMES]
        return [json_columns.get(name) or getattr(self, name) for name in names]

    @classmethod
    def from_values(cls, values: Sequence[Any]) -> Entry:
        """The entry of a line as the database gives it."""
        found = dict(zip(NAMES, values, strict=True))
        found["table"] = found.pop("table_name")
        for name in ("lags", "counts"):
            if isinstance(found[name], str):
                found[name] = json.loads(found[name])
        found["lags"] = {int(bucket): count for bucket, count in found["lags"].items()}
        for name in ("committed_at", "captured_min", "captured_max"):
            if found[name] is not None:
                found[name] = found[name].astimezone(datetime.UTC)
        return cls(**found)

    def to_json(self) -> dict[str, Any]:
        """The entry as plain JSON."""
        value = dict(zip(NAMES, self.values(), strict=True))
        for name in ("committed_at", "captured_min", "captured_max"):
            value[name] = value[name] and value[name].isoformat()
        return value | {"lags": dict(self.lags), "counts": dict(self.counts)}


def check_counts(counts: Mapping[str, Any]) -> dict[str, int]:
    """What a flow counted: names and whole numbers."""
    if len(counts) > 100:
        raise InputError("a batch has at most 100 counts")
    for name, value in counts.items():
        check_name(name, "count")
        if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
            raise InputError(f"count {name!r} must be a whole number, not {str(value)[:40]!r}")
    return dict(counts)
