"""The proof: what the sources have in their own files, against SQL over the tables of the warehouse."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from millstream.flow.reconcile import accounts, differences, intakes
from millstream.staging import Client as Staging
from millstream.warehouse import Client as Warehouse

from .counting import FACTS, FLOW, LEGACY, REJECTS, TILL, VIEW, Sources

_ROWS = f"SELECT _source AS source, COUNT(*) AS rows, SUM(revenue) AS revenue FROM {FACTS} GROUP BY 1"
_VIEW = f"SELECT channel AS source, SUM(orders) AS rows, SUM(revenue) AS revenue FROM {VIEW} GROUP BY 1"
_REJECTED = f"SELECT _source AS source, COUNT(*) AS rows FROM {REJECTS} WHERE flow = '{FLOW}' GROUP BY 1"
_DISTINCT = (
    f"SELECT _source AS source, COUNT(*) - COUNT(DISTINCT _sequence) AS rows FROM "
    f"(SELECT _source, _sequence FROM {FACTS} UNION ALL SELECT _source, _sequence FROM {REJECTS}) AS ends GROUP BY 1"
)
_ASKED = {
    "What sells": f"""
SELECT category, SUM(orders) AS orders, SUM(items) AS items, SUM(revenue) AS revenue, MAX(largest) AS largest
FROM {VIEW} GROUP BY category ORDER BY revenue DESC LIMIT 5""",
    "Who buys": f"""
SELECT customer_key, COUNT(*) AS orders, COUNT(DISTINCT brand) AS brands, SUM(revenue) AS revenue
FROM {FACTS} GROUP BY customer_key ORDER BY revenue DESC LIMIT 3""",
    "What was rejected, and why": f"""
SELECT activity, COUNT(*) AS orders, MIN(reason) AS for_example
FROM {REJECTS} GROUP BY activity ORDER BY orders DESC""",
}


@dataclass(frozen=True)
class Line:
    """A source and a branch of the flow: `sent` must be the sum of the three that follow."""

    source: str
    table: str
    sent: int
    loaded: int
    rejected: int
    unreadable: int

    @property
    def balanced(self) -> bool:
        return self.sent == self.loaded + self.rejected + self.unreadable


def lines(sources: Sources, warehouse: Warehouse) -> list[Line]:
    """The account of each source in each branch."""
    sent, unreadable = sources.sent(), {LEGACY: 0, TILL: sources.unreadable()}
    rejected = _by_source(warehouse, _REJECTED)
    loaded = {FACTS: _by_source(warehouse, _ROWS), VIEW: _by_source(warehouse, _VIEW)}
    return [
        Line(source, table, sent[source], _rows(found, source), _rows(rejected, source), unreadable[source])
        for source in sent
        for table, found in loaded.items()
    ]


def mistakes(found: list[Line], staging: Staging, warehouse: Warehouse) -> list[str]:
    """Everything that does not add up, in words; empty is the proof."""
    wrong = [
        f"{one.source}, {one.table}: {one.sent:,} were sent, {one.loaded + one.rejected + one.unreadable:,} are there"
        for one in found
        if not one.balanced
    ]
    twice = _by_source(warehouse, _DISTINCT)
    wrong += [f"{source}: {_rows(twice, source):,} orders are there twice" for source in twice if _rows(twice, source)]
    facts, view = (_by_source(warehouse, sql) for sql in (_ROWS, _VIEW))
    wrong += [
        f"{source}: the revenue of {FACTS} is {_revenue(facts, source):,}, that of {VIEW} {_revenue(view, source):,}"
        for source in facts
        if _revenue(facts, source) != _revenue(view, source)
    ]
    return wrong + differences(accounts(warehouse, flow=FLOW), intakes(staging, flow=FLOW))


def as_table(found: list[Line]) -> Table:
    """The accounts for a reader."""
    table = Table(title="sent = loaded + rejected + unreadable", title_justify="left", title_style="bold")
    for name in ("source", "branch"):
        table.add_column(name)
    for name in ("sent", "loaded", "rejected", "unreadable", ""):
        table.add_column(name, justify="right")
    for one in found:
        figures = (f"{value:,}" for value in (one.sent, one.loaded, one.rejected, one.unreadable))
        table.add_row(one.source, one.table, *figures, "ok" if one.balanced else "DIFFERENT")
    return table


def freshness_table(warehouse: Warehouse, *, since: float) -> Table:
    """Seconds from capture to commit of each table, over so many seconds."""
    table = Table(
        title="freshness since the shop opened: seconds from capture to commit",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("table")
    for name in ("rows", "p50", "p95", "p99", "longest"):
        table.add_column(name, justify="right")
    for one in warehouse.freshness(FLOW, since=since):
        if one.p50 is not None:
            seconds = ("-" if value is None else f"{value:.2f}" for value in (one.p50, one.p95, one.p99, one.longest))
            table.add_row(one.table, f"{one.rows:,}", *seconds)
    return table


def print_queries(console: Console, warehouse: Warehouse) -> None:
    """Some questions to the warehouse, as SQL, with their answers."""
    for title, sql in _ASKED.items():
        found = warehouse.query(sql)
        console.print(title, style="bold", end="")
        console.print(sql, style="dim")
        table = Table()
        for name, kind in zip(found.column_names, found.schema.types, strict=True):
            table.add_column(name, justify="left" if pa.types.is_string(kind) else "right")
        for row in found.to_pylist():
            table.add_row(*(_shown(value) for value in row.values()))
        console.print(table)


def _by_source(warehouse: Warehouse, sql: str) -> dict[str, dict[str, Any]]:
    return {row["source"]: row for row in warehouse.query(sql).to_pylist()}


def _rows(found: dict[str, dict[str, Any]], source: str) -> int:
    return int(found.get(source, {}).get("rows") or 0)


def _revenue(found: dict[str, dict[str, Any]], source: str) -> Decimal:
    return Decimal(found.get(source, {}).get("revenue") or 0)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | Decimal) else str(value)
