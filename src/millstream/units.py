"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

from .errors import InputError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(size: int | str, *, what: str = "memory") -> int:
    """`"256MB"`, `"1GiB"` or a plain number as a positive number of bytes."""
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise InputError(f"{what} must be a number of bytes or a text like '256MB', not {size!r}")
    if isinstance(size, int):
        value = size
    else:
        match = _SIZE.fullmatch(size)
        unit = _UNITS.get(match.group(2).lower()) if match else None
        if match is None or unit is None:
            raise InputError(f"{what} {size!r} is not a size; write bytes or a text like '256MB' or '1GiB'")
        value = int(float(match.group(1)) * unit)
    if value <= 0:
        raise InputError(f"{what} must be positive, not {size!r}")
    return value


def format_bytes(size: float) -> str:
    """A number of bytes for a reader: three digits and a decimal unit."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
