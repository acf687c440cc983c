"""DuckDB as the warehouse: one file, no server. Batches go in by Arrow, without a copy on the way."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from ...errors import InputError, PartRefused, QueryRefused, WarehouseUnavailable
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

_INSERT_ENTRY = f"INSERT INTO {LEDGER} ({', '.join(NAMES)}) VALUES ({', '.join('?' * len(NAMES))})"

# SQL reaches nothing but this file: no other files, no network, no extensions, no variables of this process
_CLOSED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
}

_BROKEN = (duckdb.FatalException, duckdb.IOException, duckdb.InternalException)  # of the disk, mostly
_PASSING = (duckdb.OutOfMemoryException, duckdb.TransactionException, duckdb.ConnectionException)


class DuckDB(Database):
    """A DuckDB file; one batch is loaded at a time, readers are not held up by it.

    After an error of the disk DuckDB refuses to go on with what it has in memory. The file is then opened anew, which
    brings it to the last commit.
    """

    lanes = 1

    def __init__(self, path: Path, *, limits: Limits) -> None:
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent} for the database {path.name}")
        self.path = path
        self._limits = limits
        self._writing = threading.Lock()
        self._opening = threading.Lock()
        self._connection: Any = None
        self._open()

    def _open(self) -> None:
        try:
            self._connection = duckdb.connect(str(self.path), config={**_CLOSED, "memory_limit": self._limits.memory})
            self._connection.execute("SET GLOBAL TimeZone = 'UTC'")
            self._connection.execute("SET lock_configuration = true")
            for statement in STATEMENTS:
                self._connection.execute(statement)
        except duckdb.Error as problem:
            raise WarehouseUnavailable(f"cannot open the DuckDB database {self.path}: {_line(problem)}") from problem

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[Any]:
        """A connection of its own; an error of the disk opens the database anew."""
        with self._opening:
            if self._connection is None:
                self._open()
            cursor = self._connection.cursor()
        try:
            yield cursor
        except _BROKEN as problem:
            self._let_go()
            raise WarehouseUnavailable(f"the database {self.path} failed: {_line(problem)}") from problem
        finally:
            cursor.close()

    def _let_go(self) -> None:
        with self._opening:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(duckdb.Error):
                    connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A writing transaction, the only one at a time; rolled back if the block raises."""
        with self._writing, self._cursor() as cursor:
            cursor.execute("BEGIN")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(duckdb.Error):
                    cursor.execute("ROLLBACK")
                raise

    def tables(self) -> dict[str, TableSpec]:
        with self._cursor() as cursor:
            found = cursor.execute(f"SELECT name, spec FROM {TABLES}").fetchall()
        return {name: TableSpec.from_json(json.loads(spec)) for name, spec in found}

    def create(self, spec: TableSpec) -> TableSpec:
        try:
            return self._create(spec)
        except duckdb.Error as problem:
            raise WarehouseUnavailable(f"table {spec.name!r} cannot be made: {_line(problem)}") from problem

    def _create(self, spec: TableSpec) -> TableSpec:
        with self._transaction() as cursor:
            known = cursor.execute(f"SELECT spec FROM {TABLES} WHERE lower(name) = lower(?)", [spec.name]).fetchall()
            wanted = TableSpec.from_json(json.loads(known[0][0])).widened(spec) if known else spec
            types = _types(cursor, wanted.stored)
            there = dict(
                cursor.execute(
                    "SELECT column_name, data_type FROM duckdb_columns() WHERE schema_name = 'main' "
                    "AND database_name = current_database() AND lower(table_name) = lower(?) ORDER BY column_index",
                    [spec.name],
                ).fetchall()
            )
            if not there:
                columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in types.items())
                cursor.execute(f"CREATE TABLE main.{quoted(spec.name)} ({columns})")
            else:
                for name in check_stored(spec.name, there, types):
                    cursor.execute(f"ALTER TABLE main.{quoted(spec.name)} ADD COLUMN {quoted(name)} {types[name]}")
            cursor.execute(
                f"INSERT OR REPLACE INTO {TABLES} VALUES (?, ?)", [wanted.name, json.dumps(wanted.to_json())]
            )
        return wanted

    def load(self, spec: TableSpec, rows: pa.Table, finish: Callable[[], Entry]) -> Entry:
        names = used_columns(spec, rows)
        try:
            with self._transaction() as cursor:
                if rows.num_rows:
                    cursor.register(INCOMING, rows.select(names))
                    _PUT[spec.mode](cursor, spec, names)
                    cursor.unregister(INCOMING)
                entry = finish()
                found = _entry(cursor, entry.flow, entry.batch, entry.table)
                if found is not None:
                    raise _Already(found)
                cursor.execute(_INSERT_ENTRY, entry.values())
                reach("warehouse.before-commit")
            return entry
        except _Already as already:
            return already.entry
        except _PASSING as problem:
            raise WarehouseUnavailable(f"the database {self.path} failed: {_line(problem)}") from problem
        except duckdb.Error as problem:
            raise PartRefused(f"the batch does not go into table {spec.name!r}: {_line(problem)}") from problem

    def committed(self, flow: str, batch: int, table: str) -> Entry | None:
        with self._cursor() as cursor:
            return _entry(cursor, flow, batch, table)

    def ledger(
        self, *, flow: str | None = None, table: str | None = None, since: float | None = None, last: int | None = None
    ) -> list[Entry]:
        where, values = ["TRUE"], []
        for test, value in (("flow = ?", flow), ("table_name = ?", table)):
            if value is not None:
                where.append(test)
                values.append(value)
        if since is not None:
            where.append("committed_at >= now() - to_seconds(?)")
            values.append(since)  # type: ignore[arg-type]
        many = f" LIMIT {int(last)}" if last is not None else ""
        sql = f"{SELECT} WHERE {' AND '.join(where)} ORDER BY committed_at DESC, batch DESC{many}"
        with self._cursor() as cursor:
            return [Entry.from_values(line) for line in cursor.execute(sql, values).fetchall()]

    def query(self, sql: str, limit: int) -> Rows:
        try:
            statements = duckdb.extract_statements(sql)
        except (duckdb.Error, ValueError) as problem:
            raise QueryRefused(f"this is not SQL: {_line(problem)}") from problem
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise QueryRefused("a query is a single SELECT")
        with self._cursor() as cursor:
            over = threading.Timer(self._limits.seconds, cursor.interrupt)
            try:
                over.start()
                cursor.execute("BEGIN TRANSACTION READ ONLY")
                reader = cursor.sql(sql).to_arrow_reader(65_536)
                return _first(reader, limit)
            except duckdb.InterruptException as problem:
                raise QueryRefused(f"the query took more than {self._limits.seconds:g} s") from problem
            except _BROKEN:
                raise
            except (duckdb.Error, pa.ArrowException, ValueError) as problem:
                raise QueryRefused(f"the query does not work: {_line(problem)}") from problem
            finally:
                over.cancel()
                with contextlib.suppress(duckdb.Error):
                    cursor.execute("ROLLBACK")

    def check(self) -> None:
        with self._cursor() as cursor:
            try:
                cursor.execute("SELECT 1").fetchall()
            except duckdb.Error as problem:
                raise WarehouseUnavailable(f"the database {self.path} failed: {_line(problem)}") from problem

    def close(self) -> None:
        with self._writing:
            self._let_go()


class _Already(Exception):
    """The batch is in the ledger; the transaction must be rolled back."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self.entry = entry


def _append(cursor: Any, spec: TableSpec, names: list[str]) -> None:
    cursor.execute(f"INSERT INTO main.{quoted(spec.name)} ({listed(names)}) SELECT {listed(names)} FROM {INCOMING}")


def _upsert(cursor: Any, spec: TableSpec, names: list[str]) -> None:
    target, latest = f"main.{quoted(spec.name)}", "temp.millstream_latest"
    stored = [name for name in names if name in spec.stored.names]
    cursor.execute(
        f"CREATE OR REPLACE TEMP TABLE millstream_latest AS SELECT {listed(stored)}, {is_deleted(spec, names)} AS "
        f"millstream_gone FROM (SELECT *, row_number() OVER () AS {POSITION} FROM {INCOMING}) "
        f"QUALIFY row_number() OVER (PARTITION BY {listed(spec.key)} ORDER BY {latest_first(names)}) = 1"
    )
    cursor.execute(f"DELETE FROM {target} AS old USING {latest} AS new WHERE {_same_key(spec)}")
    cursor.execute(
        f"INSERT INTO {target} ({listed(stored)}) SELECT {listed(stored)} FROM {latest} WHERE NOT millstream_gone"
    )
    cursor.execute(f"DROP TABLE {latest}")


def _aggregate(cursor: Any, spec: TableSpec, names: list[str]) -> None:
    target, groups = f"main.{quoted(spec.name)}", "temp.millstream_groups"
    cursor.execute(f"CREATE OR REPLACE TEMP TABLE millstream_groups AS {grouped(spec, INCOMING)}")
    changes = ", ".join(f"{quoted(name)} = {value}" for name, value in merged(spec, "old", "new").items())
    cursor.execute(f"UPDATE {target} AS old SET {changes} FROM {groups} AS new WHERE {_same_key(spec)}")
    columns = listed(spec.stored.names)
    cursor.execute(
        f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {groups} AS new "
        f"WHERE NOT EXISTS (SELECT 1 FROM {target} AS old WHERE {_same_key(spec)})"
    )
    cursor.execute(f"DROP TABLE {groups}")


_PUT: dict[str, Callable[[Any, TableSpec, list[str]], None]] = {
    "append": _append,
    "upsert": _upsert,
    "aggregate": _aggregate,
}


def _same_key(spec: TableSpec) -> str:
    return " AND ".join(f"old.{quoted(name)} IS NOT DISTINCT FROM new.{quoted(name)}" for name in spec.key) or "TRUE"


def _types(cursor: Any, schema: pa.Schema) -> dict[str, str]:
    """The types that DuckDB itself gives to the columns, as it writes them."""
    cursor.register(INCOMING, schema.empty_table())
    try:
        return {line[0]: line[1] for line in cursor.execute(f"DESCRIBE SELECT * FROM {INCOMING}").fetchall()}
    finally:
        cursor.unregister(INCOMING)


def _entry(cursor: Any, flow: str, batch: int, table: str) -> Entry | None:
    sql = f"{SELECT} WHERE flow = ? AND batch = ? AND table_name = ?"
    # all of it, though it is one line at most: DuckDB takes no other statement before a result is read to its end
    found = cursor.execute(sql, [flow, batch, table]).fetchall()
    return Entry.from_values(found[0]) if found else None


def _first(reader: pa.RecordBatchReader, limit: int) -> Rows:
    batches, rows = [], 0
    with reader:
        for batch in reader:
            batches.append(batch)
            rows += batch.num_rows
            if rows > limit:
                break
    table = pa.Table.from_batches(batches, schema=reader.schema)
    return Rows(table.slice(0, limit), rows > limit)


def _line(problem: Exception) -> str:
    return " ".join(str(problem).split())[:500]
