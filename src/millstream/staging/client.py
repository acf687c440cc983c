"""The client of a staging area: sessions that send blocks, and a look at what is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from ..errors import InputError, MillstreamError
from . import columns, protocol
from .block import Compression, check_compression
from .reading import Rows
from .session import Session

TOKEN_VARIABLE = "MILLSTREAM_TOKEN"
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
