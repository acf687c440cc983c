"""A part of the shop: a process with a log, that can be killed, started again, and ended with all it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from millstream.errors import MillstreamError

_MILLSTREAM = "import sys; from millstream.cli import main; sys.exit(main())"


class Part:
    """A process of the shop; `start` begins it, also once more after `kill`."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._command, self._log, self._environment = [sys.executable, *command], log, dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._begun = 0

    def start(self) -> None:
        """Start the process; its output goes to the end of the log."""
        with open(self._log, "ab") as log, _interrupts_later():
            self._begun = log.tell()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,  # Ctrl-C is for the demo, which ends its parts in order
            )

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The number of the process, if it runs."""
        return self._process.pid if self._process is not None and self.runs else None

    @property
    def said(self) -> str:
        """What it has written since it was started last."""
        with contextlib.suppress(FileNotFoundError), open(self._log, "rb") as log:
            log.seek(self._begun)
            return log.read().decode(errors="replace")
        return ""

    def check(self) -> None:
        """Raise if it has ended though nobody has ended it."""
        if self._process is not None and not self.runs:
            raise MillstreamError(f"the {self.name} of the demo has ended: {self._last_words()}")

    def until(self, ready: Callable[[], bool], *, seconds: float = 120.0) -> None:
        """Wait until it is ready."""
        over = time.monotonic() + seconds
        while not ready():
            self.check()
            if time.monotonic() > over:
                raise MillstreamError(f"the {self.name} is not ready after {seconds:.0f} s: {self._last_words()}")
            time.sleep(0.5)

    def _last_words(self) -> str:
        lines = [line.strip() for line in self.said.splitlines() if line.strip()]
        return lines[-1].removeprefix("millstream: ") if lines else "it has said nothing"

    def kill(self) -> None:
        """SIGKILL for the process and for all that it has started."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(children, timeout=5)
        self._process.wait()
        self._process = None

    def end(self, seconds: float = 10.0) -> None:
        """SIGTERM, and SIGKILL if that does not help in time."""
        if self._process is not None and self.runs:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self.kill()

    def finish(self, seconds: float) -> None:
        """Wait until it has ended by itself, without an error."""
        assert self._process is not None
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise MillstreamError(f"the {self.name} has not ended in {seconds:.0f} s: {self._last_words()}") from None
        if code:
            self.check()
        self._process = None


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Keep Ctrl-C back meanwhile: in the middle of starting a process it would leave one that nobody knows of."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def millstream(*words: str | Path) -> list[str]:
    """The arguments of Python for a command of millstream."""
    return ["-c", _MILLSTREAM, *map(str, words)]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
