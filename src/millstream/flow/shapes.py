"""What the value of an option may look like: each shape takes what was written and gives it back in its one form.

A shape raises `ValueError` with half a sentence that fits behind the option's name ("must be ...").
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import InputError, NameRefused
from ..units import parse_bytes
from ..warehouse.spec import check_table_name

Shape = Callable[[Any], Any]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
PLAIN = str | int | float | bool


def text(value: Any) -> str:
    """Any text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a text, not {value!r}")
    return value


def name(value: Any) -> str:
    """A name of an activity, a branch, a table."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(f"must be a name of letters, digits, _ and - that begins with a letter, not {value!r}")
    return value


def table(value: Any) -> str:
    """A name that the warehouse takes for a table."""
    try:
        return check_table_name(value)
    except NameRefused as problem:
        raise ValueError(f"is no name of a table: {problem}") from None


def reference(value: Any) -> str:
    """The name of an activity, or `activity.branch`; nothing means the one before."""
    if value == "":
        return ""
    parts = value.split(".") if isinstance(value, str) else []
    if not 1 <= len(parts) <= 2 or not all(NAME.fullmatch(part) for part in parts):
        raise ValueError(f"must be the name of an activity, or activity.branch, not {value!r}")
    return str(value)


def expression(value: Any) -> str:
    """An expression of Spark SQL; a number or a truth value is one too."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return text(value).strip()


def columns(value: Any) -> tuple[str, ...]:
    """One column or a list of them, none twice."""
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, Sequence) or not given or not all(isinstance(one, str) and one for one in given):
        raise ValueError(f"must be a column or a list of columns, not {value!r}")
    twice = sorted({one for one in given if list(given).count(one) > 1})
    if twice:
        raise ValueError(f"names {', '.join(twice)} twice")
    return tuple(given)


def expressions(value: Any) -> dict[str, str]:
    """Columns with an expression, or a type, or a condition for each."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"must be pairs like 'column: expression', not {value!r}")
    return {_column(key): expression(one) for key, one in value.items()}


def renaming(value: Any) -> dict[str, str]:
    """Old names with their new ones."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"must be pairs like 'old: new', not {value!r}")
    return {_column(key): _column(one) for key, one in value.items()}


def pairing(value: Any) -> dict[str, str]:
    """Columns of the stream with the key columns of a master: a name, a list of names, or {stream: master}."""
    if isinstance(value, Mapping):
        return renaming(value)
    return {one: one for one in columns(value)}


def conditions(value: Any) -> dict[str, str]:
    """Branches with a condition for each."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"must be pairs like 'branch: condition', not {value!r}")
    return {name(key): expression(one) for key, one in value.items()}


def names(value: Any) -> tuple[str, ...]:
    """A list of at least two names."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) < 2:
        raise ValueError(f"must be a list of at least two names, not {value!r}")
    found = tuple(name(one) for one in value)
    if len(set(found)) != len(found):
        raise ValueError(f"has a name twice: {', '.join(found)}")
    return found


def values(value: Any) -> tuple[PLAIN, ...]:
    """A list of plain values of one kind."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise ValueError(f"must be a list of values, not {value!r}")
    if not all(isinstance(one, PLAIN) for one in value):
        raise ValueError("must hold numbers, texts or truth values only")
    return tuple(value)


def bound(value: Any) -> PLAIN:
    """One end of a range."""
    if not isinstance(value, PLAIN) or (isinstance(value, float) and math.isnan(value)):
        raise ValueError(f"must be a number or a text, not {value!r}")
    return value


def pattern(value: Any) -> str:
    """A regular expression."""
    try:
        re.compile(text(value))
    except re.error as problem:
        raise ValueError(f"is not a regular expression: {problem}") from None
    return str(value)


def size(value: Any) -> int | str:
    """A number of bytes, or a text like 64MB."""
    try:
        parse_bytes(value, what="it")
    except InputError as problem:
        raise ValueError(f"is no size: {problem}") from None
    return value


def positive(value: Any) -> int:
    """A whole number above zero."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"must be a whole number above zero, not {value!r}")
    return value


def flag(value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value!r}")
    return value


def settings(value: Any) -> dict[str, str]:
    """Names with plain values, as options of a Spark source."""
    if not isinstance(value, Mapping) or not all(isinstance(one, PLAIN) for one in value.values()):
        raise ValueError(f"must be pairs like 'option: value', not {value!r}")
    return {str(key): expression(one) if not isinstance(one, str) else one for key, one in value.items()}


def one_of(*choices: str) -> Shape:
    """One of some words."""

    def choice(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, not {value!r}")
        return str(value)

    return choice


def _column(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"must have column names, not {value!r}")
    return value
