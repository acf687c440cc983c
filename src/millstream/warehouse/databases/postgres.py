"""PostgreSQL as the warehouse: batches go in by COPY, changes are merged by the database.

Needs PostgreSQL 15 or later, for unique indexes in which NULLs are equal.
"""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import errors as pg

from ...errors import InputError, PartRefused, TableMismatch, WarehouseUnavailable
from ...failpoints import reach
from ..ledger import LEDGER, NAMES, SELECT, STATEMENTS, TABLES, Entry
from ..spec import TableSpec
from .base import (
    INCOMING,
    POSITION,
    Database,
    Limits,
    Rows,
    check_stored,
    grouped,
    is_deleted,
    latest_first,
    listed,
    merged,
    quoted,
    used_columns,
)
from .postgres_copy import copy_rows, sql_type
from .postgres_reader import Reader

_INSERT_ENTRY = f"INSERT INTO {LEDGER} ({', '.join(NAMES)}) VALUES ({', '.join(['%s'] * len(NAMES))})"
_LOCK = 0x6D696C6C  # of the tables' definitions
_LEAST_VERSION = 150_000


class Postgres(Database):
    """A PostgreSQL database. Two tables can be loaded at the same time; connections that break are made anew."""

    lanes = 2

    def __init__(self, dsn: str, *, limits: Limits, reader: str | None = None) -> None:
        self._dsn = dsn
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        try:
            psycopg.conninfo.conninfo_to_dict(dsn)
        except psycopg.Error as problem:
            raise InputError(f"this is not the address of a PostgreSQL database: {_line(problem)}") from problem
        with self._transaction() as connection:
            if connection.info.server_version < _LEAST_VERSION:
                raise InputError(f"PostgreSQL 15 or later is needed; this is {connection.info.server_version // 10000}")
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            for statement in STATEMENTS:
                connection.execute(statement)
        self._reader = Reader(dsn, limits=limits, reader=reader)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A connection in a transaction that is committed at the end; one that failed is not used again."""
        connection = None
        try:
            connection = self._connection()
            with connection.transaction():
                yield connection
        except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
            if connection is not None:
                connection.close()
            if isinstance(problem, pg.DiskFull | pg.OutOfMemory | pg.TooManyConnections) or connection is None:
                raise WarehouseUnavailable(f"PostgreSQL has no room or is away: {_line(problem)}") from problem
            raise WarehouseUnavailable(f"the connection to PostgreSQL was lost: {_line(problem)}") from problem
        finally:
            if connection is not None and not connection.closed:
                self._idle.put(connection)

    def _connection(self) -> Any:
        while True:
            try:
                connection = self._idle.get_nowait()
            except queue.Empty:
                return psycopg.connect(
                    self._dsn,
                    autocommit=True,
                    connect_timeout=10,
                    application_name="millstream",
                    options="-c timezone=UTC",
                )
            try:
                connection.execute("SELECT 1")
                return connection
            except psycopg.Error:
                connection.close()

    def tables(self) -> dict[str, TableSpec]:
        with self._transaction() as connection:
            found = connection.execute(f"SELECT name, spec FROM {TABLES}").fetchall()
        return {name: TableSpec.from_json(spec) for name, spec in found}

    def create(self, spec: TableSpec) -> TableSpec:
        target = f"public.{quoted(spec.name)}"
        with self._transaction() as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            known = connection.execute(f"SELECT spec FROM {TABLES} WHERE name = %s", [spec.name]).fetchone()
            wanted = TableSpec.from_json(known[0]).widened(spec) if known else spec
            types = {entry.name: sql_type(entry, spec.name) for entry in wanted.stored}
            there = dict(
                connection.execute(
                    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
                    "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                    [target],
                ).fetchall()
            )
            if not there:
                columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in types.items())
                connection.execute(f"CREATE TABLE {target} ({columns})")
            else:
                for name in check_stored(spec.name, there, types):
                    connection.execute(f"ALTER TABLE {target} ADD COLUMN {quoted(name)} {types[name]}")
            _index(connection, wanted)
            connection.execute(
                f"INSERT INTO {TABLES} VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET spec = EXCLUDED.spec",
                [wanted.name, json.dumps(wanted.to_json())],
            )
            self._reader.grant(connection, target)
        return wanted

    def load(self, spec: TableSpec, rows: pa.Table, finish: Callable[[], Entry]) -> Entry:
        names = used_columns(spec, rows)
        entry: Entry | None = None
        try:
            with self._transaction() as connection:
                # whoever loads a table is alone with it: two upserts of the same keys would lock each other out
                connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_LOCK, spec.name])
                if rows.num_rows:
                    _PUT[spec.mode](connection, spec, rows.select(names))
                entry = finish()
                connection.execute(_INSERT_ENTRY, entry.values())
                reach("warehouse.before-commit")
            return entry
        except pg.UniqueViolation:
            found = self.committed(entry.flow, entry.batch, entry.table) if entry is not None else None
            if found is None:
                raise
            return found
        except pg.UndefinedTable as problem:
            raise WarehouseUnavailable(f"table {spec.name!r} is gone: {_line(problem)}") from problem
        except psycopg.Error as problem:
            raise PartRefused(f"the batch does not go into table {spec.name!r}: {_line(problem)}") from problem

    def committed(self, flow: str, batch: int, table: str) -> Entry | None:
        sql = f"{SELECT} WHERE flow = %s AND batch = %s AND table_name = %s"
        with self._transaction() as connection:
            line = connection.execute(sql, [flow, batch, table]).fetchone()
        return Entry.from_values(line) if line else None

    def ledger(
        self, *, flow: str | None = None, table: str | None = None, since: float | None = None, last: int | None = None
    ) -> list[Entry]:
        where: list[str] = ["TRUE"]
        values: list[Any] = []
        for test, value in (
            ("flow = %s", flow),
            ("table_name = %s", table),
            ("committed_at >= now() - make_interval(secs => %s)", since),
        ):
            if value is not None:
                where.append(test)
                values.append(value)
        many = f" LIMIT {int(last)}" if last is not None else ""
        sql = f"{SELECT} WHERE {' AND '.join(where)} ORDER BY committed_at DESC, batch DESC{many}"
        with self._transaction() as connection:
            return [Entry.from_values(line) for line in connection.execute(sql, values).fetchall()]

    def query(self, sql: str, limit: int) -> Rows:
        return self._reader.query(sql, limit)

    def check(self) -> None:
        with self._transaction() as connection:
            connection.execute("SELECT 1")

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get().close()


def _index(connection: Any, spec: TableSpec) -> None:
    """The index by which rows are replaced and merged; a view without a key is one row, found by a constant."""
    if spec.mode == "append":
        return
    name = quoted(f"{spec.name[:45]}_millstream_key")
    columns = listed(spec.key) if spec.key else "(0)"
    try:
        connection.execute(
            f"CREATE UNIQUE INDEX IF NOT EXISTS {name} ON public.{quoted(spec.name)} ({columns}) NULLS NOT DISTINCT"
        )
    except pg.UniqueViolation as problem:
        reason = f"the key {', '.join(spec.key)} is not unique in the table that is there"
        raise TableMismatch(
            f"the database has another table {spec.name!r}: {reason}", differences=[reason]
        ) from problem


def _append(connection: Any, spec: TableSpec, rows: pa.Table) -> None:
    copy_rows(connection, f"public.{quoted(spec.name)}", rows)


def _incoming(connection: Any, spec: TableSpec, rows: pa.Table) -> None:
    """The batch as a temporary table that goes with the transaction; rows keep their order in a column."""
    columns = [f"{quoted(entry.name)} {sql_type(entry, spec.name)}" for entry in rows.schema]
    connection.execute(
        f"CREATE TEMP TABLE {INCOMING} ({', '.join(columns)}, {POSITION} BIGINT GENERATED ALWAYS AS IDENTITY) "
        "ON COMMIT DROP"
    )
    copy_rows(connection, f"pg_temp.{INCOMING}", rows)


def _upsert(connection: Any, spec: TableSpec, rows: pa.Table) -> None:
    names = rows.schema.names
    target = f"public.{quoted(spec.name)}"
    stored = [name for name in names if name in spec.stored.names]
    _incoming(connection, spec, rows)
    key = listed(spec.key)
    latest = (
        f"SELECT DISTINCT ON ({key}) *, {is_deleted(spec, names)} AS millstream_gone FROM pg_temp.{INCOMING} "
        f"ORDER BY {key}, {latest_first(names)}"
    )
    if is_deleted(spec, names) != "FALSE":
        # only = finds its rows by the index, so NULLs in keys have a statement of their own, and only if there are any
        signs = ["="] + ["IS NOT DISTINCT FROM"] * any(rows.column(name).null_count for name in spec.key)
        for sign in signs:
            same = " AND ".join(f"old.{quoted(name)} {sign} new.{quoted(name)}" for name in spec.key)
            connection.execute(
                f"DELETE FROM {target} AS old USING ({latest}) AS new WHERE new.millstream_gone AND {same}"
            )
    absent = [name for name in spec.stored.names if name not in names]
    changes = [f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in stored if name not in spec.key]
    changes += [f"{quoted(name)} = NULL" for name in absent]  # a row is replaced whole
    action = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
    connection.execute(
        f"INSERT INTO {target} ({listed(stored)}) SELECT {listed(stored)} FROM ({latest}) AS new "
        f"WHERE NOT millstream_gone ON CONFLICT ({key}) DO {action}"
    )


def _aggregate(connection: Any, spec: TableSpec, rows: pa.Table) -> None:
    _incoming(connection, spec, rows)
    columns, target = listed(spec.stored.names), f"public.{quoted(spec.name)}"
    changes = ", ".join(f"{quoted(name)} = {value}" for name, value in merged(spec, "old", "EXCLUDED").items())
    connection.execute(
        f"INSERT INTO {target} AS old ({columns}) {grouped(spec, f'pg_temp.{INCOMING}')} "
        f"ON CONFLICT ({listed(spec.key) or '(0)'}) DO UPDATE SET {changes}"
    )


_PUT: dict[str, Callable[[Any, TableSpec, pa.Table], None]] = {
    "append": _append,
    "upsert": _upsert,
    "aggregate": _aggregate,
}


def _line(problem: Exception) -> str:
    return " ".join(str(problem).split())[:500]
