"""What stands before the services: tokens, sizes, numbers and times, checked before anything is read or done."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException

from ..units import format_bytes
from .metrics import Metrics

if TYPE_CHECKING:
    from .core import Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_JSON_BYTES = 8 << 20
_DRAIN_BYTES = 128 << 20
_DRAIN_SECONDS = 1.0
_OPEN = ("/health",)
_READING = ("/query", "/tables", "/freshness", "/ledger", "/metrics", "/openapi.json")


class Guard:
    """An ASGI application around the services.

    A request is refused with 401 (no or a wrong token), 403 (the reader's token where something would change), 413 and
    415 (a body that is too large or compressed), 408 (a body that comes too slowly), and with 503 and Retry-After when
    more requests or bytes are on their way than the settings allow.
    """

    def __init__(
        self, app: Any, settings: Settings, metrics: Metrics, *, token: str | None, reader_token: str | None
    ) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._token, self._reader_token = _bytes(token), _bytes(reader_token)
        self._requests = 0
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in ("GET", "PUT", "POST") else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.answered(method, message["status"])
            await send(message)

        headers = dict(scope["headers"])
        refusal = self._refusal(scope["method"], scope["path"], headers)
        limit = self._limit(scope["path"])
        expected = _length(headers, limit)
        if refusal is None and self._bytes + expected > self._settings.body_bytes:
            refusal = 503, "WarehouseUnavailable", "too many bytes are on their way; try again later"
        if refusal is not None:
            await _answer(receive, counted, *refusal)
            return
        self._requests += 1
        self._bytes += expected
        try:
            await self._app(scope, _limited(receive, limit, self._settings.body_seconds), counted)
        finally:
            self._requests -= 1
            self._bytes -= expected

    def _refusal(self, method: str, path: str, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        if path not in _OPEN and (denied := self._denied(method, path, headers)):
            return denied
        kind = "PartRefused" if "/parts/" in path else "InputError"
        if headers.get(b"content-encoding", b"identity") != b"identity":
            return 415, kind, "a body with a Content-Encoding is not taken; send it as it is"
        limit = self._limit(path)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > limit:
            return 413, kind, f"a body of {length.decode('latin-1')[:20]} bytes is above {format_bytes(limit)}"
        if self._requests >= self._settings.requests:
            return 503, "WarehouseUnavailable", "too many requests at the same time; try again later"
        return None

    def _denied(self, method: str, path: str, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        if self._token is None and self._reader_token is None:
            return None
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        # both comparisons are always made and take the same time whatever is given
        whole = hmac.compare_digest(given, self._token or b"")
        reads = hmac.compare_digest(given, self._reader_token or b"")
        if kind.lower() == b"bearer" and given:
            if whole and self._token is not None:
                return None
            if reads and self._reader_token is not None:
                if path.startswith(_READING) and (method in ("GET", "HEAD") or path == "/query"):
                    return None
                return 403, "AccessDenied", "this token may only read"
        return 401, "AccessDenied", "the token is missing or wrong; send Authorization: Bearer TOKEN"

    def _limit(self, path: str) -> int:
        return self._settings.part.part_bytes if "/parts/" in path else min(_JSON_BYTES, self._settings.part.part_bytes)


def _bytes(token: str | None) -> bytes | None:
    return token.encode() if token else None


def _length(headers: dict[bytes, bytes], limit: int) -> int:
    """The bytes to reckon with: those declared, or the most there can be."""
    if b"transfer-encoding" in headers:
        return limit
    length = headers.get(b"content-length", b"0")
    return int(length) if length.isdigit() else 0


def _limited(receive: Receive, limit: int, seconds: float) -> Receive:
    """`receive` that gives up on a body above the limit, or one that is not there after so many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    size = 0
    whole = False

    async def limited() -> Message:
        nonlocal size, whole
        if whole:
            return await receive()  # waits for the client to go away: no limit on that
        try:
            async with asyncio.timeout_at(until):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {seconds:g} s", {"Connection": "close"}) from None
        size += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if size > limit:
            raise HTTPException(413, f"a body above {format_bytes(limit)} is not taken", {"Connection": "close"})
        return message

    return limited


async def _answer(receive: Receive, send: Send, status: int, error: str, message: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    body = json.dumps({"error": error, "message": message, "details": {}}).encode()
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    # a connection that is closed with bytes unread is reset, and the client may never see the answer
    await _drain(receive)
    await send({"type": "http.response.body", "body": b""})


async def _drain(receive: Receive) -> None:
    """Throw away what the client is still sending, for a moment."""
    size = 0
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            while size < _DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        pass
