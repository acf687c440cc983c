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


class FormatTooOld(MillstreamError, ValueError):
    """The master was written by an earlier Millstream, and its format is no longer read."""


class CorruptMaster(MillstreamError, OSError):
    """A file of a master does not have the content that was written."""


class BuildConflict(MillstreamError, RuntimeError):
    """Somebody else builds or has built the same master at the same time."""

    retryable = True


class NameRefused(MillstreamError, ValueError):
    """A stream, source, flow or column has a name outside the strict pattern."""


class SchemaRefused(MillstreamError, ValueError):
    """The columns offered do not go with those of the stream; `difference` lists where."""

    difference: list[str]


class BlockRefused(MillstreamError, ValueError):
    """A block is not what its format asks for; sending it again unchanged cannot help."""


class BlockTooLarge(BlockRefused):
    """A block is above a limit on its size, its expanded size or the ratio of both."""


class BlockDamaged(MillstreamError, OSError):
    """A block arrived with other bytes than were sent; send it again."""

    retryable = True


class RecordGap(MillstreamError, ValueError):
    """A block begins beyond the record that is due; `expected` is the number of that one."""

    expected: int


class UnknownStream(MillstreamError, LookupError):
    """Staging holds no stream of this name."""


class AccessDenied(MillstreamError, PermissionError):
    """The token is missing, wrong, or that of another source."""


class StagingUnavailable(MillstreamError, ConnectionError):
    """Staging cannot be reached, or the connection was lost; what is not acknowledged must be sent again."""

    retryable = True


class StagingFull(MillstreamError, OSError):
    """The disk of staging, or the limit of a stream, leaves no room now; it goes on when there is some."""

    retryable = True


class StagingBusy(MillstreamError, RuntimeError):
    """Staging serves as many as it is allowed to; try again later."""

    retryable = True


class StagingFailed(MillstreamError, OSError):
    """Staging could not make blocks durable and has stopped; nothing since was acknowledged."""


class StagingLocked(MillstreamError, RuntimeError):
    """Another process serves this staging directory."""


class CorruptLog(MillstreamError, OSError):
    """A stored block does not have the content that was written; `file` and `offset` say where."""

    file: str
    offset: int


class PositionGone(MillstreamError, LookupError):
    """A reader asks for a position of a stream that retention has dropped, or that is not in this log."""


class TableMismatch(MillstreamError, TypeError):
    """A target table is another one than the flow wants; `differences` says in what."""

    differences: list[str]


class UnknownTable(MillstreamError, LookupError):
    """The warehouse has no target table of this name."""


class PartRefused(MillstreamError, ValueError):
    """A part cannot be taken as it is: malformed, above a limit, or with columns that its table does not have."""


class PartDamaged(MillstreamError, OSError):
    """A part arrived, or was stored, with other bytes than were sent; send it again."""

    retryable = True


class PartsMissing(MillstreamError, LookupError):
    """A commit names parts that the warehouse does not hold (any more); send the batch again."""

    retryable = True


class BatchConflict(MillstreamError, RuntimeError):
    """A batch with this number was loaded by another query under the same flow name."""


class QueryRefused(MillstreamError, ValueError):
    """A query is not a single reading statement, does not work, or passes a limit."""


class WarehouseUnavailable(MillstreamError, ConnectionError):
    """The warehouse or its database cannot be reached, is overloaded or has no room; nothing was half done."""

    retryable = True


class FlowInvalid(MillstreamError, ValueError):
    """A flow has mistakes; `problems` has each with its line."""


class CheckpointRefused(MillstreamError, RuntimeError):
    """A flow cannot go on from this checkpoint: it is another flow's, lost, damaged, or in use."""


class Fenced(MillstreamError, RuntimeError):
    """Another run of the flow has taken the checkpoint over; this one must stop."""


class SpoolInUse(MillstreamError, RuntimeError):
    """Another process writes to the same spool."""


class RegulatorClosed(MillstreamError, RuntimeError):
    """A record was given to a regulator that is closed, or that belongs to the parent of this process."""


class CaptureFailed(MillstreamError, RuntimeError):
    """A file or database cannot be captured as asked; the message says what to change."""


class CorruptState(MillstreamError, OSError):
    """What a flow remembers does not have the content that was written; `file` and `offset` say where."""

    file: str
    offset: int


class PredicateError(MillstreamError, ValueError):
    """A join condition given as a function did not return one boolean for each pair of rows."""


class ForeignCalibration(MillstreamError, ValueError):
    """Cost factors were measured on another master, another version of it or another machine, or cannot be read."""


class RateUnreachable(MillstreamError, ValueError):
    """No memory up to the size of R sustains the rate; `highest` is the highest rate that is predicted."""

    highest: float
