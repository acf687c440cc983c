"""`millstream capture`: send records of a source that cannot be changed, a file or a table of PostgreSQL."""

from __future__ import annotations

import argparse
import logging
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import CaptureFailed, InputError, MillstreamError, StagingUnavailable

from .parser import Parser, add_command, size

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.source import FlowRegulator
    from millstream.source.lines import Format

    from .parser import Commands

_log = logging.getLogger(__name__)
_LONGEST_PAUSE = 30.0
_FORMATS: dict[str, Format] = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def register(commands: Commands) -> None:
    """Add `capture` and its subcommands."""
    parser = add_command(
        commands,
        "capture",
        summary="send the records of a growing file, or of a table of PostgreSQL, to staging",
        about="Each record is sent once, also over restarts: progress is kept in the --state directory.",
        example="millstream capture file orders.csv --format csv --stream orders --to grpc://127.0.0.1:7411 --state s",
    )
    kinds = parser.add_subparsers(title="sources", metavar="SOURCE", required=True)
    _register_file(kinds)
    _register_postgres(kinds)


def _register_file(kinds: Commands) -> None:
    file = add_command(
        kinds,
        "file",
        summary="follow a file of CSV or JSON lines as it grows",
        about="Sees files that are renamed and made anew, and files that are truncated. A last line without its end\n"
        "waits for the rest. Lines that cannot be read go to rejects.jsonl in the state directory, with the reason.",
        example="millstream capture file /var/log/till.csv --format csv --stream till --to grpc://127.0.0.1:7411 "
        "--state /var/lib/till",
    )
    file.add_argument("path", metavar="PATH", type=Path, help="the file; it may come later")
    file.add_argument("--format", choices=("csv", "jsonl"), help="format of the lines (default: by the file's ending)")
    file.add_argument("--schema", metavar="DDL", help="columns, e.g. 'id bigint, at timestamp' (default: inferred)")
    file.add_argument("--no-header", action="store_true", help="CSV without a first line of names; needs --schema")
    file.add_argument("--delimiter", metavar="SIGN", default=",", help="between the values of CSV (default: a comma)")
    _add_common(file)
    file.set_defaults(run=run_file)


def _register_postgres(kinds: Commands) -> None:
    postgres = add_command(
        kinds,
        "postgres",
        summary="capture a table of PostgreSQL through logical replication",
        about="Sends the rows of the table as they are (_op = snapshot), then every change of them.\n"
        "PostgreSQL needs wal_level = logical and keeps its log until staging has acknowledged what it says; when a\n"
        "capture is over, run it with --drop once, or PostgreSQL's disk fills up.",
        example="millstream capture postgres postgresql://shop@db/shop --table orders --stream orders "
        "--to grpc://127.0.0.1:7411 --state /var/lib/orders",
    )
    postgres.add_argument("dsn", metavar="DSN", help="PostgreSQL, as a url or as key=value pairs")
    postgres.add_argument("--table", metavar="TABLE", required=True, help="the table, with its schema if not public")
    postgres.add_argument("--slot", metavar="NAME", help="replication slot and publication (default: millstream_TABLE)")
    postgres.add_argument("--drop", action="store_true", help="remove slot and publication, and do nothing else")
    _add_common(postgres)
    postgres.set_defaults(run=run_postgres)


def _add_common(parser: Parser) -> None:
    parser.add_argument("--stream", metavar="NAME", required=True, help="stream of staging to send to")
    parser.add_argument("--to", metavar="URL", required=True, help="staging, e.g. grpc://127.0.0.1:7411")
    parser.add_argument("--state", metavar="DIR", type=Path, required=True, help="where progress and spool are kept")
    parser.add_argument("--source", metavar="NAME", help="name of this source (default: the host's name and the input)")
    parser.add_argument("--token", metavar="TOKEN", help="token for staging (default: the variable MILLSTREAM_TOKEN)")
    parser.add_argument("--spool", metavar="SIZE", type=size, default=4_000_000_000, help="most to keep (default: 4GB)")
    parser.add_argument("--once", action="store_true", help="stop at the end of what is there now")
    parser.add_argument("--wait", metavar="SECONDS", type=float, default=60.0, help="for staging at the end (60)")


def run_file(arguments: argparse.Namespace) -> None:
    """Follow the file until we are stopped, or with --once to its end."""
    kind: Format | None = arguments.format or _FORMATS.get(arguments.path.suffix)
    if kind is None:
        raise InputError(f"--format csv or jsonl is needed: the name of {arguments.path} does not tell")
    if arguments.no_header and not arguments.schema:
        raise InputError("--no-header needs --schema, as nothing else names the columns")
    if len(arguments.delimiter) != 1:
        raise InputError(f"--delimiter must be one sign, not {arguments.delimiter!r}")
    if arguments.path.is_dir() or (arguments.once and not arguments.path.exists()):
        raise InputError(f"{arguments.path} is {'a directory' if arguments.path.is_dir() else 'not there'}")
    given = parse_ddl(arguments.schema) if arguments.schema else None

    from millstream.source.follow import FileFollower
    from millstream.source.lines import parser

    regulator = _regulator(arguments, given, arguments.path.name)
    try:
        lines = parser(
            kind,
            given if given is not None else regulator.schema,
            given=given is not None,
            header=not arguments.no_header,
            delimiter=arguments.delimiter,
        )
        follower = FileFollower(arguments.path, regulator, lines, rejects=arguments.state / "rejects.jsonl")
        with _Stopped(lambda: f"{follower.lines:,} lines, {follower.rejected:,} rejected") as over:
            follower.run(once=arguments.once, over=over)
    finally:
        done = regulator.close(timeout=arguments.wait if arguments.once else 5.0)
    _report(regulator, done, f"{follower.lines:,} lines", follower.rejected, arguments)


def run_postgres(arguments: argparse.Namespace) -> None:
    """Capture the table until we are stopped, or with --once what has changed by now."""
    from millstream.source.postgres import PostgresCapture, drop

    slot = arguments.slot or "millstream_" + re.sub(r"[^a-z0-9_]", "_", arguments.table.lower())
    if arguments.drop:
        drop(arguments.dsn, slot)
        print(f"dropped: slot and publication {slot}")
        return
    regulator = _regulator(arguments, None, arguments.table)
    rejected, rows, pause = 0, 0, 1.0
    try:
        with _Stopped(lambda: f"{capture.rows:,} rows and changes") as over:
            while True:
                capture = PostgresCapture(arguments.dsn, arguments.table, regulator, state=arguments.state, slot=slot)
                begun = time.monotonic()
                try:
                    capture.run(once=arguments.once, over=over)
                    break
                except CaptureFailed as problem:
                    if arguments.once or not problem.retryable or over():
                        raise
                    _log.warning("%s; trying again in %.0f s", problem, pause)
                    over.wait(pause)
                    pause = 1.0 if time.monotonic() - begun > 60 else min(2 * pause, _LONGEST_PAUSE)
                finally:
                    rejected += capture.rejected
                    rows = capture.rows
    finally:
        done = regulator.close(timeout=arguments.wait if arguments.once else 5.0)
    _report(regulator, done, f"{rows:,} rows and changes", rejected, arguments)


def parse_ddl(text: str) -> pa.Schema:
    """The schema that a text like `id bigint, amount decimal(10,2)` describes."""
    import pyarrow as pa

    from millstream.staging.columns import parse_type
    from millstream.staging.names import check_column

    fields = []
    for part in re.split(r",(?![^(<]*[)>])", text):
        name, _, kind = part.strip().partition(" ")
        if not kind:
            raise InputError(f"--schema: {part.strip()!r} is not a column and a type, like 'id bigint'")
        fields.append(pa.field(check_column(name), parse_type(kind.strip())))
    return pa.schema(fields)


def _regulator(arguments: argparse.Namespace, schema: pa.Schema | None, what: str) -> FlowRegulator:
    from millstream.source import FlowRegulator

    logging.basicConfig(format="millstream: %(message)s", level=logging.WARNING)
    arguments.state.mkdir(parents=True, exist_ok=True)
    name = arguments.source or re.sub(r"[^A-Za-z0-9_.-]", "_", f"{socket.gethostname()}-{what}")[:128]
    return FlowRegulator(
        arguments.to,
        arguments.stream,
        source=name,
        spool=arguments.state / "spool",
        schema=schema,
        spool_bytes=arguments.spool,
        when_full="wait",
        replayed=True,
        sender="thread",
        token=arguments.token,
    )


class _Stopped(threading.Event):
    """Is set by SIGINT and SIGTERM; meanwhile says on a terminal how far we are."""

    def __init__(self, progress: Callable[[], str]) -> None:
        super().__init__()
        self._progress = progress

    def __call__(self) -> bool:
        return self.is_set()

    def __enter__(self) -> _Stopped:
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, lambda *_: self.set())
        if sys.stderr.isatty():
            threading.Thread(target=self._show, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.set()
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, signal.SIG_DFL if sign == signal.SIGTERM else signal.default_int_handler)

    def _show(self) -> None:
        while not self.wait(1.0):
            sys.stderr.write(f"\r{self._progress()} \033[K")
        sys.stderr.write("\r\033[K")


def _report(regulator: FlowRegulator, done: bool, what: str, rejected: int, arguments: argparse.Namespace) -> None:
    stats = regulator.stats
    more = f", {rejected + stats.rejected:,} rejected (see {arguments.state})" if rejected + stats.rejected else ""
    print(f"{what} so far: {stats.acknowledged:,} records acknowledged in this run{more}")
    if not done:
        why: MillstreamError = StagingUnavailable(
            f"{stats.spooled:,} records wait in {arguments.state / 'spool'}: {stats.problem or 'staging is slow'}; "
            "run the same command again"
        )
        raise why
