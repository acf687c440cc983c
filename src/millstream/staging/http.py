"""Staging over HTTP, for clients without Arrow: records as JSON lines or CSV, health, metrics, the list of streams.

A post has the number of its first record in a header, so that it can be repeated: what is stored already is not stored
again. All answers to requests that fail are JSON with the name of the error, its text, and whether trying again helps.
"""

# annotations are not postponed here: FastAPI reads them where the functions are made
import asyncio
import socket
import threading
import time
import zlib
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import uvicorn
from fastapi import Body, Depends, FastAPI, Header, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ..errors import (
    AccessDenied,
    BlockRefused,
    BlockTooLarge,
    InputError,
    MillstreamError,
    NameRefused,
    PositionGone,
    RecordGap,
    SchemaRefused,
    StagingBusy,
    StagingFailed,
    StagingFull,
    StagingUnavailable,
    UnknownStream,
    UnsupportedType,
)
from . import columns
from .access import Access, Identity
from .block import Limits
from .names import check_name
from .records import parse_records
from .store import Store

_STATUS: dict[type[MillstreamError], int] = {
    BlockTooLarge: 413,
    RecordGap: 409,
    SchemaRefused: 422,
    UnsupportedType: 422,
    UnknownStream: 404,
    PositionGone: 410,
    NameRefused: 400,
    BlockRefused: 400,
    InputError: 400,
    StagingFull: 503,
    StagingBusy: 503,
    StagingUnavailable: 503,
    StagingFailed: 500,
}
_BODY_SECONDS = 30.0
_IN_FLIGHT = 256 << 20


class _Bodies:
    """Reads bodies inside bounds: of each as sent and expanded, of all together, and of time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = 0  # touched by the event loop alone

    async def read(self, request: Request) -> tuple[bytes, int]:
        """The body, expanded if it is gzip, and how many bytes to give back when it has been dealt with."""
        length = request.headers.get("content-length", "0")
        if length.isdigit():
            self._limits.check(payload=int(length), expanded=0)
        encoding = request.headers.get("content-encoding", "identity").lower()
        if encoding not in ("identity", "gzip"):
            raise InputError(f"content encoding {encoding[:40]!r} is not known; send gzip or none")
        taken = 0
        try:
            pieces = []
            async with asyncio.timeout(_BODY_SECONDS):
                async for piece in request.stream():
                    taken += self._take(len(piece))
                    self._limits.check(payload=taken, expanded=0)
                    pieces.append(piece)
            body = b"".join(pieces)
            if encoding == "gzip":
                body = await run_in_threadpool(self._expand, body)
                taken += self._take(len(body))
            return body, taken
        except TimeoutError:
            self.give(taken)
            raise StagingUnavailable(f"the body did not come within {_BODY_SECONDS:.0f} s") from None
        except BaseException:
            self.give(taken)
            raise

    def give(self, size: int) -> None:
        self._held -= size

    def _take(self, size: int) -> int:
        if self._held + size > _IN_FLIGHT:
            raise StagingBusy("staging holds as much as it may at once; try again soon")
        self._held += size
        return size

    def _expand(self, body: bytes) -> bytes:
        most = min(self._limits.expanded, max(self._limits.free, len(body) * self._limits.ratio))
        expander = zlib.decompressobj(wbits=31)
        try:
            expanded = expander.decompress(body, most + 1)
        except zlib.error as problem:
            raise BlockRefused(f"the body is no gzip: {problem}") from None
        if len(expanded) > most:
            raise BlockTooLarge(f"a body of {len(body):,} bytes that expands to more than {most:,}")
        if not expander.eof or expander.unused_data:
            raise BlockRefused("the gzip body is cut off, or something follows it")
        return expanded


def create_app(store: Store, access: Access) -> FastAPI:
    """The HTTP service over a store."""
    app = FastAPI(
        title="Millstream staging", description="Accepts records and keeps them until flows have loaded them."
    )
    bodies = _Bodies(store.limits)

    def identity(request: Request) -> Identity:
        return access.identify(request.headers.get("authorization"))

    def reader(known: Annotated[Identity, Depends(identity)]) -> Identity:
        known.check_all()
        return known

    Known = Annotated[Identity, Depends(identity)]
    Reader = Annotated[Identity, Depends(reader)]

    @app.exception_handler(MillstreamError)
    def failed(request: Request, problem: MillstreamError) -> JSONResponse:
        store.metrics.refused(problem)
        status = next((code for kind, code in _STATUS.items() if isinstance(problem, kind)), 500)
        headers = {"Retry-After": "2"} if problem.retryable else {}
        if isinstance(problem, AccessDenied):
            known = "authorization" in request.headers
            status, headers = (403 if known else 401), {"WWW-Authenticate": "Bearer"}
        plain = {name: value for name, value in problem.details.items() if isinstance(value, int | str | list)}
        content = {"error": type(problem).__name__, "message": problem.message, "retryable": problem.retryable, **plain}
        return JSONResponse(content, status_code=status, headers=headers)

    @app.exception_handler(RequestValidationError)
    def not_understood(request: Request, problem: RequestValidationError) -> JSONResponse:
        told = "; ".join(
            f"{'.'.join(str(part)[:40] for part in error['loc'])}: {error['msg'][:200]}"
            for error in problem.errors()[:5]
        )
        if any(error["loc"] == ("body",) for error in problem.errors()):
            told += "; is the header Content-Type: application/json there?"
        refused = InputError(f"the request is not as it should be: {told}")
        store.metrics.refused(refused)
        content = {"error": "InputError", "message": refused.message, "retryable": False}
        return JSONResponse(content, status_code=422)

    @app.exception_handler(HTTPException)
    def no_such_place(request: Request, problem: HTTPException) -> JSONResponse:
        content = {"error": "InputError", "message": f"{problem.detail}: see /docs", "retryable": False}
        return JSONResponse(content, status_code=problem.status_code, headers=problem.headers)

    @app.get("/health")
    def health() -> JSONResponse:
        """200 while blocks are accepted."""
        if store.failure is not None:
            return JSONResponse({"status": "failed", "message": store.failure.message}, status_code=503)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    def metrics(known: Reader) -> Response:
        """Counters for Prometheus."""
        return Response(store.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/streams")
    def streams(known: Reader) -> list[dict[str, Any]]:
        """All streams: columns, positions, bytes, and what flows have consumed."""
        return [stream.describe() for stream in store.streams()]

    @app.get("/streams/{stream}")
    def one_stream(stream: str, known: Reader) -> dict[str, Any]:
        """One stream."""
        return store.stream(stream).describe()

    @app.put("/streams/{stream}")
    def make_stream(stream: str, known: Known, wanted: Annotated[dict[str, str], Body()]) -> dict[str, Any]:
        """Make a stream, or widen it, from `{"column": "type", ...}`; repeating it changes nothing."""
        schema = pa.schema([(columns.check_column(name), columns.parse_type(kind)) for name, kind in wanted.items()])
        return store.open(stream, schema).describe()

    @app.delete("/streams/{stream}/flows/{flow}")
    def forget(stream: str, flow: str, known: Reader) -> dict[str, Any]:
        """Keep nothing for this flow any more."""
        store.stream(stream).forget(check_name(flow, what="flow"))
        return store.stream(stream).describe()

    @app.get("/streams/{stream}/sources/{source}")
    def next_record(stream: str, source: str, known: Known, incarnation: str = "http") -> dict[str, int]:
        """The number of the record that is due from a source."""
        name = known.check_source(source)
        return {"next": store.stream(stream).next(name, check_name(incarnation, what="incarnation"))}

    @app.post("/streams/{stream}/records")
    async def records(
        stream: str,
        request: Request,
        known: Known,
        x_source: Annotated[str, Header()],
        x_first: Annotated[int, Header(ge=0, lt=1 << 62)],
        x_incarnation: Annotated[str, Header()] = "http",
    ) -> dict[str, int]:
        """Store records, durably when this answers; `next` is the number of the record to send next."""
        came = time.perf_counter()
        source = known.check_source(x_source)
        incarnation = check_name(x_incarnation, what="incarnation")
        target = store.stream(stream)
        body, taken = await bodies.read(request)

        def append() -> dict[str, int]:
            batch = parse_records(body, request.headers.get("content-type", ""), target.columns)
            stored = target.put(source, incarnation=incarnation, first=x_first, batch=batch)
            target.log.sync(stored.mark)
            store.metrics.acknowledged.observe(time.perf_counter() - came)
            return {"next": stored.next, "stored": stored.rows, "repeated": batch.num_rows - stored.rows}

        try:
            return await run_in_threadpool(append)
        finally:
            bodies.give(taken)

    return app


class HttpServer:
    """The HTTP service on a port, in a thread of its own."""

    def __init__(
        self, store: Store, *, host: str, port: int, access: Access, certificate: tuple[Path, Path] | None = None
    ) -> None:
        family = socket.getaddrinfo(host, port)[0][0]
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError as problem:
            self._socket.close()
            raise InputError(f"cannot listen on {host}:{port}: {problem.strerror}; is it served already?") from None
        self.port: int = self._socket.getsockname()[1]
        tls = {"ssl_certfile": str(certificate[0]), "ssl_keyfile": str(certificate[1])} if certificate else {}
        config = uvicorn.Config(
            create_app(store, access),
            log_level="warning",
            access_log=False,
            limit_concurrency=256,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=3,
            server_header=False,
            lifespan="off",
            **tls,  # type: ignore[arg-type]
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="staging-http", daemon=True
        )
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.005)
        if not self._server.started:
            raise InputError(f"HTTP on {host}:{self.port} did not start; are certificate and key right?")

    def stop(self) -> None:
        """Let requests end and stop."""
        self._server.should_exit = True
        self._thread.join(timeout=5.0)
        self._socket.close()
