"""The server: a warehouse behind HTTP, embedded in any process or run by `millstream serve`."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import InputError
from .core import Settings, Warehouse
from .service import build

_HEADER_SECONDS = 10.0
_KEEP_ALIVE = 75


class Server:
    """A warehouse that answers at `url` until it is closed.

    database: a DuckDB file, or `postgresql://user@host/database`.
    port: 0 takes a free one.
    token: whoever writes must know it; reader_token: a second one that may only read. Without both, everybody may
        everything, which is allowed on this machine's own addresses only.
    parts: where parts are kept until their commit (default: beside the DuckDB file, or ./millstream-parts).
    reader: PostgreSQL address with which queries are made (default: a role that is made for it).
    certificate, key: PEM files for TLS; needed on other than this machine's own addresses, unless `insecure` says that
        something in front of the server does it.
    """

    def __init__(
        self,
        database: str | Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        reader_token: str | None = None,
        parts: str | Path | None = None,
        reader: str | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        insecure: bool = False,
        settings: Settings | None = None,
    ) -> None:
        if not _is_loopback(host):
            if not token:
                raise InputError(f"listening on {host} needs a token: set MILLSTREAM_TOKEN or give --token")
            if certificate is None and not insecure:
                raise InputError(
                    f"listening on {host} needs TLS: give --certificate and --key, or --insecure if something in "
                    "front of the server does it"
                )
        self._socket = _listen(host, port)
        try:
            self.warehouse = Warehouse(database, parts=Path(parts) if parts else None, settings=settings, reader=reader)
        except BaseException:
            self._socket.close()
            raise
        config = uvicorn.Config(
            build(self.warehouse, token=token, reader_token=reader_token),
            http=_Connection,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=128,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=10,
            # the guard answers politely before this; it is the last line of defence against open connections
            limit_concurrency=4 * self.warehouse.settings.requests,
            ssl_certfile=str(certificate) if certificate else None,
            ssl_keyfile=str(key) if key else None,
        )
        try:
            config.load()
        except OSError as problem:
            self._socket.close()
            self.warehouse.close()
            raise InputError(f"cannot use the certificate {certificate} with the key {key}: {problem}") from problem
        self._server = uvicorn.Server(config)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if certificate else 'http'}://{shown}:{self.port}"
        self._thread = threading.Thread(target=self._run, name="millstream-warehouse", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def close(self) -> None:
        """Answer what is being asked, finish the commit that runs, and stop."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        self.warehouse.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _Connection(H11Protocol):
    """A connection that must send the head of its request in time, so that slow clients cannot hold places."""

    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the clock while the head of a request is due, stop it when it is there."""
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._due is None:
            self._due = self.loop.call_later(_HEADER_SECONDS, self._give_up)

    def _forget(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _give_up(self) -> None:
        self._due = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )[0]
        # with the protocol named, or asyncio leaves Nagle's algorithm on and each answer waits 40 ms
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
        return listener
    except (OSError, OverflowError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InputError(
            f"cannot listen on {host}:{port}: {reason}; give another --port or stop what uses it"
        ) from problem
