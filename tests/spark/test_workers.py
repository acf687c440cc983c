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


@pytest.mark.parametrize("by_user", [None, "environment", "session"])
def test_workers_of_joins_have_huge_pages_unless_the_user_says_otherwise(spark, monkeypatch, by_user):
    environment = spark.sparkContext.environment
    monkeypatch.delenv(workers.TUNABLES, raising=False)
    if by_user == "environment":
        monkeypatch.setenv(workers.TUNABLES, "glibc.malloc.check=1")
    elif by_user == "session":
        monkeypatch.setitem(environment, workers.TUNABLES, "glibc.malloc.check=1")
    before = dict(environment)
    with workers.own_workers(spark, "some join"):
        inside = dict(environment)
    assert environment == before
    assert inside.get(workers.TUNABLES) == {None: workers.HUGE_PAGES, "session": "glibc.malloc.check=1"}.get(by_user)
