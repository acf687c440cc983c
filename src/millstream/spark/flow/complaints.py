"""What Spark complains about, for people."""

from __future__ import annotations

import re

from ...errors import MillstreamError

_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)


def said(error: Exception) -> str:
    """What Spark complains about, in one line without its codes."""
    if isinstance(error, MillstreamError):
        return error.message
    text = _STATE.sub("", _CLASS.sub("", str(error).strip()))
    return " ".join(text.splitlines()[0].split()).rstrip(";. ") if text else type(error).__name__
