"""What a warehouse needs from its database, and the SQL that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...errors import TableMismatch
from ..ledger import Entry
from ..spec import DELETED, OPERATION, SEQUENCE, SOURCE, TableSpec

INCOMING = "millstream_incoming"
POSITION = "millstream_position"


@dataclass(frozen=True)
class Limits:
    """What a query of a reader may take."""

    rows: int = 1_000_000
    seconds: float = 30.0
    memory: str = "2GB"


@dataclass(frozen=True)
class Rows:
    """The result of a query; `truncated` if there were more rows."""

    table: pa.Table
    truncated: bool


class Database(ABC):
    """A database with target tables and a ledger. Each method is safe to call from several threads.

    Invariants: (1) the rows of a batch and its entry in the ledger are committed together or not at all; (2) a method
    that raises has changed nothing; (3) `WarehouseUnavailable` means that trying again can help.
    """

    lanes: int
    """How many batches can be loaded at the same time (of different tables)."""

    @abstractmethod
    def tables(self) -> dict[str, TableSpec]:
        """The target tables by name."""

    @abstractmethod
    def create(self, spec: TableSpec) -> TableSpec:
        """Make a table or widen it; the table as it is then. `TableMismatch` if it is another one."""

    @abstractmethod
    def load(self, spec: TableSpec, rows: pa.Table, finish: Callable[[], Entry]) -> Entry:
        """Load a batch and commit it with the entry that `finish` gives when all rows are in.

        If the ledger has the batch already, nothing is done and the entry from there is given.
        """

    @abstractmethod
    def committed(self, flow: str, batch: int, table: str) -> Entry | None:
        """The ledger's entry of a batch; None if it is not there."""

    @abstractmethod
    def ledger(
        self, *, flow: str | None = None, table: str | None = None, since: float | None = None, last: int | None = None
    ) -> list[Entry]:
        """Entries of the ledger, newest first: all, or those of so many seconds or the last so many."""

    @abstractmethod
    def query(self, sql: str, limit: int) -> Rows:
        """The first rows of a reading statement; `QueryRefused` for anything else."""

    @abstractmethod
    def check(self) -> None:
        """Raise `WarehouseUnavailable` unless the database answers."""

    @abstractmethod
    def close(self) -> None:
        """Let the database go; what is not committed is lost."""


def quoted(name: str) -> str:
    """An identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str], prefix: str = "") -> str:
    """Identifiers in SQL with commas between them, each behind `prefix`."""
    return ", ".join(prefix + quoted(name) for name in names)


def check_stored(table: str, there: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """The wanted columns that a table of the database lacks; `TableMismatch` if one is there with another type."""
    known = {name.lower(): kind for name, kind in there.items()}
    differences = [
        f"column {name}: the database has {known[name.lower()]}, the flow needs {kind}"
        for name, kind in wanted.items()
        if name.lower() in known and known[name.lower()] != kind
    ]
    if differences:
        raise TableMismatch(
            f"the database has another table {table!r}: {'; '.join(differences)}", differences=differences
        )
    return [name for name in wanted if name.lower() not in known]


def is_deleted(spec: TableSpec, names: Sequence[str]) -> str:
    """SQL that is true for a row that removes its key."""
    tests = []
    if DELETED in names:
        tests.append(f"COALESCE({quoted(DELETED)}, FALSE)")
    if OPERATION in names:
        tests.append(f"COALESCE(LOWER({quoted(OPERATION)}) IN ('d', 'delete'), FALSE)")
    return f"({' OR '.join(tests)})" if tests and spec.mode == "upsert" else "FALSE"


def latest_first(names: Sequence[str]) -> str:
    """ORDER BY that brings the row of a key that wins within a batch to the front; never looks at a clock."""
    order = [f"{quoted(name)} DESC NULLS LAST" for name in (SEQUENCE, SOURCE) if name in names]
    return ", ".join([*order, f"{POSITION} DESC"])


def grouped(spec: TableSpec, incoming: str) -> str:
    """SELECT that aggregates the incoming rows, with the columns of `spec.stored`."""
    shown, states = [], []
    for column in spec.columns:
        source = quoted(column.source) if column.source else "*"
        if column.function == "avg":
            total = f"SUM({source})"
            states += [
                f"{total} AS {quoted(column.states[0].name)}",
                f"COUNT({source}) AS {quoted(column.states[1].name)}",
            ]
            shown.append(f"CAST({total} AS DOUBLE PRECISION) / NULLIF(COUNT({source}), 0) AS {quoted(column.name)}")
        else:
            shown.append(f"{column.function.upper()}({source}) AS {quoted(column.name)}")
    by = f" GROUP BY {listed(spec.key)}" if spec.key else ""
    columns = [*map(quoted, spec.key), *shown, *states]
    return f"SELECT {', '.join(columns)} FROM {incoming}{by}"


def merged(spec: TableSpec, old: str, new: str) -> dict[str, str]:
    """SQL for each aggregate column after new rows were merged into the old: {column: expression}."""
    result: dict[str, str] = {}

    def added(name: str) -> str:
        left, right = f"{old}.{quoted(name)}", f"{new}.{quoted(name)}"
        # NULL is "no value yet", not a number
        return f"CASE WHEN {left} IS NULL THEN {right} WHEN {right} IS NULL THEN {left} ELSE {left} + {right} END"

    for column in spec.columns:
        if column.function in ("sum", "count"):
            result[column.name] = added(column.name)
        elif column.function in ("min", "max"):
            choose = "LEAST" if column.function == "min" else "GREATEST"
            result[column.name] = f"{choose}({old}.{quoted(column.name)}, {new}.{quoted(column.name)})"
        else:
            total, count = (added(state.name) for state in column.states)
            result[column.name] = f"CAST({total} AS DOUBLE PRECISION) / NULLIF({count}, 0)"
            result |= {state.name: value for state, value in zip(column.states, (total, count), strict=True)}
    return result


def used_columns(spec: TableSpec, rows: pa.Table) -> list[str]:
    """The columns of a batch that the database needs to see."""
    stored = spec.stored.names
    if spec.mode == "append":
        return [name for name in rows.schema.names if name in stored]
    if spec.mode == "upsert":
        control = (SEQUENCE, SOURCE, OPERATION, DELETED)
        return [name for name in rows.schema.names if name in stored or name in control]
    needed = {*spec.key, *(column.source for column in spec.columns)}
    # count(*) of everything needs no column, but rows without any cannot be handed over
    return [name for name in rows.schema.names if name in needed] or rows.schema.names[:1]
