"""The sender: takes blocks from a spool, makes Arrow of them, sends them and notes what staging has acknowledged.

    application --> spool --> sender --> staging
                     ^ checkpoint  |
                     +-------------+  acknowledgements

Runs as a process of its own (`python -m millstream.source`), or in a thread. Invariants:

1. The checkpoint moves only over records that staging has acknowledged, or that stand in the file of rejects.
2. What follows the checkpoint is read, converted and numbered in the same way each time. So after a crash the same
   records get the same numbers, and staging recognises those it has.
3. Nothing that happens here reaches the application; the sender tries again, with pauses, until it is told to stop.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ..errors import MillstreamError, StagingUnavailable
from ..failpoints import reach
from ..staging import connect
from .reader import Piece, SpoolReader
from .spool import Lock
from .state import Checkpoint, State

_log = logging.getLogger(__name__)

BATCH_ROWS = 20_000
BATCH_BYTES = 2 << 20
FLYING = 16  # batches without acknowledgement
GATHER = 0.05  # seconds between two batches that are not full: each costs about a millisecond, here and in staging
_POLL = 0.005
_STEADY = 5.0  # seconds of a connection without trouble after which pauses begin short again


class Staging(Protocol):
    """What the sender needs of a client of staging."""

    def open(self, stream: str, source: str, *, incarnation: str, schema: pa.Schema) -> Any: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Destination:
    """Where records go, under which names, and how patiently."""

    url: str
    stream: str
    source: str
    token: str | None = None
    timeout: float = 10.0  # for an acknowledgement, before the connection counts as dead
    first_pause: float = 0.1
    longest_pause: float = 5.0
    compression: str = "none"

    def connect(self) -> Staging:
        return connect(self.url, self.token, timeout=self.timeout, compression=self.compression)  # type: ignore[arg-type]


class Sender:
    """Sends what stands in a spool until it is told to stop. `wait(seconds)` returns early when there may be more."""

    def __init__(
        self,
        folder: Path,
        destination: Destination,
        *,
        wait: Callable[[float], None],
        client: Callable[[], Staging] | None = None,
        clock: Callable[[], int] = time.process_time_ns,
    ) -> None:
        self._folder, self._to = folder, destination
        self._wait, self._client, self._clock = wait, client or destination.connect, clock
        self._state = State(folder / "state")
        self._lock = Lock(folder / "sender.lock")
        self._stop = threading.Event()
        self._pause = destination.first_pause
        self._told = ""
        self._cpu = 0

    def stop(self) -> None:
        """Make `run` return soon; what is not acknowledged stays in the spool."""
        self._stop.set()

    def run(self, *, until: Callable[[], bool] = lambda: False) -> None:
        """Send until `stop`, or until all is acknowledged and `until()` holds."""
        while not self._lock.acquire():  # the sender of a process that was killed finishes first
            if self._stop.wait(0.05) or until():
                return
        try:
            self._run(until)
        finally:
            self._state.put("connected", 0)
            self._lock.release()

    def _run(self, until: Callable[[], bool]) -> None:
        reader = SpoolReader(self._folder, self._state)
        self._cpu = self._clock()
        try:
            while not self._stop.is_set():
                if not reader.waiting:
                    if until():
                        return
                    self._sleep(reader)
                    continue
                if self._attempt(reader, until):
                    return
                reader.rewind()
                if until():
                    return
                self._state.put("connected", 0)
                self._state.add("reconnects")
                self._stop.wait(self._pause * random.uniform(0.5, 1.0))
                self._pause = min(self._pause * 2, self._to.longest_pause)
        finally:
            reader.close()

    def _attempt(self, reader: SpoolReader, until: Callable[[], bool]) -> bool:
        """One connection, as long as it lasts; True when there is nothing more to do."""
        begun = time.monotonic()
        try:
            client = self._client()
            try:
                while not self._stop.is_set():
                    if not self._session(client, reader, until):
                        return True
            finally:
                client.close()
        except MillstreamError as problem:
            self._tell(problem.message)
            if not problem.retryable:
                self._pause = self._to.longest_pause  # nothing will change soon
        except Exception as problem:
            _log.exception("sending from %s failed, will be tried again", self._folder)
            self._tell(f"{type(problem).__name__}: {problem}")
        if time.monotonic() - begun > _STEADY:
            self._pause = self._to.first_pause
        return self._stop.is_set()

    def _session(self, client: Staging, reader: SpoolReader, until: Callable[[], bool]) -> bool:
        """Send under one schema and incarnation; True if another session has to follow, False if all is done."""
        place = reader.acknowledged
        session = client.open(self._to.stream, self._to.source, incarnation=place.incarnation, schema=reader.schema)
        if session.next < place.sequence:
            session.close()
            lost = place.sequence - session.next
            _log.error("staging has lost %d records that it had acknowledged; going on with new numbers", lost)
            reader.begin_incarnation()
            return True
        self._state.put("connected", 1)
        self._tell("")
        self._repeats(session.next - place.sequence)
        flight, full = _Flight(session, self._to.timeout), False
        try:
            while not self._stop.is_set():
                self._collect(flight, reader)
                pause = flight.begun + GATHER - time.monotonic()
                if pause > 0 and not full and not until():
                    if flight.pieces:
                        flight.await_some(pause)
                    else:
                        self._stop.wait(pause)
                    continue
                piece = reader.next(BATCH_ROWS, BATCH_BYTES) if len(flight.pieces) < FLYING else None
                full = piece is not None and piece.records >= BATCH_ROWS // 2
                if piece is not None:
                    reach("source.before-send")
                    self._send(flight, piece)
                    reach("source.after-send")
                elif flight.pieces:
                    flight.await_some()
                elif reader.at_boundary:
                    if reader.cross():
                        return True
                elif until():
                    return False
                else:
                    self._sleep(reader)
            return False
        finally:
            flight.over()

    def _repeats(self, count: int) -> None:
        if count > 0:
            self._state.add("repeats", count)

    def _send(self, flight: _Flight, piece: Piece) -> None:
        batch = piece.batch
        rows = max(1, batch.num_rows * BATCH_BYTES // max(1, batch.nbytes))
        flight.begin()
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            flight.session.send(piece.first + start, part)
            self._state.add("batches")
        flight.sent(piece)
        self._state.add("bytes_sent", batch.nbytes)
        self._state.add("cpu_records", piece.records)
        self._state.put("cpu_ns", self._clock() - self._cpu)

    def _collect(self, flight: _Flight, reader: SpoolReader) -> None:
        """Move the checkpoint to where staging is."""
        done = flight.landed()
        if done is not None:
            reach("source.before-checkpoint")
            reader.acknowledge(done)
            reach("source.after-checkpoint")
            self._pause = self._to.first_pause

    def _sleep(self, reader: SpoolReader) -> None:
        """Wait to be woken, unless something came while we said that we would sleep."""
        self._state.put("sleeping", 1)
        if not reader.waiting and not self._stop.is_set():
            self._wait(0.5)
        self._state.put("sleeping", 0)

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            self._told = self._state.error = problem
            if problem:
                _log.warning("%s; records wait in %s", problem, self._folder)


class _Flight:
    """What was sent in a session and is not acknowledged, and a watch over it: no progress means a dead connection."""

    def __init__(self, session: Any, timeout: float) -> None:
        self.session, self._timeout = session, timeout
        self.pieces: deque[Piece] = deque()
        self._progress = time.monotonic()
        self._busy = False
        self.begun = 0.0  # when the last piece went out
        self._over = threading.Event()
        # a write to a peer that has vanished can block for ever, so somebody else must look at the clock
        self._watch = threading.Thread(target=self._watching, name="millstream-watch", daemon=True)
        self._watch.start()

    def begin(self) -> None:
        self.begun = time.monotonic()
        if not self.pieces:
            self._progress = self.begun
        self._busy = True

    def sent(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self._busy = False

    def landed(self) -> Checkpoint | None:
        """The checkpoint of the last piece that is acknowledged, if it is a new one."""
        done = None
        while self.pieces and self.pieces[0].end <= self.session.acknowledged:
            done = self.pieces.popleft().after
            self._progress = time.monotonic()
        return done

    def await_some(self, seconds: float = _POLL) -> None:
        """Wait for an acknowledgement, a little."""
        try:
            self.session.wait(self.pieces[0].end, timeout=seconds)
        except StagingUnavailable:
            self.session.send(0, _EMPTY)  # raises if the connection is lost, says nothing if it was only the time
            if time.monotonic() - self._progress > self._timeout:
                raise StagingUnavailable(f"no acknowledgement in {self._timeout:g} s") from None

    def over(self) -> None:
        self._over.set()
        if self.pieces or self._busy:
            self.session.cancel()  # an orderly end would wait for a peer that may be gone
        self.session.close()

    def _watching(self) -> None:
        while not self._over.wait(min(1.0, self._timeout / 4)):
            if self._busy and time.monotonic() - self._progress > self._timeout:
                self.session.cancel()


_EMPTY = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
