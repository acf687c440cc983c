"""A little TCP proxy that stands between two parts and misbehaves on command.

    with Proxy("127.0.0.1", server_port) as proxy:
        client = connect(f"grpc://127.0.0.1:{proxy.port}")
        proxy.cut()            # both sides of every connection are reset, new ones are refused
        proxy.heal()           # everything passes again

A mode holds for connections that are open and for those that come later:

- `close()`: connections are ended cleanly as soon as they come, and those that are open at once;
- `cut()`: the same by a reset, and new connections are refused;
- `half_open()`: connections stay open and bytes go nowhere, as if the peer's host had vanished;
- `drop_answers()`: bytes reach the server, its answers go nowhere;
- `delay(seconds)`: each piece of data waits that long, in both directions;
- `corrupt(after=n)`: one bit of the byte that follows the next n bytes to the server is flipped, once.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType

_PIECE = 65_536
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards connections to a server, as long as nobody tells it otherwise."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._mode = "pass"
        self._seconds = 0.0
        self._corrupt_after: int | None = None
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._over = False
        self.connections = 0
        self.forwarded = 0  # bytes that reached the server
        self._listener = self._listen(0)
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def heal(self) -> None:
        """Everything passes again; bytes that were swallowed stay lost, so connections that lost any are reset."""
        lost_some = self._mode in ("half_open", "drop_answers")
        self._mode = "pass"
        if lost_some:
            self._end_all(reset=True)
        with self._lock:
            if self._listener.fileno() == -1 and not self._over:
                self._listener = self._listen(self.port)

    def close(self) -> None:
        self._mode = "close"
        self._end_all(reset=False)

    def cut(self) -> None:
        self._mode = "cut"
        with self._lock:
            _shut(self._listener)
        self._end_all(reset=True)

    def reset(self) -> None:
        """Reset the connections that are open now; new ones pass."""
        self._end_all(reset=True)

    def half_open(self) -> None:
        self._mode = "half_open"

    def drop_answers(self) -> None:
        self._mode = "drop_answers"

    def delay(self, seconds: float) -> None:
        self._mode, self._seconds = "delay", seconds

    def corrupt(self, *, after: int) -> None:
        self._corrupt_after = after

    def stop(self) -> None:
        self._over = True
        with self._lock:
            _shut(self._listener)
        self._end_all(reset=True)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port), backlog=64)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            if self._mode == "close":
                client.close()
                continue
            try:
                server = socket.create_connection(self._server, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._pairs.append((client, server))
            threading.Thread(target=self._forward, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, False), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                if self._mode == "delay":
                    time.sleep(self._seconds)
                if self._mode == "half_open" or (self._mode == "drop_answers" and not to_server):
                    continue
                if to_server:
                    data = self._corrupted(data)
                    self.forwarded += len(data)
                target.sendall(data)
        if self._mode not in ("half_open", "drop_answers"):
            for end in (source, target):
                _shut(end)

    def _corrupted(self, data: bytes) -> bytes:
        after = self._corrupt_after
        if after is None:
            return data
        if after >= len(data):
            self._corrupt_after = after - len(data)
            return data
        self._corrupt_after = None
        return data[:after] + bytes([data[after] ^ 0x10]) + data[after + 1 :]

    def _end_all(self, *, reset: bool) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                if reset:
                    with contextlib.suppress(OSError):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                _shut(end)


def _shut(end: socket.socket) -> None:
    """End a socket so that a thread that waits on it wakes up too."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
