"""The web services: one for each target table, and those that answer questions.

PUT  /tables/{table}                                       make or widen a table
PUT  /tables/{table}/flows/{flow}/batches/{batch}/parts/{part}   stage rows (Arrow IPC stream)
POST /tables/{table}/flows/{flow}/batches/{batch}/commit         load the batch, once
GET  /tables/{table}/flows/{flow}/batches/{batch}                what became of it
GET  /tables, /query, /freshness, /ledger, /health, /metrics, /openapi.json
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Annotated, Any

from fastapi import FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from .. import __version__
from ..errors import (
    AccessDenied,
    BatchConflict,
    InputError,
    MillstreamError,
    PartDamaged,
    PartsMissing,
    TableMismatch,
    UnknownTable,
    WarehouseUnavailable,
)
from .answers import MOST_TEXT_ROWS, Format, answer_rows
from .core import Warehouse, batch_of, receipt
from .description import describe
from .guard import Guard
from .receipt import Receipt
from .spec import TableSpec
from .wire import CHECKSUM, CONTENT_TYPE, ROWS

log = logging.getLogger(__name__)

_STATUS: tuple[tuple[type[MillstreamError], int], ...] = (
    (AccessDenied, 403),
    (UnknownTable, 404),
    (TableMismatch, 409),
    (BatchConflict, 409),
    (PartsMissing, 409),
    (PartDamaged, 422),
    (WarehouseUnavailable, 503),
)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TableBody(_Body):
    """A target table: see `TableSpec`. Columns are pairs of name and type (`int64`, `string`, `decimal(10,2)`, ...)."""

    name: str
    columns: list[list[str]] = Field(examples=[[["order_id", "int64"], ["amount", "float64"]]])
    mode: str = "append"
    key: list[str] = []
    aggregates: dict[str, str] = {}
    keep_system: bool = False


class CommitBody(_Body):
    """Which parts make the batch, whether to wait for the commit, and what the flow has counted."""

    parts: list[str]
    wait: bool = True
    counts: dict[str, int] = {}
    origin: str | None = None


class QueryBody(_Body):
    """A single SELECT."""

    sql: str
    limit: int | None = None
    format: Format = "json"


def build(warehouse: Warehouse, *, token: str | None, reader_token: str | None) -> Guard:
    """The application that serves a warehouse."""
    app = FastAPI(title="Millstream warehouse", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(MillstreamError, _refuse)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _refuse_request)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _refuse_http)  # type: ignore[arg-type]
    _serve_tables(app, warehouse)
    _serve_batches(app, warehouse)
    _serve_questions(app, warehouse)
    return Guard(app, warehouse.settings, warehouse.metrics, token=token, reader_token=reader_token)


def _serve_tables(app: FastAPI, warehouse: Warehouse) -> None:
    @app.get("/tables", summary="All target tables")
    def tables() -> dict[str, Any]:
        return {"tables": [spec.to_json() for _, spec in sorted(warehouse.tables().items())]}

    @app.get("/tables/{table}", summary="A target table")
    def table(table: str) -> dict[str, Any]:
        return warehouse.spec(table).to_json()

    @app.put("/tables/{table}", summary="Make a target table, or add columns to it")
    def create(table: str, body: TableBody) -> dict[str, Any]:
        if body.name != table:
            raise InputError(f"the body describes table {body.name[:63]!r}, the address says {table[:63]!r}")
        return warehouse.create(TableSpec.from_json(body.model_dump())).to_json()

    @app.get("/openapi.json", include_in_schema=False)
    def openapi() -> dict[str, Any]:
        return describe(app.openapi(), warehouse.tables())

    @app.get("/tables/{table}/openapi.json", summary="The description of this table's service alone")
    def openapi_of(table: str) -> dict[str, Any]:
        return describe(app.openapi(), {table: warehouse.spec(table)}, alone=True)


def _serve_batches(app: FastAPI, warehouse: Warehouse) -> None:
    place = "/tables/{table}/flows/{flow}/batches/{batch}"
    arrow = {
        "requestBody": {"required": True, "content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
    }

    @app.put(
        place + "/parts/{part}", summary="Stage rows; nothing of them shows before the commit", openapi_extra=arrow
    )
    async def put_part(
        table: str,
        flow: str,
        batch: int,
        part: str,
        request: Request,
        checksum: Annotated[str, Header(alias=CHECKSUM, description="crc32: and eight hexadecimal digits")],
        rows: Annotated[int, Header(alias=ROWS, ge=0)],
    ) -> dict[str, Any]:
        body = await request.body()
        stored = await run_in_threadpool(
            warehouse.put_part, batch_of(table, flow, batch), part, body, declared=checksum, rows=rows
        )
        return {"rows": rows, "committed": not stored}

    @app.post(
        place + "/commit", summary="Load the parts as one batch, once", responses={202: {"description": "Accepted"}}
    )
    async def commit(table: str, flow: str, batch: int, body: CommitBody) -> JSONResponse:
        result = await run_in_threadpool(
            warehouse.commit,
            batch_of(table, flow, batch),
            body.parts,
            wait=body.wait,
            counts=body.counts,
            origin=body.origin,
        )
        if not isinstance(result, Receipt):
            # a client that goes away changes nothing: the commit goes on, and a repeat is told so
            entry, duplicate = await asyncio.shield(asyncio.wrap_future(result))
            result = receipt(entry, duplicate=duplicate)
        return JSONResponse(result.to_json(), status_code=202 if result.state == "accepted" else 200)

    @app.get(place, summary="What became of a batch")
    def status(table: str, flow: str, batch: int) -> dict[str, Any]:
        found = warehouse.status(batch_of(table, flow, batch))
        return found.to_json() if found else {"state": "unknown", "flow": flow, "batch": batch, "table": table}


def _serve_questions(app: FastAPI, warehouse: Warehouse) -> None:
    async def ask(sql: str, limit: int | None, format_: Format) -> Response:
        most = limit if format_ == "arrow" else min(MOST_TEXT_ROWS, MOST_TEXT_ROWS if limit is None else limit)
        return await run_in_threadpool(lambda: answer_rows(warehouse.query(sql, most), format_))

    @app.get("/query", summary="The result of a SELECT as JSON, CSV or Arrow", response_class=Response)
    async def query(sql: str, limit: int | None = None, format: Format = "json") -> Response:  # noqa: A002
        return await ask(sql, limit, format)

    @app.post("/query", summary="The same for long statements", response_class=Response)
    async def query_by_post(body: QueryBody) -> Response:
        return await ask(body.sql, body.limit, body.format)

    @app.get("/freshness", summary="Seconds from capture to commit for each flow and table")
    def freshness(
        flow: str | None = None,
        table: str | None = None,
        bound: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 2.0,
        since: Annotated[float | None, Query(ge=0, le=1e10, allow_inf_nan=False)] = None,
    ) -> dict[str, Any]:
        found = warehouse.freshness(flow=flow, table=table, bound=bound, since=since)
        return {"freshness": [one.to_json() for one in found]}

    @app.get("/ledger", summary="The last batches, newest first")
    def ledger(
        flow: str | None = None, table: str | None = None, last: Annotated[int, Query(ge=1, le=100_000)] = 1000
    ) -> dict[str, Any]:
        return {"ledger": [entry.to_json() for entry in warehouse.ledger(flow=flow, table=table, last=last)]}

    @app.get("/health", summary="Whether the warehouse and its database answer")
    def health() -> dict[str, Any]:
        return warehouse.health()

    @app.get("/metrics", summary="Figures for Prometheus", response_class=PlainTextResponse)
    def metrics() -> Response:
        return Response(warehouse.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


class _Teller:
    """Logs why clients have to wait, one line in ten seconds at most: they try again and again."""

    QUIET = 10.0

    def __init__(self) -> None:
        self._last = -self.QUIET

    def __call__(self, message: str) -> None:
        now = time.monotonic()
        if now - self._last >= self.QUIET:
            self._last = now
            log.warning("clients have to wait: %s", message)


_tell = _Teller()


def _refuse(request: Request, problem: MillstreamError) -> JSONResponse:
    status = problem.details.get("status") or next((code for kind, code in _STATUS if isinstance(problem, kind)), 400)
    details = {name: value for name, value in problem.details.items() if name not in ("status", "retry_after")}
    headers = {}
    if status in (429, 503):
        _tell(problem.message)
        headers["Retry-After"] = str(problem.details.get("retry_after", 1))
    body = {"error": type(problem).__name__, "message": problem.message, "details": details}
    return JSONResponse(body, status_code=int(status), headers=headers)


def _refuse_request(request: Request, problem: RequestValidationError) -> JSONResponse:
    told = "; ".join(
        f"{'.'.join(str(part)[:40] for part in error['loc'])}: {error['msg'][:200]}" for error in problem.errors()[:5]
    )
    if any(error["loc"] == ("body",) for error in problem.errors()):
        told += "; is the header Content-Type: application/json there?"
    return _refuse(request, InputError(f"the request is not as it should be: {told}"))


def _refuse_http(request: Request, problem: HTTPException) -> JSONResponse:
    body = {"error": "InputError", "message": str(problem.detail), "details": {}}
    return JSONResponse(body, status_code=problem.status_code, headers=problem.headers)
