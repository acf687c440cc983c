"""The warehouse without its web: tables, parts, commits and questions, over one database and one directory of parts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import InputError, PartsMissing, TableMismatch, UnknownTable
from .databases import Database, Rows, open_database
from .databases.base import Limits as QueryLimits
from .freshness import QUANTILES, quantile, report
from .ledger import Entry, check_counts
from .loader import Loader, check_origin
from .metrics import Metrics
from .parts import Batch, Intent, Parts
from .receipt import Freshness, Receipt
from .spec import TableSpec, check_batch, check_label, check_table_name
from .wire import Limits, decode

log = logging.getLogger(__name__)

_SWEEP_EVERY = 60.0
_REPORTED = 200_000  # batches: two days of one each second


@dataclass(frozen=True)
class Settings:
    """What a warehouse may take.

    part: limits of one part. query: limits of one query. body_bytes: request bodies in memory at the same time.
    requests: requests at the same time. waiting: commits in the queue. parts_bytes: parts on disk that wait for their
    commit. orphan_seconds: a batch without a commit is swept after its last part is this old. body_seconds: a client
    that takes longer to send its request is given up.
    """

    part: Limits = field(default_factory=Limits)
    query: QueryLimits = field(default_factory=QueryLimits)
    body_bytes: int = 512 << 20
    requests: int = 64
    waiting: int = 256
    parts_bytes: int = 16 << 30
    orphan_seconds: float = 6 * 3600.0
    body_seconds: float = 60.0


class Warehouse:
    """Everything that the services do. Safe for several threads."""

    def __init__(
        self,
        database: str | Path,
        *,
        parts: Path | None = None,
        settings: Settings | None = None,
        reader: str | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.metrics = Metrics()
        self.database: Database = open_database(database, limits=self.settings.query, reader=reader)
        try:
            self._parts = Parts(parts or default_parts(database), limit=self.settings.parts_bytes)
            self._specs = self.database.tables()
        except BaseException:
            self.database.close()
            raise
        self._loader = Loader(
            self.database,
            self._parts,
            spec_of=self.spec,
            most_waiting=self.settings.waiting,
            committed=self.metrics.committed,
        )
        self.metrics.watch(
            staged_bytes=lambda: self._parts.bytes, waiting_commits=lambda: float(len(self._loader.waiting))
        )
        self._over = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="millstream-sweep", daemon=True)
        self._sweeper.start()

    # -- tables --------------------------------------------------------------------------------------------------------

    def tables(self) -> dict[str, TableSpec]:
        """The target tables by name."""
        return dict(self._specs)

    def spec(self, table: str) -> TableSpec:
        """A target table; `UnknownTable` if it is not there."""
        found = self._specs.get(check_table_name(table))
        if found is None:
            self._specs = self.database.tables()  # another server may have made it
            found = self._specs.get(table)
        if found is None:
            known = ", ".join(sorted(self._specs)) or "none"
            raise UnknownTable(f"there is no table {table!r}; there are: {known}")
        return found

    def create(self, spec: TableSpec) -> TableSpec:
        """Make a table, or widen it."""
        for known in self._specs:
            if known != spec.name and known.lower() == spec.name.lower():
                raise TableMismatch(f"there is a table {known!r}; names differ by more than case", differences=["name"])
        created = self.database.create(spec)
        self._specs = {**self._specs, spec.name: created}
        return created

    # -- loading -------------------------------------------------------------------------------------------------------

    def put_part(self, batch: Batch, part: str, body: bytes, *, declared: str, rows: int) -> bool:
        """Check and store a part; False if its batch is committed already, and the part not needed."""
        check_label(part, "part")
        spec = self.spec(batch.table)
        buffer = pa.py_buffer(body)
        if not self._fits(spec, buffer, declared, rows):
            # the table may have been widened by another server
            self._specs = self.database.tables()
            decode(buffer, declared=declared, rows=rows, spec=self.spec(batch.table), limits=self.settings.part)
        if self._loader.known(batch) is not None:
            return False
        self._parts.put(batch, part, body, rows=rows)
        return True

    def _fits(self, spec: TableSpec, body: pa.Buffer, declared: str, rows: int) -> bool:
        try:
            decode(body, declared=declared, rows=rows, spec=spec, limits=self.settings.part)
        except TableMismatch:
            return False
        return True

    def commit(
        self,
        batch: Batch,
        parts: Sequence[str],
        *,
        wait: bool,
        counts: Mapping[str, Any] | None = None,
        origin: str | None = None,
    ) -> Receipt | Future[tuple[Entry, bool]]:
        """Commit a batch: its receipt, or with `wait` a future of its entry if it is not there yet."""
        for part in parts:
            check_label(part, "part")
        if len(set(parts)) != len(parts):
            raise InputError("a commit names a part twice")
        if origin is not None:
            check_label(origin, "origin")
        intent = Intent(batch.flow, batch.batch, batch.table, tuple(parts), check_counts(counts or {}), origin)
        self.spec(batch.table)
        found = self._loader.committed(batch)
        if found is not None:
            check_origin(found, intent)
            self._parts.drop(batch)
            self.metrics.duplicate(batch.table)
            return receipt(found, duplicate=True)
        if batch not in self._loader.waiting and (missing := self._parts.missing(batch, parts)):
            raise PartsMissing(
                f"{batch}: {len(missing)} of {len(parts)} parts are not here, such as {missing[0]!r}; send them again",
                parts=missing[:100],
            )
        result = self._loader.commit(intent, durable=not wait)
        return result if wait else Receipt(batch.flow, batch.batch, batch.table, state="accepted", counts=intent.counts)

    def status(self, batch: Batch) -> Receipt | None:
        """What became of a batch."""
        self.spec(batch.table)
        empty = Receipt(batch.flow, batch.batch, batch.table)
        if batch in self._loader.waiting:
            return replace(empty, state="accepted")
        entry = self._loader.committed(batch)
        if entry is not None:
            return receipt(entry)
        reason = self._loader.failed.get(batch)
        return replace(empty, state="failed", reason=reason) if reason is not None else None

    # -- asking --------------------------------------------------------------------------------------------------------

    def query(self, sql: str, limit: int | None) -> Rows:
        """The result of a reading statement, up to the limit that is asked for and the one that is set."""
        most = self.settings.query.rows
        if limit is not None and limit < 0:
            raise InputError("limit must be 0 or more")
        return self.database.query(sql, most if limit is None else min(limit, most))

    def freshness(
        self, *, flow: str | None = None, table: str | None = None, bound: float = 2.0, since: float | None = None
    ) -> list[Freshness]:
        """How fresh each table was kept by each flow, over the last batches."""
        return report(self.database.ledger(flow=flow, table=table, since=since, last=_REPORTED), bound)

    def ledger(self, *, flow: str | None = None, table: str | None = None, last: int = 1000) -> list[Entry]:
        """The last entries, newest first."""
        return self.database.ledger(flow=flow, table=table, last=last)

    def health(self) -> dict[str, Any]:
        """That the database answers, and what waits."""
        self.database.check()
        return {
            "status": "ok",
            "tables": len(self._specs),
            "waiting": len(self._loader.waiting),
            "failed": len(self._loader.failed),
            "staged_bytes": self._parts.bytes,
        }

    def close(self) -> None:
        """Finish the commit that runs and let everything go."""
        self._over.set()
        self._loader.close()
        self._sweeper.join()
        self.database.close()
        self._parts.close()

    def sweep(self) -> int:
        """Remove parts whose batch nobody commits; how many batches."""
        keep = [*self._loader.waiting, *self._loader.failed]
        return self._parts.sweep(self.settings.orphan_seconds, keep)

    def _sweep(self) -> None:
        while True:
            try:
                swept = self.sweep()
                if swept:
                    log.info("swept the parts of %d batches that were never committed", swept)
            except OSError as problem:
                log.warning("cannot sweep parts: %s", problem)
            if self._over.wait(_SWEEP_EVERY):
                return


def batch_of(table: str, flow: str, batch: int) -> Batch:
    """A batch by its checked names."""
    return Batch(check_label(flow, "flow"), check_batch(batch), check_table_name(table))


def receipt(entry: Entry, *, duplicate: bool = False) -> Receipt:
    """What the ledger says of a batch."""
    p50, p95, p99 = (quantile(entry.lags, share) for share in QUANTILES)
    return Receipt(
        flow=entry.flow,
        batch=entry.batch,
        table=entry.table,
        rows=entry.rows,
        duplicate=duplicate,
        committed_at=entry.committed_at,
        seconds=entry.seconds,
        p50=p50,
        p95=p95,
        p99=p99,
        counts=dict(entry.counts),
    )


def default_parts(database: str | Path) -> Path:
    """Where parts are kept: beside a DuckDB file; for PostgreSQL in the working directory."""
    text = str(database)
    return Path("millstream-parts") if "://" in text else Path(f"{text}.parts")
