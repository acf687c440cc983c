"""`millstream serve`: run a warehouse, and `millstream report`: how fresh it is."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.units import format_bytes

from .parser import add_command, positive, size

if TYPE_CHECKING:
    from millstream.warehouse import Freshness

    from .parser import Commands

PORT = 7421


def register(commands: Commands) -> None:
    """Add `serve` and `report`."""
    _register_serve(commands)
    _register_report(commands)


def _register_serve(commands: Commands) -> None:
    parser = add_command(
        commands,
        "serve",
        summary="run a warehouse: a web service for each target table, over DuckDB or PostgreSQL",
        about="Flows send parts and commit each batch once; everybody can ask /query, /freshness, /health and "
        "/metrics.\nThe services are described at /openapi.json. Ends cleanly on SIGTERM and Ctrl-C.",
        example="millstream serve warehouse.duckdb --port 7421",
    )
    parser.add_argument(
        "database", metavar="DATABASE", help="a DuckDB file (made if it is new), or postgresql://user@host/database"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, default=PORT, help=f"port to listen on (default: {PORT}; 0: any)")
    parser.add_argument("--token", help="the token of those who write (default: MILLSTREAM_TOKEN, or none)")
    parser.add_argument(
        "--reader-token", metavar="TOKEN", help="a second one that may only read (default: MILLSTREAM_READER_TOKEN)"
    )
    parser.add_argument("--certificate", metavar="FILE", type=Path, help="TLS certificate (PEM)")
    parser.add_argument("--key", metavar="FILE", type=Path, help="key of the TLS certificate (PEM)")
    parser.add_argument("--insecure", action="store_true", help="plain HTTP on other addresses: TLS is done in front")
    parser.add_argument(
        "--parts",
        metavar="DIR",
        type=Path,
        help="where parts wait for their commit (default: DATABASE.parts, or ./millstream-parts for PostgreSQL)",
    )
    parser.add_argument(
        "--reader",
        metavar="ADDRESS",
        help="PostgreSQL address for queries, of a role that may only read (default: millstream_reader is made)",
    )
    parser.add_argument(
        "--part-limit", metavar="SIZE", type=size, default=64 << 20, help="largest part (default: 64MiB)"
    )
    parser.add_argument("--requests", metavar="N", type=positive, default=64, help="requests at once (default: 64)")
    parser.add_argument(
        "--query-rows", metavar="N", type=positive, default=1_000_000, help="largest result (default: 1000000)"
    )
    parser.add_argument(
        "--query-seconds", metavar="N", type=positive, default=30, help="longest query in seconds (default: 30)"
    )
    parser.add_argument("--memory", metavar="SIZE", type=size, default=2 << 30, help="for DuckDB (default: 2GiB)")
    parser.set_defaults(run=run_serve)


def _register_report(commands: Commands) -> None:
    parser = add_command(
        commands,
        "report",
        summary="print how fresh the tables of a warehouse are kept",
        about="For each flow and table: batches, rows, the seconds from capture to commit that 50, 95 and 99 % of the "
        "rows took,\nand the share of rows and of the time above a bound.",
        example="millstream report http://127.0.0.1:7421 --flow sales --bound 2",
    )
    parser.add_argument("url", metavar="URL", help="address of the warehouse")
    parser.add_argument("--flow", help="only this flow")
    parser.add_argument("--bound", metavar="SECONDS", type=float, default=2.0, help="what counts as late (default: 2)")
    parser.add_argument("--since", metavar="SECONDS", type=float, help="only the batches of so many seconds")
    parser.add_argument("--token", help="the token (default: MILLSTREAM_TOKEN, or none)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_report)


def _port(text: str) -> int:
    if text.isdigit() and int(text) < 1 << 16:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port")


def run_serve(arguments: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    from millstream.warehouse.core import Settings
    from millstream.warehouse.databases import Limits as QueryLimits
    from millstream.warehouse.server import Server
    from millstream.warehouse.wire import Limits

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    settings = Settings(
        part=Limits(part_bytes=arguments.part_limit),
        query=QueryLimits(
            rows=arguments.query_rows, seconds=float(arguments.query_seconds), memory=f"{arguments.memory // 1000}KB"
        ),
        requests=arguments.requests,
    )
    with Server(
        arguments.database,
        host=arguments.host,
        port=arguments.port,
        token=arguments.token or os.environ.get("MILLSTREAM_TOKEN") or None,
        reader_token=arguments.reader_token or os.environ.get("MILLSTREAM_READER_TOKEN") or None,
        parts=arguments.parts,
        reader=arguments.reader,
        certificate=arguments.certificate,
        key=arguments.key,
        insecure=arguments.insecure,
        settings=settings,
    ) as server:
        tables = server.warehouse.tables()
        health = server.warehouse.health()
        print(f"warehouse {_shown(arguments.database)}: {server.url}, {len(tables)} tables", flush=True)
        if health["waiting"] or health["staged_bytes"]:
            left = format_bytes(health["staged_bytes"])
            print(f"recovered: {health['waiting']} accepted batches to commit, {left} of parts", flush=True)
        while not over.wait(1.0):
            pass
        print("ending: the commit that runs is finished first", flush=True)
    print("warehouse ended; everything committed or accepted is on disk", flush=True)


def _shown(database: str) -> str:
    """The database without a password."""
    if "@" not in database:
        return database
    from urllib.parse import urlsplit

    parts = urlsplit(database)
    return parts._replace(netloc=f"{parts.username}@{parts.hostname}:{parts.port or 5432}", query="").geturl()


def run_report(arguments: argparse.Namespace) -> None:
    """Print the figures as a table, or as JSON."""
    import json

    from millstream.warehouse import connect

    with connect(arguments.url, token=arguments.token, patience=2.0) as client:
        found = client.freshness(arguments.flow, bound=arguments.bound, since=arguments.since)
    if arguments.json:
        print(json.dumps([one.to_json() for one in found], indent=2))
        return
    _print(found, arguments.bound)


def _print(found: list[Freshness], bound: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    if not found:
        console.print("no batch has been committed yet")
        return
    grid = Table(title="Freshness: seconds from capture to commit", title_justify="left")
    heads = ("flow", "table", "batches", "rows", "p50", "p95", "p99", f"rows > {bound:g} s", f"time > {bound:g} s", "")
    for number, head in enumerate(heads):
        grid.add_column(head, justify="left" if number in (0, 1, 9) else "right")
    for one in found:
        flags = [f"{one.ahead:,} rows from the future"] * bool(one.ahead)
        flags += [f"clock set {one.clock_jumps} times"] * bool(one.clock_jumps)
        seconds = ["-" if value is None else f"{value:.3f}" for value in (one.p50, one.p95, one.p99)]
        shares = ["-" if value is None else f"{value:.2%}" for value in (one.above, one.time_above)]
        grid.add_row(one.flow, one.table, f"{one.batches:,}", f"{one.rows:,}", *seconds, *shares, ", ".join(flags))
    console.print(grid)
