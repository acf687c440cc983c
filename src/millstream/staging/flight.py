"""Staging over Arrow Flight: sessions in which blocks come in and acknowledgements go out, and blocks for readers.

Blocks travel as bytes beside the Arrow stream (`app_metadata`), not as its record batches: so they are checked here,
by size, checksum and content, before Arrow reads them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from .. import failpoints
from ..errors import AccessDenied, BlockRefused, InputError, MillstreamError, StagingBusy, StagingUnavailable
from . import columns, protocol
from .access import Access, Identity
from .names import check_name
from .reading import blocks_schema
from .store import Store
from .stream import Stored, Stream

_GROUP = 1 << 20  # bytes of blocks that go to a reader at once


class _Doorkeeper(flight.ServerMiddlewareFactory):
    """Looks at the token of each call before anything of it is read."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> flight.ServerMiddleware:
        given = headers.get("authorization", [None])[0]
        try:
            return _Known(self._access.identify(given))
        except AccessDenied as problem:
            raise flight.FlightUnauthenticatedError(
                problem.message, protocol.pack({"error": "AccessDenied", "details": {}})
            ) from None


class _Known(flight.ServerMiddleware):
    def __init__(self, identity: Identity) -> None:
        self.identity = identity


class _Acknowledger:
    """Makes the blocks of a session durable and says so; a thread of its own, so that reading goes on meanwhile."""

    def __init__(self, stream: Stream, writer: flight.MetadataRecordBatchWriter, observe: Callable[[float], None]):
        self._stream, self._writer, self._observe = stream, writer, observe
        self._changed = threading.Condition()
        # the writer takes one write at a time, and is gone when the session's handler returns
        self._writing = threading.Lock()
        self._writer_gone = False
        self._due: Stored | None = None
        self._came: list[float] = []
        self._over = False
        self._problem: MillstreamError | None = None
        self._thread = threading.Thread(target=self._run, name="staging-acknowledge", daemon=True)
        self._thread.start()

    def add(self, stored: Stored, came: float) -> None:
        """Acknowledge this when it is durable."""
        with self._changed:
            if self._problem is not None:
                raise self._problem
            self._due = stored
            self._came.append(came)
            self._changed.notify()

    def say(self, message: dict[str, Any]) -> None:
        """Send a message between acknowledgements."""
        try:
            self._write(message)
        except (pa.ArrowException, OSError):
            pass  # the other side is gone

    def finish(self) -> None:
        """Return when all has been acknowledged, or nothing more can be."""
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()
        with self._writing:
            self._writer_gone = True

    def _write(self, message: dict[str, Any]) -> None:
        with self._writing:
            if not self._writer_gone:
                self._writer.write_metadata(protocol.pack(message))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due is not None or self._over)
                due, self._due = self._due, None
                came, self._came = self._came, []
            if due is None:
                return
            try:
                self._stream.log.sync(due.mark)
                failpoints.reach("staging.before-acknowledge")
                self._write({"next": due.next})
            except MillstreamError as problem:
                self._problem = problem
                return
            except (pa.ArrowException, OSError) as problem:
                self._problem = StagingUnavailable(f"the source is gone: {problem}")
                return
            now = time.perf_counter()
            for begun in came:
                self._observe(now - begun)


class FlightServer(flight.FlightServerBase):
    """The Flight service over a store."""

    def __init__(
        self,
        store: Store,
        location: str,
        *,
        access: Access,
        most_sessions: int,
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        self._store = store
        self._free = threading.BoundedSemaphore(most_sessions)
        self._open: dict[int, _Acknowledger] = {}
        self._closing = False
        options = {"tls_certificates": [certificate]} if certificate is not None else {}
        super().__init__(location, middleware={"access": _Doorkeeper(access)}, **options)

    # sources

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """A session: first who sends what, then blocks."""
        if not self._free.acquire(blocking=False):
            raise protocol.to_flight(StagingBusy("staging serves as many sessions as it is allowed to; try again"))
        self._store.metrics.sessions.inc()
        try:
            self._session(_identity(context), protocol.unpack(descriptor.command, what="session"), reader, writer)
        except MillstreamError as problem:
            self._store.metrics.refused(problem)
            raise protocol.to_flight(problem) from None
        finally:
            self._store.metrics.sessions.dec()
            self._free.release()

    def _session(
        self,
        identity: Identity,
        asked: dict[str, Any],
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        source = identity.check_source(asked.get("source"))
        incarnation = check_name(asked.get("incarnation"), what="incarnation")
        stream = self._store.open(asked.get("stream"), columns.from_list(asked.get("columns")))
        claim = stream.claim(source, incarnation)
        acknowledger = _Acknowledger(stream, writer, self._store.metrics.acknowledged.observe)
        self._open[claim] = acknowledger
        try:
            due = stream.next(source, incarnation)
            stream.log.sync(stream.log.mark)  # `next` promises that all before it is durable
            limits = asdict(self._store.limits)
            acknowledger.say({"next": due, "columns": columns.to_list(stream.columns), "limits": limits})
            for content in _contents(reader):
                came = time.perf_counter()
                if self._closing:
                    raise StagingUnavailable("staging is shutting down")
                failpoints.reach("staging.received")
                stored = stream.accept(content, source=source, incarnation=incarnation, claim=claim)
                acknowledger.add(stored, came)
        finally:
            acknowledger.finish()
            self._open.pop(claim, None)
            stream.release(source, incarnation, claim)

    # flows

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Stored blocks, as they are."""
        try:
            _identity(context).check_all()
            asked = protocol.unpack(ticket.ticket, what="ticket")
            stream = self._store.stream(asked.get("stream"))
            start, end = _number(asked, "start"), _number(asked, "end")
            blocks = stream.read(start, end)
            self._store.metrics.read(stream.name, end - start)
            schema = blocks_schema(stream.columns)
        except MillstreamError as problem:
            self._store.metrics.refused(problem)
            raise protocol.to_flight(problem) from None
        return flight.GeneratorStream(schema, _grouped(blocks, schema))

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        """Questions and answers; see `Client`."""
        try:
            _identity(context).check_all()
            asked = protocol.unpack(action.body, what="question")
            answer = protocol.pack(self._answer(action.type, asked))
        except MillstreamError as problem:
            self._store.metrics.refused(problem)
            raise protocol.to_flight(problem) from None
        yield answer

    def _answer(self, kind: str, asked: dict[str, Any]) -> dict[str, Any]:
        if kind == "streams":
            return {"streams": [stream.describe() for stream in self._store.streams()]}
        stream = self._store.stream(asked.get("stream"))
        if kind == "stream":
            return stream.describe()
        flow = check_name(asked.get("flow"), what="flow")
        if kind == "backlog":
            position, end = stream.backlog(flow)
            return {"position": position, "end": end}
        if kind == "register":
            stream.register(flow)
        elif kind == "consumed":
            stream.consumed(flow, _number(asked, "position"))
        elif kind == "forget":
            stream.forget(flow)
        else:
            raise InputError(f"{kind[:60]!r} is no question for staging")
        return stream.describe()

    def stop(self, *, timeout: float = 5.0) -> bool:
        """Ask the clients to end their sessions and stop; whether they did in time."""
        self._closing = True
        for acknowledger in list(self._open.values()):
            acknowledger.say({"closing": True})
        # waits for all calls to end, and a client that does not answer would hold it for ever
        thread = threading.Thread(target=self.shutdown, name="staging-shutdown", daemon=True)
        thread.start()
        thread.join(timeout)
        return not thread.is_alive()


def _identity(context: flight.ServerCallContext) -> Identity:
    known: _Known = context.get_middleware("access")
    return known.identity


def _contents(reader: flight.MetadataRecordBatchReader) -> Iterator[pa.Buffer]:
    """What a client sends, until it ends."""
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as problem:
            raise StagingUnavailable(f"the source is gone: {problem}") from None
        if chunk.data is not None or chunk.app_metadata is None:
            raise BlockRefused("blocks are sent as metadata of an exchange, not as its record batches")
        if chunk.app_metadata == protocol.END:
            return
        yield chunk.app_metadata


def _grouped(blocks: Iterator[tuple[Any, pa.Buffer]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Blocks in batches of about a megabyte."""
    held: list[bytes] = []
    size = 0
    try:
        for _, block in blocks:
            held.append(block.to_pybytes())
            size += block.size
            if size >= _GROUP:
                yield pa.record_batch([pa.array(held, pa.large_binary())], schema=schema)
                held, size = [], 0
    except MillstreamError as problem:
        raise protocol.to_flight(problem) from None
    if held:
        yield pa.record_batch([pa.array(held, pa.large_binary())], schema=schema)


def _number(asked: dict[str, Any], name: str) -> int:
    value = asked.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise InputError(f"{name} must be a whole number from 0 on, not {str(value)[:60]!r}")
    return value
