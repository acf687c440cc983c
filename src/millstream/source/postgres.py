"""Captures a table of PostgreSQL through logical replication: rows as they are, then every change, each once.

    slot made ---- snapshot (as of the slot) ----> file in the state directory ----> spool ----> staging
         +-------- changes since then -----------------------------------------> spool ----> staging
         <-------- confirmed: what staging has acknowledged

1. The slot exports a snapshot when it is made; the rows are copied to a file as of it. A capture that is killed before
   the file is complete begins again with a new slot: nothing has been sent by then. After that the file is what is
   read, so that a capture that is killed later sends the same rows in the same order.
2. Each block in the spool carries the place in the log behind its last change: the end of the last whole transaction,
   and how many changes of the next one are in already. PostgreSQL repeats what was not confirmed, and what the spool
   has is left out.
3. PostgreSQL is told to forget its log only up to the place of the last block that staging has acknowledged.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv

from ..errors import CaptureFailed, InputError
from . import pgtypes
from .pgoutput import Begin, Change, Column, Commit, Keepalive, Relation, Truncate, decode, status, unwrap
from .regulator import FlowRegulator
from .rejects import Rejects

_log = logging.getLogger(__name__)
EXTRA = (("_op", pa.string()), ("_unchanged", pa.string()), ("_lsn", pa.int64()))
_BATCH = 5_000
_CONFIRM = 1.0  # seconds between two confirmations
_ASK = 0.1
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SESSION = "-c timezone=UTC -c datestyle=ISO -c intervalstyle=iso_8601 -c extra_float_digits=1 -c bytea_output=hex"


@dataclass(frozen=True)
class LogPlace:
    """What is in the spool: `rows` of the snapshot, or the log to `end` and changes `within` the next transaction."""

    rows: int = -1
    end: int = 0
    within: int = 0
    record: int = 0  # rows and changes altogether, to number the rejects

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class PostgresCapture:
    """Sends a table and its changes through a regulator whose `replayed` is set."""

    def __init__(self, dsn: str, table: str, regulator: FlowRegulator, *, state: Path, slot: str) -> None:
        if not _NAME.fullmatch(slot):
            raise InputError(f"{slot!r} cannot name a replication slot: use lower-case letters, digits and '_'")
        schema, _, name = table.rpartition(".")
        self._dsn, self._schema, self._name = dsn, schema or "public", name
        self._regulator, self._state, self._slot = regulator, state, slot
        self._rejects = Rejects(state / "rejects.jsonl")
        self._file, self._marker = state / "snapshot.csv", state / "snapshot.json"
        self._place = LogPlace(**json.loads(regulator.cursor)) if regulator.cursor else LogPlace()
        self._relations: dict[int, Relation] = {}
        self._changes: list[tuple[Change, int]] = []
        self._told = 0.0
        self.rejected = 0

    @property
    def rows(self) -> int:
        """Rows of the snapshot and changes that were taken so far."""
        return self._place.record

    def run(self, *, once: bool = False, over: Callable[[], bool] = lambda: False) -> None:
        """Send the snapshot if it is not sent yet, then changes until `over()`; with `once`, those there are now."""
        psycopg = _psycopg()
        try:
            connection = psycopg.connect(self._dsn, autocommit=True, options=_SESSION)
        except psycopg.Error as problem:
            raise CaptureFailed(f"PostgreSQL cannot be reached: {_line(problem)}", retryable=True) from None
        try:
            with connection:
                columns = self._prepare(connection)
                if self._place.end == 0:
                    self._snapshot(connection, columns)
                self._forget_snapshot()
            self._follow(psycopg, once=once, over=over)
        except psycopg.Error as problem:
            raise CaptureFailed(f"PostgreSQL: {_line(problem)}", retryable=True) from None

    # the snapshot

    def _prepare(self, connection: Any) -> list[Column]:
        """Check what PostgreSQL must have, make the publication; the table's columns."""
        level = connection.execute("SHOW wal_level").fetchone()[0]
        if level != "logical":
            raise CaptureFailed(f"PostgreSQL runs with wal_level = {level}; set it to logical and restart it")
        found = connection.execute(
            "SELECT a.attname, a.atttypid::int8, a.atttypmod, c.relreplident FROM pg_attribute a "
            "JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' "
            "ORDER BY a.attnum",
            (self._schema, self._name),
        ).fetchall()
        if not found:
            raise CaptureFailed(f"there is no table {self._schema}.{self._name}, or it has no columns")
        published = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (self._slot,)).fetchone()
        if published is None:
            connection.execute(f"CREATE PUBLICATION {self._slot} FOR TABLE {self._table}")
        return [Column(name, oid, modifier) for name, oid, modifier, _ in found]

    @property
    def _table(self) -> str:
        return ".".join('"' + part.replace('"', '""') + '"' for part in (self._schema, self._name))

    def _snapshot(self, connection: Any, columns: list[Column]) -> None:
        if not self._marker.exists():
            start = self._export(connection, columns)
            _write_durably(
                self._marker, json.dumps({"start": start, "columns": [tuple(one) for one in columns]}).encode()
            )
        told = json.loads(self._marker.read_text())
        columns = [Column(*one) for one in told["columns"]]
        done = max(0, self._place.rows)
        options = csv.ConvertOptions(
            column_types={one.name: pa.string() for one in columns},
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        )
        reading = csv.ReadOptions(column_names=[one.name for one in columns], use_threads=False)
        if self._file.stat().st_size:
            parsing = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
            for batch in csv.open_csv(self._file, reading, parsing, options):
                skip = min(done, batch.num_rows)
                done -= skip
                if batch.num_rows > skip:
                    self._send_snapshot(batch.slice(skip), columns)
        self._place = replace(self._place, rows=-1, end=told["start"])
        self._send(columns, [], [], [], [])

    def _forget_snapshot(self) -> None:
        for path in (self._file, self._marker):
            path.unlink(missing_ok=True)

    def _export(self, connection: Any, columns: list[Column]) -> int:
        """Make the slot and copy the table as of it into the file; where in the log that is."""
        psycopg = _psycopg()
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", (self._slot,)
        )
        with psycopg.connect(self._dsn, autocommit=True, replication="database") as replication:
            made = replication.execute(f"CREATE_REPLICATION_SLOT {self._slot} LOGICAL pgoutput EXPORT_SNAPSHOT")
            _, start, snapshot, _ = made.fetchone()
            names = ", ".join('"' + one.name.replace('"', '""') + '"' for one in columns)
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
                with (
                    open(self._file, "wb") as file,
                    connection.cursor().copy(
                        f"COPY (SELECT {names} FROM {self._table}) TO STDOUT (FORMAT csv)"
                    ) as copy,
                ):
                    for piece in copy:
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
        high, low = start.split("/")
        return int(high, 16) << 32 | int(low, 16)

    def _send_snapshot(self, batch: pa.RecordBatch, columns: list[Column]) -> None:
        count = batch.num_rows
        rows = max(0, self._place.rows) + count
        self._place = replace(self._place, rows=rows)
        self._send(columns, batch.columns, ["snapshot"] * count, [None] * count, [0] * count)

    # the changes

    def _follow(self, psycopg: Any, *, once: bool, over: Callable[[], bool]) -> None:
        connection = psycopg.connect(self._dsn, autocommit=True, replication="database", options=_SESSION)
        try:
            stop_at = 0
            if once:
                high, low = connection.execute("IDENTIFY_SYSTEM").fetchone()[2].split("/")
                stop_at = int(high, 16) << 32 | int(low, 16)
            raw = connection.pgconn
            raw.send_query(
                f"START_REPLICATION SLOT {self._slot} LOGICAL 0/0 "
                f"(proto_version '1', publication_names '{self._slot}')".encode()
            )
            self._until_copying(psycopg, raw)
            transaction, seen, at = Begin(0, 0), 0, self._place.end
            done, skip = self._place.end, 0  # what the spool had when we began
            resumed = False
            while not over():
                size, data = raw.get_copy_data(1)
                if size == 0:
                    self._end_batch(at, seen)
                    if once and at >= stop_at:
                        break
                    self._confirm(raw, at, ask=once)
                    select.select([raw.socket], [], [], 0.05)
                    raw.consume_input()
                    continue
                if size < 0:
                    raise psycopg.OperationalError(raw.error_message.decode(errors="replace") or "the stream ended")
                message = unwrap(bytes(data))
                if isinstance(message, Keepalive):
                    at = max(at, message.end) if not self._changes and not seen else at
                    self._confirm(raw, at, now=message.answer)
                    continue
                known = decode(message)
                if isinstance(known, Relation):
                    self._end_batch(at, seen)
                    self._relations[known.oid] = known
                elif isinstance(known, Begin):
                    transaction, seen = known, 0
                    # the first transaction that is not whole in the spool may be there in part
                    skip = self._place.within if known.final >= done and not resumed else 0
                    resumed = resumed or known.final >= done
                elif isinstance(known, Commit):
                    at, seen = max(at, known.end), 0
                    if len(self._changes) >= _BATCH:
                        self._end_batch(at, seen)
                elif isinstance(known, Change | Truncate):
                    seen += 1
                    if transaction.final >= done and seen > skip:
                        change = known if isinstance(known, Change) else _truncated(known, self._relations)
                        self._changes.append((change, transaction.final))
                    if len(self._changes) >= _BATCH:
                        self._end_batch(at, seen)
            self._end_batch(at, seen)
            self._confirm(raw, at, now=True)
        finally:
            connection.close()  # not by a with statement, which would want to commit in the middle of the stream

    def _until_copying(self, psycopg: Any, raw: Any) -> None:
        while raw.is_busy() or not (result := raw.get_result()):
            select.select([raw.socket], [], [], 0.05)
            raw.consume_input()
        if result.status != psycopg.pq.ExecStatus.COPY_BOTH:
            raise psycopg.OperationalError(result.error_message.decode(errors="replace"))

    def _end_batch(self, at: int, within: int) -> None:
        """Put the changes that were read into the spool, with the place behind them."""
        changes, self._changes = self._changes, []
        if not changes:
            return
        relation = self._relations[changes[-1][0].relation]
        width = len(relation.columns)
        values = [change.values + [None] * (width - len(change.values)) for change, _ in changes]
        texts = [pa.array(column, pa.string()) for column in zip(*values, strict=True)]
        unchanged = [",".join(relation.columns[one].name for one in change.unchanged) or None for change, _ in changes]
        self._place = replace(self._place, end=at, within=within)
        self._send(
            list(relation.columns),
            texts,
            [change.operation for change, _ in changes],
            unchanged,
            [lsn for _, lsn in changes],
        )

    def _send(
        self, columns: list[Column], texts: list[pa.Array], ops: list[str], unchanged: list[str | None], lsn: list[int]
    ) -> None:
        schema = pgtypes.schema(columns, EXTRA)
        texts = texts or [pa.array([], pa.string())] * len(columns)
        arrays, bad = pgtypes.to_arrow(texts, list(schema)[: len(columns)])
        extra = [pa.array(ops, pa.string()), pa.array(unchanged, pa.string()), pa.array(lsn, pa.int64())]
        batch = pa.RecordBatch.from_arrays([*arrays, *extra], schema=schema)
        first = self._place.record
        if bad:
            found = [
                (first + row, bad[row], [str(text[row].as_py()) for text in texts] + [ops[row]]) for row in sorted(bad)
            ]
            self.rejected += self._rejects.add(found)
            batch = batch.filter(pgtypes.keep(batch.num_rows, bad))
        self._place = replace(self._place, record=first + len(ops))
        self._regulator.send_batch(batch, cursor=self._place.encoded())

    def _confirm(self, raw: Any, at: int, *, now: bool = False, ask: bool = False) -> None:
        """Tell PostgreSQL what staging has, now and then, or at once if it asks; and `ask` how far its log is."""
        if not now and time.monotonic() - self._told < (_ASK if ask else _CONFIRM):
            return
        self._told = time.monotonic()
        kept = self._regulator.acknowledged_cursor
        if kept == self._regulator.cursor and not self._changes:
            flushed = at  # nothing is on its way, so the log is not needed up to where we have read it
        else:
            flushed = LogPlace(**json.loads(kept)).end if kept else 0
        raw.put_copy_data(status(flushed, now=time.time_ns() // 1000, ask=ask))
        raw.flush()


def drop(dsn: str, slot: str) -> None:
    """Remove slot and publication of a capture that is over, so that PostgreSQL keeps no log for it."""
    psycopg = _psycopg()
    if not _NAME.fullmatch(slot):
        raise InputError(f"{slot!r} cannot name a replication slot: use lower-case letters, digits and '_'")
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
            )
            connection.execute(f"DROP PUBLICATION IF EXISTS {slot}")
    except psycopg.Error as problem:
        raise CaptureFailed(f"PostgreSQL: {_line(problem)}") from None


def _truncated(truncate: Truncate, relations: dict[int, Relation]) -> Change:
    oid = truncate.relations[0]
    return Change("truncate", oid, [None] * len(relations[oid].columns), [])


def _write_durably(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError:
        raise CaptureFailed("capture from PostgreSQL needs psycopg: pip install 'millstream[postgres]'") from None
    return psycopg


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:300]
