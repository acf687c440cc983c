"""Why a batch failed, in one line out of many."""

from __future__ import annotations

import pytest

from millstream.spark.flow.complaints import cause

TRACE = 'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n    process()\n'


@pytest.mark.parametrize(
    ("text", "said"),
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
def test_causes(text: str, said: str) -> None:
    assert cause(RuntimeError(text)) == said
