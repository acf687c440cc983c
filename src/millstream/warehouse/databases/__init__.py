"""The databases that a warehouse can be: DuckDB, a file; and PostgreSQL."""

from __future__ import annotations

from pathlib import Path

from .base import Database, Limits, Rows

__all__ = ["Database", "Limits", "Rows", "open_database"]


def open_database(target: str | Path, *, limits: Limits | None = None, reader: str | None = None) -> Database:
    """Open a DuckDB file (made if it is not there), or the PostgreSQL database of a `postgresql://` address.

    reader: for PostgreSQL, the address with which queries of readers connect; by default a role of their own is made.
    """
    if str(target).startswith(("postgresql://", "postgres://")):
        from .postgres import Postgres

        return Postgres(str(target), limits=limits or Limits(), reader=reader)
    from .duck import DuckDB

    return DuckDB(Path(target), limits=limits or Limits())
