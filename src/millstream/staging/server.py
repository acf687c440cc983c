"""The staging server: a directory, Flight on one port, HTTP on another. `millstream stage` runs the same."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import InputError, MillstreamError, StagingFailed
from .access import Access, is_loopback
from .block import Limits
from .flight import FlightServer
from .store import Store
from .stream import Retention

if TYPE_CHECKING:
    from .http import HttpServer


class Server:
    """A staging area that accepts connections while it is entered:

        with Server("/data/staging") as server:
            server.url, server.http_url

    Port 0 takes any free one; `http_port=None` serves no HTTP. `token` is that of everybody, `tokens` one for each
    source by name, good for sending as this source alone. Beyond loopback a token and TLS (`certificate` and `key`,
    PEM files) are asked for, unless `insecure` says that the network is trusted.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        http_port: int | None = 0,
        token: str | None = None,
        tokens: Mapping[str, str] | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        insecure: bool = False,
        limits: Limits | None = None,
        retention: Retention | None = None,
        most_sessions: int = 256,
    ) -> None:
        self._directory, self._host = Path(directory), host
        self._port, self._http_port = port, http_port
        self._access = Access(token, dict(tokens or {}))
        self._certificate = _certificate(certificate, key)
        self._limits, self._retention, self._most_sessions = limits, retention, most_sessions
        self._over = threading.Event()
        self._flight: FlightServer | None = None
        self._http: HttpServer | None = None
        self._store: Store | None = None
        self._stuck: list[FlightServer | None] = []
        if not insecure and not is_loopback(host):
            if self._access.open:
                raise InputError(
                    f"{host} can be reached from outside: set a token (MILLSTREAM_TOKEN), or say --insecure"
                )
            if self._certificate is None:
                raise InputError(
                    f"{host} can be reached from outside: give a TLS certificate and key, or say --insecure"
                )

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def store(self) -> Store:
        """The streams."""
        if self._store is None:
            raise MillstreamError("the staging server is not started")
        return self._store

    @property
    def url(self) -> str:
        """Where clients connect; the port is known once the server has started."""
        return f"grpc{'+tls' if self._certificate else ''}://{_bracketed(self._host)}:{self._port}"

    @property
    def http_url(self) -> str:
        """Where clients without Arrow, browsers and Prometheus connect."""
        if self._http_port is None:
            raise MillstreamError("this staging server does not serve HTTP")
        return f"http{'s' if self._certificate else ''}://{_bracketed(self._host)}:{self._http_port}"

    @property
    def failure(self) -> StagingFailed | None:
        """Why the server has stopped to accept blocks, if it has."""
        return self._store.failure if self._store is not None else None

    def start(self) -> None:
        """Recover the streams, then listen."""
        for port in {self._port, self._http_port} - {0, None}:
            check_free(self._host, port)
        self._over.clear()
        self._store = Store(self._directory, limits=self._limits, retention=self._retention)
        self._store.metrics.watch(self._store.streams)
        self._store.on_failure = lambda _: self._over.set()
        try:
            scheme = "grpc+tls" if self._certificate else "grpc"
            content = (
                (self._certificate[0].read_bytes(), self._certificate[1].read_bytes()) if self._certificate else None
            )
            try:
                self._flight = FlightServer(
                    self._store,
                    f"{scheme}://{_bracketed(self._host)}:{self._port}",
                    access=self._access,
                    most_sessions=self._most_sessions,
                    certificate=content,
                )
            except pa.ArrowException as problem:
                raise InputError(f"cannot listen on {self._host}:{self._port}: {problem}") from None
            self._port = self._flight.port
            if self._http_port is not None:
                from .http import HttpServer

                self._http = HttpServer(
                    self._store,
                    host=self._host,
                    port=self._http_port,
                    access=self._access,
                    certificate=self._certificate,
                )
                self._http_port = self._http.port
        except BaseException:
            self.stop()
            raise

    def stop(self) -> bool:
        """End the sessions, make everything durable, let the directory go; whether all clients have let go too.

        If not, a thread of this process still waits for them; nothing of what they send is accepted.
        """
        http, self._http = self._http, None
        served, self._flight = self._flight, None
        store, self._store = self._store, None
        if http is not None:
            http.stop()
        ended = served is None or served.stop()
        if not ended:
            self._stuck.append(served)  # to let it go would wait for its clients
        if store is not None:
            store.close()
        self._over.set()
        return ended

    def wait(self, timeout: float | None = None) -> bool:
        """Return when the server is over: stopped, or failed (which `failure` tells); whether it is."""
        return self._over.wait(timeout)

    def end(self) -> None:
        """Make `wait` return; for handlers of signals."""
        self._over.set()


def check_free(host: str, port: int | None) -> None:
    """Refuse a port that somebody listens on: gRPC would share it without a word."""
    family = socket.getaddrinfo(host, port)[0][0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as problem:
            raise InputError(f"cannot listen on {host}:{port}: {problem.strerror}; is it served already?") from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _certificate(certificate: str | Path | None, key: str | Path | None) -> tuple[Path, Path] | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputError("TLS needs both a certificate and its key")
    for path in (certificate, key):
        if not Path(path).is_file():
            raise InputError(f"there is no file {path}")
    return Path(certificate), Path(key)
