"""How a sender runs beside its application: as a process of its own, or as a thread."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Protocol

from .sender import Destination, Sender

_log = logging.getLogger(__name__)
_GRACE = 10.0  # seconds that the sender of a killed application goes on, to bring home what is in the spool
_LAST = 5.0  # and then at most, if something in it hangs
_LOG_BYTES = 1 << 20


class Runner(Protocol):
    """A sender that runs."""

    def wake(self) -> None:
        """Tell it that there is a new block; never blocks."""

    def supervise(self) -> None:
        """Start it again if it has died."""

    def stop(self) -> None:
        """End it."""

    def forget(self) -> None:
        """In a forked child: let go of what belongs to the parent."""


def start(folder: Path, destination: Destination, *, process: bool) -> Runner:
    """A sender that runs, as a process if wanted and possible."""
    if process:
        try:
            return SenderProcess(folder, destination)
        except OSError as problem:
            _log.warning("no process for the sender of %s, a thread does its work: %s", folder, problem)
    return SenderThread(folder, destination)


class SenderThread:
    """The sender as a thread: no other process, at the price of the interpreter's lock."""

    def __init__(self, folder: Path, destination: Destination) -> None:
        self._reading, self._writing = _pipe()
        self._sender = Sender(folder, destination, wait=self._wait, clock=time.thread_time_ns)
        self._thread = threading.Thread(target=self._sender.run, name="millstream-sender", daemon=True)
        self._thread.start()

    def _wait(self, seconds: float) -> None:
        if select.select([self._reading], [], [], seconds)[0]:
            os.read(self._reading, 4096)

    def wake(self) -> None:
        _ring(self._writing)

    def supervise(self) -> None:
        if not self._thread.is_alive():
            self._thread = threading.Thread(target=self._sender.run, name="millstream-sender", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._sender.stop()
        self.wake()
        self._thread.join(timeout=10.0)
        self.forget()

    def forget(self) -> None:
        for descriptor in (self._reading, self._writing):
            os.close(descriptor)


class SenderProcess:
    """The sender as a child process: the application's interpreter does nothing for it but wake it.

    It listens on its standard input: the first line says what to do, then each byte means a new block, and the end
    means that the application is gone. Its log is `sender.log` in the spool.
    """

    def __init__(self, folder: Path, destination: Destination) -> None:
        self._folder, self._destination = folder, destination
        self._process: subprocess.Popen[bytes] | None = None
        self._writing = -1
        self._pause, self._due = 1.0, 0.0
        self._start()

    def _start(self) -> None:
        reading, self._writing = _pipe()
        log = self._folder / "sender.log"
        kept = log.exists() and log.stat().st_size < _LOG_BYTES
        package = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH", ""))))
        try:
            with open(log, "ab" if kept else "wb") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "millstream.source", str(self._folder)],
                    stdin=reading,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, "PYTHONPATH": paths},
                    start_new_session=True,  # Ctrl-C is for the application, which then closes in its own order
                )
        finally:
            os.close(reading)
        os.write(self._writing, json.dumps(asdict(self._destination)).encode() + b"\n")

    def wake(self) -> None:
        _ring(self._writing)

    def supervise(self) -> None:
        if self._process is not None and self._process.poll() is not None and time.monotonic() >= self._due:
            _log.warning("the sender of %s has ended (%s); starting it again", self._folder, self._process.returncode)
            os.close(self._writing)
            self._start()
            self._due = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, 60.0)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        self.forget()
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1


def _pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    return reading, writing


def _ring(descriptor: int) -> None:
    try:
        os.write(descriptor, b".")
    except OSError:
        pass  # a full pipe rings already; a closed one has nobody behind it, whom `supervise` replaces


class _WithoutPandas(MetaPathFinder):
    """Pandas is not there: pyarrow would load it to see whether a value is its, for half a second and 40 MB."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("the sender does without pandas", name=fullname)


def main() -> None:
    """Run the sender of a spool, as the first line of standard input says, until told to stop."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    sys.meta_path.insert(0, _WithoutPandas())
    parent, inlet = os.getppid(), sys.stdin.fileno()
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(inlet, 1)
        if not piece:
            return
        line += piece
    gone = threading.Event()

    def wait(seconds: float) -> None:
        if gone.is_set():
            time.sleep(min(seconds, 0.05))
        elif select.select([inlet], [], [], seconds)[0] and not os.read(inlet, 4096):
            gone.set()

    def watch() -> None:
        while not gone.wait(1.0):
            if os.getppid() != parent:
                gone.set()
        time.sleep(_GRACE)
        sender.stop()
        time.sleep(_LAST)
        os._exit(1)

    sender = Sender(Path(sys.argv[1]), Destination(**json.loads(line)), wait=wait)
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: sender.stop())
    threading.Thread(target=watch, daemon=True).start()
    sender.run(until=gone.is_set)
    logging.shutdown()
    # an orderly end of the interpreter can wait for ever in the threads of gRPC; all that counts is in the spool
    os._exit(0)
