"""What a Python worker sets aside from garbage collection, and takes back."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from millstream.spark import workers


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(workers, "_tasks", 0)
    gc.unfreeze()  # tasks that other tests have run in this process
    yield
    gc.unfreeze()


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_what_is_there_at_the_second_task_is_set_aside() -> None:
    workers.settle()
    assert gc.get_freeze_count() == 0
    workers.settle()
    aside = gc.get_freeze_count()
    assert aside > 10_000
    workers.settle()  # the third: what came in between stays in the collector's sight
    assert gc.get_freeze_count() <= aside
    passing = _Cycle()
    gone = weakref.ref(passing)
    del passing
    gc.collect()
    assert gone() is None


def test_what_goes_though_it_was_to_stay_is_found_again() -> None:
    staying = _Cycle()
    gone = weakref.ref(staying)
    workers.settle()
    workers.settle()
    del staying
    gc.collect()
    assert gone() is not None
    workers.stir()
    gc.collect()
    assert gone() is None
    workers.settle()
    workers.settle()
    assert gc.get_freeze_count() > 10_000
