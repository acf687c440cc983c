"""A client of the warehouse: creates tables, sends parts, commits batches, asks. Needs no web framework.

What fails on the way (refused, reset, timed out, 429, 503) is tried again with growing waits; every request can be
repeated safely, because a part has its id and a batch is committed once.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from .. import errors
from ..errors import InputError, MillstreamError, PartDamaged, WarehouseUnavailable
from .receipt import Freshness, Receipt
from .retry import Backoff
from .spec import TableSpec, check_batch, check_label, check_table_name
from .wire import CHECKSUM, CONTENT_TYPE, ROWS, Data, encode

TOKEN = "MILLSTREAM_TOKEN"
PORT = 7421
_PART_BYTES = 16 << 20


def connect(
    url: str,
    *,
    token: str | None = None,
    timeout: float = 60.0,
    patience: float = 120.0,
    ca_file: str | None = None,
) -> Client:
    """A client of the warehouse at `url` (`http://host:7421`); nothing is sent yet.

    token: by default the environment variable MILLSTREAM_TOKEN.
    timeout: seconds after which a request without an answer is given up and tried again.
    patience: seconds to go on trying while the warehouse is away or overloaded, before `WarehouseUnavailable`.
    ca_file: certificates to trust with https, besides those of the system.
    """
    return Client(url, token=token, timeout=timeout, backoff=Backoff(patience=patience), ca_file=ca_file)


class Client:
    """A connection to the warehouse that heals itself; safe to use from several threads (each has its own socket)."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 60.0,
        backoff: Backoff | None = None,
        ca_file: str | None = None,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InputError(f"{url!r} is not the address of a warehouse; write http://host:{PORT}")
        try:
            port = parts.port or PORT
        except ValueError:
            raise InputError(f"{url!r} has no valid port") from None
        self.url = url.rstrip("/")
        self._host, self._port, self._base = parts.hostname, port, parts.path.rstrip("/")
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._token = token if token is not None else os.environ.get(TOKEN) or None
        self._timeout = timeout
        self._backoff = backoff or Backoff()
        self._local = threading.local()
        self._open: set[http.client.HTTPConnection] = set()
        self._lock = threading.Lock()
        self._specs: dict[str, TableSpec] = {}

    # -- tables --------------------------------------------------------------------------------------------------------

    def create(self, spec: TableSpec) -> TableSpec:
        """Make the table, or add the columns that it lacks; the table as it is now.

        Does nothing if it is there already. Raises `TableMismatch` with the differences if it is another one.
        """
        answer = self._json("PUT", f"/tables/{spec.name}", spec.to_json())
        created = TableSpec.from_json(answer)
        self._specs[spec.name] = created
        return created

    def tables(self) -> dict[str, TableSpec]:
        """All target tables by name."""
        answer = self._json("GET", "/tables")
        return {value["name"]: TableSpec.from_json(value) for value in answer["tables"]}

    # -- loading -------------------------------------------------------------------------------------------------------

    def part(self, table: str, *, flow: str, batch: int, part: str, data: Data) -> int:
        """Send rows under an id that no other part of the batch has; the number of rows. Nothing of it shows yet.

        A part that is sent again replaces the first one. Columns that the table has and the part lacks become NULL.
        """
        encoded = encode(data)
        headers = {"Content-Type": CONTENT_TYPE, CHECKSUM: encoded.checksum, ROWS: str(encoded.rows)}
        path = f"{_batch_path(table, flow, batch)}/parts/{check_label(part, 'part')}"
        self._request("PUT", path, body=memoryview(encoded.body), headers=headers)
        return encoded.rows

    def commit(
        self,
        table: str,
        *,
        flow: str,
        batch: int,
        parts: Sequence[str],
        wait: bool = True,
        counts: Mapping[str, int] | None = None,
        origin: str | None = None,
    ) -> Receipt:
        """Load the named parts as one batch, once for each (flow, batch, table); other parts of it are thrown away.

        wait: answer after the commit; False: as soon as the batch is durable (see `status`).
        counts: what the flow counted (`{"in": 100, "loaded": 97, "rejected": 3}`), kept in the ledger.
        origin: who numbers the batches, such as a streaming query's id. A batch that is there already from another
            origin is a `BatchConflict` instead of a duplicate.
        """
        body = {"parts": list(parts), "wait": wait, "counts": dict(counts or {}), "origin": origin}
        return Receipt.from_json(self._json("POST", f"{_batch_path(table, flow, batch)}/commit", body))

    def load(
        self,
        table: str,
        *,
        flow: str,
        batch: int,
        data: Data,
        wait: bool = True,
        counts: Mapping[str, int] | None = None,
        origin: str | None = None,
    ) -> Receipt:
        """Send rows as parts of a fitting size and commit them."""
        attempt = os.urandom(8).hex()
        sent = []
        for number, piece in enumerate(pieces(data, _PART_BYTES)):
            sent.append(f"{attempt}-{number}")
            self.part(table, flow=flow, batch=batch, part=sent[-1], data=piece)
        return self.commit(table, flow=flow, batch=batch, parts=sent, wait=wait, counts=counts, origin=origin)

    def status(self, table: str, *, flow: str, batch: int) -> Receipt | None:
        """What became of a batch; None if it was never committed."""
        answer = self._json("GET", _batch_path(table, flow, batch))
        return Receipt.from_json(answer) if answer.get("state") != "unknown" else None

    def wait(self, table: str, *, flow: str, batch: int, timeout: float = 60.0) -> Receipt:
        """The receipt of a batch once it is committed or has failed; `TimeoutError` if that takes too long."""
        until, pause = time.monotonic() + timeout, 0.01
        while True:
            receipt = self.status(table, flow=flow, batch=batch)
            if receipt is not None and receipt.state != "accepted":
                return receipt
            if time.monotonic() >= until:
                state = receipt.state if receipt else "unknown"
                raise TimeoutError(f"batch {batch} of flow {flow!r} is still {state} after {timeout:g} s")
            time.sleep(pause)
            pause = min(0.5, 2 * pause)

    # -- asking --------------------------------------------------------------------------------------------------------

    def query(self, sql: str, *, limit: int | None = None) -> pa.Table:
        """The result of a reading statement. `limit` takes the first rows; without it a result that is larger than the
        warehouse allows is `QueryRefused`."""
        body = json.dumps({"sql": sql, "limit": limit, "format": "arrow"}).encode()
        headers = {"Content-Type": "application/json"}
        answer, found = self._request("POST", "/query", body=body, headers=headers)
        if limit is None and found.get("millstream-truncated") == "true":
            raise errors.QueryRefused("the result has more rows than the warehouse sends; aggregate, or give limit=...")
        with pa.ipc.open_stream(answer) as reader:
            return reader.read_all()

    def freshness(
        self, flow: str | None = None, *, table: str | None = None, bound: float = 2.0, since: float | None = None
    ) -> list[Freshness]:
        """How fresh each table was kept by each flow; `since` looks at the batches of so many seconds only."""
        asked = {"flow": flow, "table": table, "bound": bound, "since": since}
        return [Freshness.from_json(value) for value in self._json("GET", _asked("/freshness", asked))["freshness"]]

    def ledger(self, flow: str | None = None, *, table: str | None = None, last: int = 1000) -> list[dict[str, Any]]:
        """The last batches that were committed, newest first, a line for each (flow, batch, table)."""
        return list(self._json("GET", _asked("/ledger", {"flow": flow, "table": table, "last": last}))["ledger"])

    def health(self) -> dict[str, Any]:
        """What the warehouse says about itself; an error if it is not well."""
        return self._json("GET", "/health")

    # -- connection ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all sockets; the client can still be used and opens new ones."""
        with self._lock:
            opened, self._open = self._open, set()
        for connection in opened:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _json(self, method: str, path: str, value: Any = None) -> dict[str, Any]:
        body = None if value is None else json.dumps(value).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        answer, _ = self._request(method, path, body=body, headers=headers)
        return dict(json.loads(answer))

    def _request(
        self, method: str, path: str, *, body: bytes | memoryview | None = None, headers: Mapping[str, str]
    ) -> tuple[bytes, dict[str, str]]:
        """The answer to a request, tried again as long as that can help and the patience lasts."""
        waits = self._backoff.waits()
        reused = True
        while True:
            problem: MillstreamError
            advised = 0.0
            try:
                return self._once(method, path, body, headers)
            except MillstreamError as error:
                if not isinstance(error, WarehouseUnavailable | PartDamaged):
                    raise
                problem, advised = error, float(error.details.get("retry_after", 0.0))
            except (OSError, http.client.HTTPException) as error:
                stale = reused and isinstance(error, ConnectionError | http.client.BadStatusLine)
                self._drop()
                if stale:  # a kept connection that the server has closed meanwhile: no reason to wait
                    reused = False
                    continue
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise InputError(f"the certificate of {self.url} cannot be trusted: {error}") from error
                problem = WarehouseUnavailable(f"no answer from the warehouse at {self.url}: {_reason(error)}")
            wait = next(waits, None)
            if wait is None:
                raise problem
            time.sleep(max(wait, min(advised, self._backoff.cap)))

    def _once(
        self, method: str, path: str, body: bytes | memoryview | None, headers: Mapping[str, str]
    ) -> tuple[bytes, dict[str, str]]:
        connection = self._connection()
        given = dict(headers)
        if self._token:
            given["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            given["Content-Length"] = str(len(body))
        try:
            connection.request(method, self._base + path, body=body, headers=given)
        except (BrokenPipeError, ConnectionResetError):
            # a server that refuses a large body answers before it has read it all
            if connection.sock is None:
                raise
        answer = connection.getresponse()
        content = answer.read()
        found = {name.lower(): value for name, value in answer.getheaders()}
        if answer.will_close:
            self._drop()
        if answer.status >= 300:
            raise _error(answer.status, content, found, self.url)
        return content, found

    def _connection(self) -> http.client.HTTPConnection:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            if self._tls is not None:
                connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=self._timeout, context=self._tls
                )
            else:
                connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
            self._local.connection = connection
            with self._lock:
                self._open.add(connection)
        return connection

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None
            with self._lock:
                self._open.discard(connection)


def pieces(data: Data, size: int) -> Iterable[pa.Table]:
    """Rows in pieces of about `size` bytes; at least one piece, which may be empty."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    elif not isinstance(data, pa.Table):
        data = pa.Table.from_batches(list(data))
    count = max(1, -(-data.nbytes // size))
    rows = max(1, -(-data.num_rows // count))
    for start in range(0, max(1, data.num_rows), rows):
        yield data.slice(start, rows)


def _batch_path(table: str, flow: str, batch: int) -> str:
    return f"/tables/{check_table_name(table)}/flows/{check_label(flow, 'flow')}/batches/{check_batch(batch)}"


def _asked(path: str, values: Mapping[str, Any]) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    return f"{path}?{urllib.parse.urlencode(given)}" if given else path


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _error(status: int, content: bytes, headers: Mapping[str, str], url: str) -> MillstreamError:
    """The error that an answer stands for: the one that the warehouse names, or the one that the status says."""
    try:
        told = json.loads(content)
        name, message, details = str(told["error"]), str(told["message"]), dict(told.get("details") or {})
    except (ValueError, KeyError, TypeError):
        name, message, details = "", f"{url} answered {status}: {content[:200].decode('utf-8', 'replace')}", {}
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, MillstreamError)):
        kind = WarehouseUnavailable if status in (408, 429, 502, 503, 504) else MillstreamError
    if headers.get("retry-after", "").isdigit():
        details["retry_after"] = int(headers["retry-after"])
    return kind(message, **details)
