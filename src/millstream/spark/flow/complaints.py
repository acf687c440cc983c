"""What Spark complains about, for people."""

from __future__ import annotations

import re

from ...errors import MillstreamError

_CLASS = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_NAMES = re.compile(r"\[(`[^\]]*`)\]")
_RAISED = re.compile(r"^(?!java\.|org\.|scala\.|py4j\.)[A-Za-z_][\w.]*(?:Error|Exception)(?::.*)?$", re.MULTILINE)
_STATE = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)


def said(error: Exception) -> str:
    """What Spark complains about, in one line without its codes."""
    if isinstance(error, MillstreamError):
        return error.message
    text = _NAMES.sub(_without_ours, _STATE.sub("", _CLASS.sub("", str(error).strip())))
    return " ".join(text.splitlines()[0].split()).rstrip(";. ") if text else type(error).__name__


def _without_ours(names: re.Match[str]) -> str:
    """A list of columns without those that travel with the rows unseen."""
    return f"[{', '.join(name for name in names[1].split(', ') if not name.startswith('`__'))}]"


def cause(error: BaseException) -> str:
    """The line that says why a query or one of its batches failed, out of what Spark wraps around it."""
    text = str(error).strip()
    ours = re.findall(r"^\s*millstream\.errors\.\w+: (.*)$", text, re.MULTILINE)
    if ours:
        return str(ours[-1]).strip()
    lines = text.splitlines()
    raised = _RAISED.findall(text)
    if raised and lines[0].rstrip().endswith(":"):  # what follows is a traceback of Python
        return str(raised[-1])
    return lines[0].strip() if lines else type(error).__name__
