"""The staging area: sources send blocks of records, flows read them; durable, ordered, each record once.

with Server("/data/staging") as server, connect(server.url) as client:
    with client.open("orders", "till-7", incarnation="a1", schema=batch.schema) as session:
        session.send(session.next, batch)
        session.wait(batch.num_rows)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .block import Block, Limits
from .client import Backlog, Client, StreamInfo, connect
from .session import Session

if TYPE_CHECKING:
    from .server import Server
    from .stream import Retention

__all__ = ["Backlog", "Block", "Client", "Limits", "Retention", "Server", "Session", "StreamInfo", "connect"]


def __getattr__(name: str) -> Any:
    # a source needs the client alone: the server is loaded when it is asked for
    if name == "Server":
        from .server import Server

        return Server
    if name == "Retention":
        from .stream import Retention

        return Retention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
