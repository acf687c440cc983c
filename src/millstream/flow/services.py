"""Whether the services that a flow needs are there: staging with its stream, and the warehouse."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..errors import MillstreamError, UnknownStream
from ..staging import connect as connect_staging
from ..warehouse import connect as connect_warehouse
from .graph import Graph
from .nodes import Staging, Table


def absent(graph: Graph, *, token: str | None = None) -> list[str]:
    """What is not there yet, each in a few words; raises what waiting cannot cure, such as a wrong token."""
    missing = []
    source = graph.source
    if isinstance(source, Staging):
        try:
            with connect_staging(source.url, token, timeout=5) as staging:
                staging.stream(source.stream)
        except UnknownStream:
            missing.append(f"the stream {source.stream} in staging at {source.url} (no source has sent anything yet)")
        except MillstreamError as problem:
            if not problem.retryable:
                raise
            missing.append(f"staging at {source.url}")
    if any(isinstance(node, Table) for node in graph.nodes):
        try:
            with connect_warehouse(graph.warehouse, token=token, timeout=5, patience=0) as warehouse:
                warehouse.health()
        except MillstreamError as problem:
            if not problem.retryable:
                raise
            missing.append(f"the warehouse at {graph.warehouse}")
    return missing


def await_services(
    graph: Graph,
    *,
    token: str | None = None,
    patience: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Return when everything is there; `say` what is waited for. Raises when the patience (seconds) is over."""
    until = None if patience is None else time.monotonic() + patience
    told = ""
    pause = 0.1
    while missing := absent(graph, token=token):
        line = "waiting for " + " and ".join(missing)
        if line != told:
            say(line)
            told = line
        if until is not None and time.monotonic() >= until:
            raise MillstreamError(f"{' and '.join(missing)} did not come in {patience:g} s")
        time.sleep(pause)
        pause = min(2.0, 1.5 * pause)
