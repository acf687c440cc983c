"""A session with staging: blocks go out, and a thread listens for what has become durable."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from ..errors import MillstreamError, StagingUnavailable
from . import columns, protocol
from .block import Block, Limits, join

if TYPE_CHECKING:
    from .client import Client

PATIENCE = 5.0  # seconds that a session which ends waits for answers


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
        # a thread that is still inside gRPC when the interpreter ends would end the process with an abort
        self._listener.join(timeout=1.0)

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
