"""Why a batch failed, in one line out of many."""

from __future__ import annotations

import pytest

from millstream.spark.flow.complaints import cause, said

TRACE = 'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n    process()\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            f"An exception was thrown from the Python worker:\n{TRACE}ValueError: no such key\n",
            "ValueError: no such key",
        ),
        (
            f"Job aborted:\n{TRACE}zlib.ZError: bad\n{TRACE}numpy.LinAlgError: worse\n\n\tat org.X\norg.XException: Y",
            "numpy.LinAlgError: worse",
        ),
        (f"{TRACE}millstream.errors.TableMismatch: the table is another one\n\nat x", "the table is another one"),
        ("[PATH_NOT_FOUND] Path does not exist: x\nmore", "[PATH_NOT_FOUND] Path does not exist: x"),
        ("", "RuntimeError"),
    ],
)
def test_causes(text: str, line: str) -> None:
    assert cause(RuntimeError(text)) == line


def test_columns_that_users_do_not_know_are_left_out() -> None:
    text = (
        "[UNRESOLVED] `idd` is unknown. Did you mean one of the following? [`id`, `__at`, `note`, `__row`]. SQLSTATE: 1"
    )
    assert said(RuntimeError(text)) == "`idd` is unknown. Did you mean one of the following? [`id`, `note`]"
