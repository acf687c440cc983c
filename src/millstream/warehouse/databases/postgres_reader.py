"""Queries of readers on PostgreSQL: one statement, in a read-only transaction, by a role that may only read.

A role that was merely switched to (SET ROLE) can be switched back by the query itself, so readers log in as a role of
their own: the one whose address was given, or `millstream_reader`, which is made if our own role may do that.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import secrets
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from ...errors import QueryRefused, WarehouseUnavailable
from ..ledger import BALANCE, LEDGER, SCHEMA, TABLES
from .base import Limits, Rows, quoted

ROLE = "millstream_reader"

# types that psycopg gives, by oid, as Arrow has them; all others go as text
_TYPES: dict[int, pa.DataType] = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    25: pa.string(),
    700: pa.float32(),
    701: pa.float64(),
    1043: pa.string(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", tz="UTC"),
}
_NUMERIC = 1700


class Reader:
    """Runs the queries; `grant` lets readers see a table."""

    def __init__(self, dsn: str, *, limits: Limits, reader: str | None) -> None:
        self._limits = limits
        self._refusal = ""
        self._dsn = reader or self._own_role(dsn)
        self._role = _user(self._dsn) if self._dsn else None
        if self._role:
            with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as connection, connection.transaction():
                connection.execute(f"GRANT USAGE ON SCHEMA {SCHEMA} TO {quoted(self._role)}")
                connection.execute(f"GRANT SELECT ON {TABLES}, {LEDGER}, {BALANCE} TO {quoted(self._role)}")
                for (name,) in connection.execute(f"SELECT name FROM {TABLES}").fetchall():
                    there = connection.execute("SELECT to_regclass(%s)", [f"public.{quoted(name)}"]).fetchone()
                    if there and there[0]:
                        self.grant(connection, f"public.{quoted(name)}")

    def _own_role(self, dsn: str) -> str:
        """The address of `millstream_reader` with a new password; empty, with the reason, if there can be none."""
        password = secrets.token_hex(24)
        try:
            with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as connection, connection.transaction():
                known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE]).fetchone()
                verb = "ALTER" if known else "CREATE"
                connection.execute(
                    f"{verb} ROLE {ROLE} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD '{password}'"
                )
            reader = make_conninfo(dsn, user=ROLE, password=password)
            psycopg.connect(reader, connect_timeout=10).close()
            return reader
        except psycopg.Error as problem:
            self._refusal = (
                f"queries need a role that may only read, and {ROLE} could not be made or cannot log in "
                f"({' '.join(str(problem).split())[:200]}); start the warehouse with --reader postgresql://..."
            )
            return ""

    def grant(self, connection: Any, target: str) -> None:
        """Let readers see a table; `target` is quoted."""
        if self._role:
            connection.execute(f"GRANT SELECT ON {target} TO {quoted(self._role)}")

    def query(self, sql: str, limit: int) -> Rows:
        """The first rows of a reading statement."""
        if not self._dsn:
            raise QueryRefused(self._refusal, status=403)
        milliseconds = int(self._limits.seconds * 1000)
        options = f"-c default_transaction_read_only=on -c statement_timeout={milliseconds} -c timezone=UTC"
        try:
            connection = psycopg.connect(
                self._dsn, connect_timeout=10, options=options, application_name="millstream query"
            )
        except psycopg.OperationalError as problem:
            raise WarehouseUnavailable(f"PostgreSQL is away: {_line(problem)}") from problem
        with contextlib.closing(connection):
            try:
                # a cursor on the server takes one reading statement and nothing else
                with connection.cursor(name="millstream") as cursor:
                    cursor.execute(sql.strip().rstrip(";"))
                    found = cursor.fetchmany(limit + 1)
                    return Rows(_table(cursor.description or [], found[:limit]), len(found) > limit)
            except pg.QueryCanceled as problem:
                raise QueryRefused(f"the query took more than {self._limits.seconds:g} s") from problem
            except psycopg.OperationalError as problem:
                if connection.closed:
                    raise WarehouseUnavailable(f"PostgreSQL went away: {_line(problem)}") from problem
                raise QueryRefused(f"the query does not work: {_line(problem)}") from problem
            except (psycopg.Error, pa.ArrowException, ValueError) as problem:
                raise QueryRefused(f"the query does not work: {_line(problem)}") from problem


def _user(dsn: str) -> str:
    found = psycopg.conninfo.conninfo_to_dict(dsn).get("user")
    if not found:
        raise QueryRefused("the address for readers must name its user, as in postgresql://reader@host/database")
    return str(found)


def _table(description: Any, rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = []
    for number, entry in enumerate(description):
        values = [row[number] for row in rows]
        if entry.type_code == _NUMERIC:
            kind = None if any(value is not None for value in values) else pa.decimal128(38, 0)
            if any(isinstance(value, decimal.Decimal) and not value.is_finite() for value in values):
                values, kind = [None if value is None else float(value) for value in values], pa.float64()
        else:
            kind = _TYPES.get(entry.type_code, pa.string())
            if entry.type_code not in _TYPES:
                values = [_text(value) for value in values]
        columns.append(pa.array(values, kind))
    return pa.Table.from_arrays(columns, names=[entry.name for entry in description])


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        return json.dumps(value, default=str)
    return value.isoformat() if isinstance(value, datetime.time) else str(value)


def _line(problem: Exception) -> str:
    return " ".join(str(problem).split())[:500]
