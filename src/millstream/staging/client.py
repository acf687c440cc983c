"""The client of a staging area: sessions that send blocks, and a look at what is there."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from ..errors import InputError, MillstreamError, StagingUnavailable
from . import columns, protocol
from .block import Block, Compression, Limits, check_compression, join
from .reading import Rows

TOKEN_VARIABLE = "MILLSTREAM_TOKEN"
PATIENCE = 5.0  # seconds that a session which ends waits for answers
# a channel of its own that tries again soon: gRPC would share one, and wait up to two minutes after a failure
_CHANNEL = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


@dataclass(frozen=True)
class StreamInfo:
    """A stream as it stands: positions `start` up to `end` can be read, by record."""

    name: str
    log: str
    start: int
    end: int
    bytes: int
    schema: pa.Schema = field(repr=False)
    flows: dict[str, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Backlog:
    """What a flow has not consumed yet: `records` from `position` up to `end`."""

    position: int
    end: int

    @property
    def records(self) -> int:
        return self.end - self.position


def connect(
    url: str,
    token: str | None = None,
    *,
    timeout: float = 30.0,
    tls_roots: bytes | None = None,
    compression: Compression = "none",
) -> Client:
    """A client of the staging area at a url like `grpc://127.0.0.1:7411` (`grpc+tls://...` with TLS).

    Returns without a word to the server; the first call raises `StagingUnavailable` if it cannot be reached. `token`
    is by default that of the environment variable MILLSTREAM_TOKEN. `timeout` is the longest that any single call, or
    the acknowledgement of a block, may take. `tls_roots` are the certificates (PEM) to trust instead of the system's.
    `compression` is that of the blocks sent: `none` is fastest on one machine, `lz4` on a network.
    """
    return Client(url, token, timeout=timeout, tls_roots=tls_roots, compression=compression)


class Client:
    """A connection to a staging area; made by `connect`. Safe for use by several threads."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        tls_roots: bytes | None = None,
        compression: Compression = "none",
    ) -> None:
        if not url.startswith(("grpc://", "grpc+tcp://", "grpc+tls://")):
            raise InputError(f"{url!r} is no url of a staging area; write it like grpc://127.0.0.1:7411")
        self.url, self.timeout, self.compression = url, timeout, check_compression(compression)
        self._token = token if token is not None else os.environ.get(TOKEN_VARIABLE)
        if self._token and not (self._token.isascii() and self._token.isprintable()):
            raise InputError("a token consists of printable ASCII characters")
        roots = {"tls_root_certs": tls_roots} if tls_roots is not None else {}
        try:
            self._flight = flight.connect(url, generic_options=_CHANNEL, **roots)
        except (pa.ArrowException, OSError, ValueError) as problem:
            raise InputError(f"{url!r} is no url of a staging area: {problem}") from None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; sessions that are still open are lost."""
        self._flight.close()

    # what sources need

    def open(
        self,
        stream: str,
        source: str,
        *,
        incarnation: str,
        schema: pa.Schema,
        window: int = 16 << 20,
    ) -> Session:
        """Begin to send records of a source; the stream is made if it is new.

        The schema is registered, or the stream's is widened by its new columns; `SchemaRefused` says the difference if
        it does not fit. A `_captured` column (timestamp[us, UTC]) belongs to each record; without one records count as
        captured when they are sent. `incarnation` names the run of record numbers: whoever begins again at 0 must take
        a new one. At most `window` bytes are on their way without acknowledgement. A session of the same source and
        incarnation that is still open somewhere is ended by this one.
        """
        return Session(self, stream, source, incarnation=incarnation, schema=schema, window=window)

    # what flows need

    def streams(self) -> list[StreamInfo]:
        """All streams."""
        return [_info(one) for one in self.call("streams")["streams"]]

    def stream(self, name: str) -> StreamInfo:
        """One stream; `UnknownStream` if it is not there."""
        return _info(self.call("stream", stream=name))

    def backlog(self, stream: str, flow: str) -> Backlog:
        """What the flow has not consumed of a stream; all that is there, if it was never heard of."""
        answer = self.call("backlog", stream=stream, flow=flow)
        return Backlog(answer["position"], answer["end"])

    def register(self, stream: str, flow: str) -> StreamInfo:
        """Make staging keep what this flow has not consumed, from the oldest record there is on."""
        return _info(self.call("register", stream=stream, flow=flow))

    def consumed(self, stream: str, flow: str, *, position: int) -> None:
        """Say that a flow will never read below this position again."""
        self.call("consumed", stream=stream, flow=flow, position=position)

    def forget(self, stream: str, flow: str) -> None:
        """Take back the registration of a flow: nothing is kept for it any more."""
        self.call("forget", stream=stream, flow=flow)

    def read(self, stream: str, start: int, *, end: int, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """The records at positions `start` up to (not with) `end`, in order, in batches of some thousand.

        The columns are those of `schema`, as `StreamInfo.schema` had it, by default as it is now: the stream's own,
        then `_source`, `_sequence` (the source's number of the record) and `_captured`. The same positions always give
        the same rows. `PositionGone` if retention has dropped some of them.
        """
        wanted = self.stream(stream).schema if schema is None else schema
        while True:
            before = start
            try:
                for batch in self._read_once(stream, start, end=end, wanted=wanted):
                    start += batch.num_rows
                    yield batch
                return
            except flight.FlightTimedOutError as problem:
                # whoever takes the rows may be slow: then it goes on from here
                if start == before:
                    raise self.error(problem) from None
            except (pa.ArrowException, OSError) as problem:
                raise self.error(problem) from None

    def _read_once(self, stream: str, start: int, *, end: int, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        rows = Rows(stream, wanted, start=start, end=end)
        ticket = flight.Ticket(protocol.pack({"stream": stream, "start": start, "end": end}))
        for chunk in self._flight.do_get(ticket, self.options()):
            yield from rows.add(chunk.data)
        yield from rows.rest()

    def call(self, action: str, **message: Any) -> dict[str, Any]:
        """One question, one answer."""
        request = flight.Action(action, protocol.pack(message))
        try:
            (result,) = list(self._flight.do_action(request, self.options()))
        except (pa.ArrowException, OSError) as problem:
            raise self.error(problem) from None
        return protocol.unpack(result.body)

    def options(self, *, limited: bool = True) -> flight.FlightCallOptions:
        """What each call carries: the token, and a limit of time if wanted."""
        headers = [(b"authorization", f"Bearer {self._token}".encode())] if self._token else []
        return flight.FlightCallOptions(timeout=self.timeout if limited else None, headers=headers)

    def error(self, problem: BaseException) -> MillstreamError:
        """What went wrong, by our names."""
        return problem if isinstance(problem, MillstreamError) else protocol.from_flight(problem, url=self.url)


class Session:
    """The way of one source's blocks to staging; made by `Client.open`. Safe for use by several threads.

    Keeps no blocks: whoever sends keeps records until `acknowledged` has passed them, and sends what is above
    `next` of a new session after this one has raised an error that is `retryable`.
    """

    def __init__(
        self, client: Client, stream: str, source: str, *, incarnation: str, schema: pa.Schema, window: int
    ) -> None:
        self.stream, self.source, self.incarnation = stream, source, incarnation
        self._client, self._window = client, window
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._flying: deque[tuple[int, int]] = deque()  # end and bytes of each block without acknowledgement
        self._flying_bytes = 0
        self._answer: dict[str, Any] | None = None
        self._problem: MillstreamError | None = None
        self._closed = False
        self._acknowledged = 0
        command = protocol.pack(
            {
                "stream": stream,
                "source": source,
                "incarnation": incarnation,
                "columns": columns.to_list(columns.stored_schema(schema)),
            }
        )
        try:
            self._writer, self._reader = client._flight.do_exchange(
                flight.FlightDescriptor.for_command(command), client.options(limited=False)
            )
        except (pa.ArrowException, OSError) as problem:
            raise client.error(problem) from None
        self._listener = threading.Thread(target=self._listen, name=f"staging-{stream}-{source}", daemon=True)
        self._listener.start()
        answer = self._await_answer()
        self.next: int = answer["next"]
        """The number of the record that staging expected when the session began: send from here on."""
        self.schema: pa.Schema = columns.from_list(answer["columns"])
        """The columns of the blocks sent; batches are made to fit."""
        self.limits = Limits(**answer["limits"])
        """What staging accepts as a block."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def acknowledged(self) -> int:
        """All records below this number are durable."""
        return self._acknowledged

    def send(self, first: int, batch: pa.RecordBatch) -> None:
        """Send records; the first has this number. Returns soon, or when the window has room again.

        Records that staging has already are stored once. Raises what went wrong with this or an earlier block:
        retryable ones (`StagingUnavailable`, `StagingFull`, `BlockDamaged`) want a new session.
        """
        if batch.num_rows == 0:
            self._check()
            return
        block = Block(self.stream, self.source, self.incarnation, first, columns.conform(batch, self.schema))
        header, payload = block.encode(self._client.compression)
        self.limits.check(payload=header.payload, expanded=header.expanded, rows=header.rows)
        message = join(header, payload)
        with self._sending:
            self._await_room(len(message))
            with self._changed:
                self._flying.append((block.end, len(message)))
                self._flying_bytes += len(message)
            try:
                self._writer.write_metadata(message)
            except (pa.ArrowException, OSError) as problem:
                # the answer of the server, if there is one, says more than the failure to write
                self._listener.join(timeout=1.0)
                self._fail(self._client.error(problem))
                self._check()

    def wait(self, number: int, *, timeout: float | None = None) -> None:
        """Return when all records below this number are durable.

        Raises `StagingUnavailable` when the connection is lost or the time (by default the client's) is over, and
        whatever made staging refuse a block.
        """
        limit = self._client.timeout if timeout is None else timeout
        with self._changed:
            done = self._changed.wait_for(lambda: self._acknowledged >= number or self._problem, timeout=limit)
        if self._acknowledged >= number:
            return
        self._check()
        if not done:
            raise StagingUnavailable(f"staging at {self._client.url} acknowledged nothing new in {limit} s")

    def close(self) -> None:
        """End the session: what was sent is either acknowledged by now or, perhaps, stored without that."""
        if self._closed:
            return
        self._closed = True
        with self._changed:
            self._changed.wait_for(lambda: not self._flying or self._problem, timeout=PATIENCE)
        if not self._flying and self._problem is None:
            self._say_end()
            self._listener.join(timeout=PATIENCE)
        self.cancel()

    def _await_answer(self) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._answer or self._problem, timeout=self._client.timeout)
            if self._answer is not None:
                return self._answer
        self.cancel()
        raise self._problem or StagingUnavailable(
            f"staging at {self._client.url} did not answer in {self._client.timeout} s"
        )

    def _listen(self) -> None:
        try:
            while True:
                content = self._reader.read_chunk().app_metadata
                answer = protocol.unpack(content)
                if "closing" in answer:
                    self._fail(StagingUnavailable(f"staging at {self._client.url} is shutting down"))
                    self._say_end()
                    continue
                with self._changed:
                    if self._answer is None:
                        self._answer = answer
                    self._acknowledged = answer["next"]
                    while self._flying and self._flying[0][0] <= self._acknowledged:
                        self._flying_bytes -= self._flying.popleft()[1]
                    self._changed.notify_all()
        except StopIteration:
            self._fail(StagingUnavailable(f"staging at {self._client.url} has ended the session"))
        except (MillstreamError, pa.ArrowException, OSError, KeyError) as problem:
            self._fail(self._client.error(problem))
        self._once_sent(self._writer.close)

    def _await_room(self, size: int) -> None:
        """Return when this many bytes fit the window, which a single block always does."""
        with self._changed:
            while not self._problem and self._flying and self._flying_bytes + size > self._window:
                before, begun = self._acknowledged, time.monotonic()
                self._changed.wait(self._client.timeout)
                if self._acknowledged == before and time.monotonic() - begun >= self._client.timeout:
                    self._problem = StagingUnavailable(
                        f"staging at {self._client.url} acknowledged nothing in {self._client.timeout} s"
                    )
        self._check()

    def _fail(self, problem: MillstreamError) -> None:
        with self._changed:
            self._problem = self._problem or problem
            self._changed.notify_all()

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem
        if self._closed:
            raise StagingUnavailable("the session is closed")

    def _say_end(self) -> None:
        """Tell the server that nothing more will come.

        Not by ending the stream of writes: a read that fails in the other thread at that moment does so too, and gRPC
        ends the process of whoever ends a stream twice.
        """
        self._once_sent(lambda: self._writer.write_metadata(protocol.END))

    def _once_sent(self, action: Callable[[], None]) -> None:
        """Do something with the writer when nobody sends, if it still can be used."""
        if self._sending.acquire(timeout=1.0):
            try:
                action()
            except (pa.ArrowException, OSError):
                pass
            finally:
                self._sending.release()

    def cancel(self) -> None:
        """Drop the connection at once, without waiting for a peer that may be gone."""
        try:
            self._reader.cancel()
        except (pa.ArrowException, OSError):
            pass


def _info(message: dict[str, Any]) -> StreamInfo:
    return StreamInfo(
        name=message["name"],
        log=message["log"],
        start=message["start"],
        end=message["end"],
        bytes=message["bytes"],
        schema=columns.from_list(message["columns"]),
        flows=message["flows"],
    )
