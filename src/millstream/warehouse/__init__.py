"""The warehouse: one web service for each target table, over DuckDB or PostgreSQL.

Rows arrive as parts, which stay invisible, and a commit that loads all parts of a batch once for each
(flow, batch, table), together with a line in the ledger. Knows no Spark.

`Server` is loaded when it is first used: tasks that only send parts need no web framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .client import Client, connect
from .receipt import Freshness, Receipt
from .spec import TableSpec

if TYPE_CHECKING:
    from .server import Server

__all__ = ["Client", "Freshness", "Receipt", "Server", "TableSpec", "connect"]


def __getattr__(name: str) -> Any:
    if name == "Server":
        from .server import Server

        return Server
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
