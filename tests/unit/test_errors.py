"""Each kind of error is a MillstreamError and a builtin, and comes whole through pickling."""

from __future__ import annotations

import inspect
import pickle

import pytest

from millstream import errors
from millstream.errors import MillstreamError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, MillstreamError)]
NAMED = [kind for kind in KINDS if kind is not MillstreamError]


def test_there_are_kinds() -> None:
    assert len(NAMED) >= 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_keeps_kind_message_and_details(kind: type[MillstreamError], protocol: int) -> None:
    error = kind("segment 7 of part-3 is damaged", path="/data/products", least=4096)
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is kind
    assert str(copy) == "segment 7 of part-3 is damaged"
    assert copy.details == {"path": "/data/products", "least": 4096}
    assert (copy.path, copy.least) == ("/data/products", 4096)
    assert copy.retryable is kind.retryable


@pytest.mark.parametrize("kind", KINDS)
def test_message_is_shown_as_written(kind: type[MillstreamError]) -> None:
    # KeyError would show the repr of its argument, OSError its errno
    assert str(kind("no column 'price'; there are: id, name")) == "no column 'price'; there are: id, name"


@pytest.mark.parametrize("kind", NAMED)
def test_each_kind_is_also_a_builtin(kind: type[MillstreamError]) -> None:
    builtin = [base for base in kind.__mro__ if base.__module__ == "builtins"]
    assert set(builtin) - {Exception, BaseException, object}, f"{kind.__name__} is no builtin error"
    assert inspect.getdoc(kind)


def test_what_is_worth_trying_again_unchanged() -> None:
    assert {kind.__name__ for kind in KINDS if kind.retryable} == {
        "BlockDamaged",
        "BuildConflict",
        "PartDamaged",
        "PartsMissing",
        "StagingBusy",
        "StagingFull",
        "StagingUnavailable",
        "WarehouseUnavailable",
    }


def test_errors_are_caught_by_their_builtin() -> None:
    for kind, builtin in [
        (errors.InputError, ValueError),
        (errors.UnknownColumn, KeyError),
        (errors.KeyTypeMismatch, TypeError),
        (errors.MasterNotFound, FileNotFoundError),
        (errors.CorruptMaster, OSError),
        (errors.BudgetTooSmall, ValueError),
    ]:
        with pytest.raises(builtin):
            raise kind("here")
