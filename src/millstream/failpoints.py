"""Places in the code where a test can make a process fail; off unless an environment variable names them.

`MILLSTREAM_FAILPOINTS="staging.after-fsync=kill:3,source.send=error"` makes the process kill itself the third time it
reaches `staging.after-fsync`, and raise an `OSError` each time it reaches `source.send`. What can be asked for:

    kill        SIGKILL to the own process: nothing is cleaned up, as in a crash
    error       OSError with EIO
    enospc      OSError with ENOSPC, as on a full disk
    sleep:S     wait S seconds, then go on

`kill`, `error` and `enospc` take a number, `kill:3`: only the third time. Points are named `part.what-happened`.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time

from .errors import InputError

VARIABLE = "MILLSTREAM_FAILPOINTS"
_ERRORS = {"error": errno.EIO, "enospc": errno.ENOSPC}


class _Armed:
    """One failpoint: what to do, and how often it was reached."""

    def __init__(self, name: str, action: str) -> None:
        kind, _, number = action.partition(":")
        try:
            if kind not in ("kill", "sleep", *_ERRORS):
                raise ValueError
            self.seconds = float(number) if kind == "sleep" else 0.0
            self.turn = int(number) if number and kind != "sleep" else 0
        except ValueError:
            raise InputError(
                f"{VARIABLE}: {name}={action} is none of kill, error, enospc (or kill:N, ...) and sleep:SECONDS"
            ) from None
        self.name, self.kind = name, kind
        self.reached = 0
        self._lock = threading.Lock()

    def hit(self) -> None:
        with self._lock:
            self.reached += 1
            due = self.turn in (0, self.reached)
        if not due:
            return
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "sleep":
            time.sleep(self.seconds)
        else:
            number = _ERRORS[self.kind]
            raise OSError(number, f"{os.strerror(number)} (failpoint {self.name})")


def _parse(text: str) -> dict[str, _Armed]:
    pairs = [item.partition("=") for item in text.split(",") if item.strip()]
    return {name.strip(): _Armed(name.strip(), action.strip()) for name, _, action in pairs}


_armed = _parse(os.environ.get(VARIABLE, ""))


def reach(name: str) -> None:
    """Say that the code has come to this point; it goes on unless the point is armed."""
    if _armed and name in _armed:
        _armed[name].hit()


def arm(text: str) -> None:
    """Arm the failpoints of this process anew, in the words of the environment variable; empty text disarms all."""
    global _armed
    _armed = _parse(text)
