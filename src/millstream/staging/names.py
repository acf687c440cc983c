"""Names that staging accepts: plain ASCII, short, never a path and never in need of quotes."""

from __future__ import annotations

import re

from ..errors import NameRefused

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def check_name(name: object, *, what: str) -> str:
    """The name of a stream, source, incarnation or flow, if it is one."""
    return _check(name, _NAME, what, "letters, digits, '_', '-' and '.', not '-' or '.' first")


def check_column(name: object, *, what: str = "column") -> str:
    """The name of a column, if it is one."""
    return _check(name, _COLUMN, what, "letters, digits and '_', no digit first")


def _check(name: object, pattern: re.Pattern[str], what: str, rule: str) -> str:
    if isinstance(name, str) and pattern.fullmatch(name):
        return name
    shown = repr(name)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}... ({len(shown)} characters)"
    raise NameRefused(f"{shown} cannot name a {what}: use at most 128 characters, {rule}")
