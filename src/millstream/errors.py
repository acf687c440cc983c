"""What can go wrong, by name: each error says what, where and what to do next."""

from __future__ import annotations

from typing import Any


class MillstreamError(Exception):
    """Base of all errors of Millstream; `retryable` says whether trying again unchanged can help.

    Each kind is also the builtin that fits it, so `except ValueError` and friends work, and every error
    survives pickling on its way from a worker to the driver.
    """

    retryable = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        for name, value in details.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.details)


def _rebuild(kind: type[MillstreamError], message: str, details: dict[str, Any]) -> MillstreamError:
    return kind(message, **details)


class InputError(MillstreamError, ValueError):
    """An argument has a value that cannot work."""


class UnknownColumn(MillstreamError, KeyError):
    """A column is named that is not there."""


class ColumnClash(MillstreamError, ValueError):
    """Two columns of the result would have the same name."""


class KeyTypeMismatch(MillstreamError, TypeError):
    """The key columns of stream and master cannot be compared."""


class UnsupportedType(MillstreamError, TypeError):
    """A column has a type that cannot be stored or used as a key."""


class BudgetTooSmall(MillstreamError, ValueError):
    """The memory budget is below the least that works; `least` is that number of bytes."""

    least: int


class MasterNotFound(MillstreamError, FileNotFoundError):
    """There is no master at this path, or not this version of it."""


class NotAMaster(MillstreamError, ValueError):
    """The path exists and holds something else."""


class FormatTooNew(MillstreamError, ValueError):
    """The master was written by a later Millstream."""


class CorruptMaster(MillstreamError, OSError):
    """A file of a master does not have the content that was written."""


class BuildConflict(MillstreamError, RuntimeError):
    """Somebody else builds or has built the same master at the same time."""

    retryable = True
