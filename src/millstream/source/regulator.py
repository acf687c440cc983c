"""The flow regulator of the paper (paper 004, section 3): what an application calls for each of its records.

    application thread                       sender: a process of its own, or a thread
    ------------------                       -----------------------------------------
    send -> list -> block -> spool file ---> Arrow -> staging
                                        <--- checkpoint, counters

The application pays for an append to a list and, once for a block, for a serialisation and a write to the page cache.
It never waits for the network, and in no lock that somebody holds who waits for the network.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa

from ..errors import InputError, MillstreamError, RegulatorClosed
from ..staging.block import check_compression
from ..staging.columns import conform, stored_schema, widened
from ..staging.names import check_name
from ..units import format_bytes, parse_bytes
from . import packed, records
from .block import Closed, Pending, pieces
from .launch import start
from .rejects import Rejects
from .sender import Destination
from .spool import ARROW, PACKED, ROWS, SpoolWriter
from .state import CURSOR_BYTES, State
from .stats import SourceStats

_log = logging.getLogger(__name__)
_now = time.time
_NOTHING = records.encode([0.0])[0]
_SAMPLE = 8  # one of so many blocks is timed
_SLACK = 4  # blocks that may gather while another thread writes one
_live: weakref.WeakSet[FlowRegulator] = weakref.WeakSet()


class FlowRegulator:
    """Collects records in blocks and has them sent to staging in the background. Thread-safe.

    What `send` promises: a record that has become part of a block is in a file of the spool, so it outlives the
    process (with `durable`, the machine too) and reaches staging once, now or after a restart with the same spool. A
    block ends with its `block`-th record, when it has about `block_bytes`, or `linger` seconds after its first;
    records of a block that has not ended go with a process that is killed. `flush` ends the block.

    Raises for mistakes of the program only (arguments, a closed regulator); never for the network, a full disk or a bad
    record. Records that do not fit the schema are counted and kept with the reason in `rejects.jsonl` of the spool.
    When the spool has `spool_bytes`, new blocks are dropped and counted, or with `when_full="wait"` `send` waits.
    With a `layout`, in the words of `struct`, records may be bytes of that layout: the cheapest way, see `block`.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        source: str,
        spool: str | os.PathLike[str],
        schema: pa.Schema | None = None,
        layout: str = "",
        block: int = 100,
        block_bytes: int | str = "1MB",
        linger: float = 0.1,
        spool_bytes: int | str = "4GB",
        when_full: Literal["drop", "wait"] = "drop",
        durable: bool = False,
        replayed: bool = False,
        sender: Literal["process", "thread"] = "process",
        token: str | None = None,
        timeout: float = 10.0,
        compression: str = "none",
    ) -> None:
        if block < 1 or linger <= 0 or timeout <= 0:
            raise InputError(f"block, linger and timeout must be positive, not {block}, {linger} and {timeout}")
        if when_full not in ("drop", "wait") or sender not in ("process", "thread"):
            raise InputError(f"when_full is drop or wait and sender process or thread, not {when_full} and {sender}")
        if not url.startswith(("grpc://", "grpc+tcp://", "grpc+tls://")):
            raise InputError(f"{url!r} is no url of a staging area; write it like grpc://127.0.0.1:7411")
        check_compression(compression)
        check_name(stream, what="stream")
        check_name(source, what="source")
        destination = Destination(url, stream, source, token, timeout=timeout, compression=compression)
        self._folder = Path(spool)
        self._most, self._linger = block, linger
        self._block_bytes = parse_bytes(block_bytes, what="block_bytes")
        self._spool_bytes = parse_bytes(spool_bytes, what="spool_bytes")
        self._wait_when_full = when_full == "wait"
        self._sealing = threading.RLock()
        self._closed = ""
        self._sent = self._blocks = self._bytes = self._cpu = 0
        self._full = False
        self._room = 0  # bytes that surely fit into the spool
        self._over = threading.Event()
        given = None if schema is None else records.in_order(stored_schema(schema))
        self._size = packed.check(layout, given).itemsize if layout else 0
        self._stamp: Callable[[], Any] = packed.stamp if layout else time.time
        self._pending = Pending((self._stamp(),), limit=block)
        self._writer = SpoolWriter(
            self._folder,
            None if given is None else records.schema_message(given),
            segment_bytes=max(64 << 10, min(64 << 20, self._spool_bytes // 8)),
            durable=durable,
            replayed=replayed,
            layout=layout,
        )
        try:
            self._state = State(self._folder / "state")
            self._refused = Rejects(self._folder / "refused.jsonl")
            known = self._writer.schema
            self._set_schema(pa.ipc.read_schema(pa.BufferReader(known)) if known is not None else None)
            self._begun = self._writer.record
            self._sender = start(self._folder, destination, process=sender == "process")
        except BaseException:
            self._writer.close()
            raise
        self._tender = threading.Thread(target=self._tend, name="millstream-linger", daemon=True)
        self._tender.start()
        _live.add(self)

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of the records, `_captured` last; None as long as no record has told them."""
        return self._schema

    @property
    def taken(self) -> int:
        """Records put into the spool over all runs: where a program that can repeat its records goes on."""
        return self._writer.record

    @property
    def cursor(self) -> bytes:
        """The position that came with the last block in the spool: where a source that can repeat goes on."""
        return self._writer.cursor

    @property
    def acknowledged_cursor(self) -> bytes:
        """The position that came with the last block that staging has acknowledged whole."""
        kept = self._state.load()
        return b"" if kept is None else kept.cursor

    @property
    def block(self) -> Pending:
        """The block that is being collected, for loops in which a call for each record costs too much.

        Append tuples to it, and call `end_block` when it has more than `limit` items: the first one is a time. The
        records count as captured when the block before them ended, or when the last `linger` did: up to that much too
        early, never too late.
        """
        return self._pending

    def end_block(self) -> None:
        """Put what was collected into the spool."""
        self._seal()

    def send(self, record: dict[str, Any] | tuple[Any, ...]) -> None:
        """Take a record; it is captured now. Values of a tuple stand in the order of the schema."""
        pending = self._pending
        if type(record) is not tuple:
            record = self._copied(record)
        pending.append([_now(), record])
        if len(pending) > pending.limit:
            self._seal()

    def send_batch(self, batch: pa.RecordBatch, *, cursor: bytes = b"") -> None:
        """Take a record batch as a block of its own; `cursor` is kept with it, all or nothing.

        Columns are cast to those of the schema, new ones are added to it. Without a column `_captured` the records
        count as captured now. A batch that cannot be made to fit is sent record by record, so that the bad ones show.
        """
        if len(cursor) > CURSOR_BYTES:
            raise InputError(f"a cursor of {len(cursor)} bytes is longer than {CURSOR_BYTES}")
        self._check()
        offered = stored_schema(batch.schema)
        with self._sealing:
            self._seal(wait=True)
            try:
                if self._schema is None or any(name not in self._schema.names for name in offered.names):
                    self._widen(offered)
                rows = conform(batch, self._schema)
            except (MillstreamError, pa.ArrowException):
                for record in batch.to_pylist():
                    self.send(record)
                self.note(cursor)
                return
            self._sent += rows.num_rows
            self._append(ARROW, rows.num_rows, rows.serialize().to_pybytes(), cursor)

    def note(self, cursor: bytes) -> None:
        """Keep a position without records, behind all that was sent before."""
        with self._sealing:
            self._check()
            self._seal(wait=True)
            if self._schema is not None:
                self._append(ROWS, 0, _NOTHING, cursor)

    def flush(self, timeout: float = 30.0) -> bool:
        """End the block and wait until staging has acknowledged all that was sent so far; False if it has not."""
        self._check()
        deadline, pause, due = time.monotonic() + timeout, 0.001, -1
        while True:
            if due < 0 and not (self._wait_when_full and self._full):
                self._seal(wait=True)
                due = self._writer.record
            if 0 <= due <= self._state.get("ack_record"):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)

    def close(self, timeout: float = 10.0) -> bool:
        """Flush, end the sender and let go of the spool; False if some records wait in it for the next start."""
        if self._closed:
            return True
        done = self.flush(timeout)
        self._closed = "the regulator is closed"
        self._over.set()
        left, self._pending = len(self._pending) - 1, Closed(self._check)
        if left:  # the spool is full, and stayed so
            self._state.add("dropped", left)
        _live.discard(self)
        self._tender.join(timeout=5.0)
        self._sender.stop()
        with self._sealing:
            self._writer.close()
        if not done and (left := self.stats.spooled):
            _log.warning("%d records wait in %s for the next start", left, self._folder)
        return done

    @property
    def stats(self) -> SourceStats:
        """Counters as they stand."""
        state, writer = self._state, self._writer
        done = min(state.get("ack_record"), writer.record)
        pending = max(0, len(self._pending) - 1)
        return SourceStats.read(
            state,
            sent=self._sent + pending,
            pending=pending,
            spooled=writer.record - done,
            acknowledged=max(0, done - self._begun),
            blocks=self._blocks,
            bytes_spooled=self._bytes,
            spool_bytes=writer.depth(state.get("ack_segment"), state.get("ack_offset")),
            application_ns=self._cpu,
        )

    def __enter__(self) -> FlowRegulator:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise RegulatorClosed(self._closed)

    def _set_schema(self, schema: pa.Schema | None) -> None:
        self._schema = schema
        self._copied = records.Copier(() if schema is None else schema.names[:-1])

    def _widen(self, offered: pa.Schema) -> None:
        """Go on with a schema that has the offered columns too."""
        wider = offered if self._schema is None else widened(self._schema, offered)
        schema = records.in_order(wider)
        self._writer.begin_segment(records.schema_message(schema))
        self._set_schema(schema)

    def _seal(self, *, wait: bool = False) -> None:
        """Make a block of what is pending and put it into the spool.

        If another thread is at it, this one goes on at once, unless it must `wait` or many blocks have gathered.
        """
        pending = self._pending
        if not self._sealing.acquire(blocking=wait or len(pending) >= _SLACK * pending.limit):
            return
        try:
            if self._closed:
                raise RegulatorClosed(self._closed)
            length = len(pending)
            if length < 2:
                return
            # this runs cold, a few hundred times a second, so what it need not do for each block it does now and then
            sampled = self._blocks % _SAMPLE == 0
            begun = time.thread_time_ns() if sampled else 0
            # in place: a thread that appends right now holds the same list
            block = pending[:length]
            pending[:length] = (self._stamp(),)
            count = length - 1
            self._sent += count
            payload = packed.joined(block, self._size) if self._size else None
            if payload is not None:
                self._append(PACKED, count, payload)
            elif self._schema is not None or self._learn(block):
                for kind, items, piece in pieces(block, size=self._size):
                    self._append(kind, items, piece)
                    payload = piece
            if payload and (len(payload) * self._most > self._block_bytes * count or pending.limit < self._most):
                pending.limit = max(1, min(self._most, self._block_bytes * count // len(payload)))
            if sampled:
                self._cpu += _SAMPLE * (time.thread_time_ns() - begun)
        finally:
            self._sealing.release()

    def _learn(self, block: list[Any]) -> bool:
        """Infer the schema from the first block."""
        try:
            self._widen(records.infer(block))
            return True
        except (MillstreamError, OSError) as problem:
            found = [(None, str(problem), item[1] if type(item) is list else item) for item in block[1:]]
            self._state.add("refused", self._refused.add(found))
            return False

    def _append(self, kind: int, count: int, payload: bytes, cursor: bytes = b"") -> None:
        """Put a block into the spool; where that cannot be, wait or drop it."""
        problem = ""
        while True:
            try:
                if len(payload) > self._room:
                    depth = self._writer.depth(self._state.get("ack_segment"), self._state.get("ack_offset"))
                    self._room = self._spool_bytes - depth
                if len(payload) <= self._room:
                    written = self._writer.append(kind, count, payload, cursor=cursor)
                    self._room -= written
                    self._bytes += written
                    self._blocks += 1
                    if self._state.sleeping:
                        self._sender.wake()
                    self._full = False
                    return
                problem = f"the spool {self._folder} holds {format_bytes(depth)} of {format_bytes(self._spool_bytes)}"
            except OSError as error:
                problem = f"the spool {self._folder} cannot be written: {error}"
            if not self._full:
                self._full = True
                told = "send waits" if self._wait_when_full else "records are dropped"
                _log.warning("%s: %s until there is room", problem, told)
            if not self._wait_when_full or self._over.wait(0.02):
                self._state.add("dropped", count)
                return

    def _tend(self) -> None:
        """End blocks that have lingered, and see that the sender lives."""
        due = time.monotonic() + 1.0
        while not self._over.wait(self._linger):
            try:
                self._seal()
                self._restamp()
                if time.monotonic() > due:
                    due = time.monotonic() + 1.0
                    self._sender.supervise()
            except RegulatorClosed:
                return
            except Exception:
                _log.exception("the regulator of %s goes on after a failure", self._folder)

    def _restamp(self) -> None:
        """Bring the time at the head of an empty block up to date."""
        with self._sealing:  # so that no block ends in between; appends do no harm
            if len(self._pending) == 1 and not self._closed:
                self._pending[0] = self._stamp()

    def _after_fork(self) -> None:
        """In a forked child: the spool, its lock and the sender are the parent's, and the pending records too."""
        self._closed = "this regulator belongs to the parent process; make one after the fork, with a spool of its own"
        self._pending = Closed(self._check)
        self._sealing = threading.RLock()
        self._over.set()
        self._writer.close()
        self._sender.forget()


def _after_fork() -> None:
    for regulator in list(_live):
        regulator._after_fork()
    _live.clear()


def _at_exit() -> None:
    for regulator in list(_live):
        regulator.close(timeout=2.0)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
