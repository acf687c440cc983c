"""The search for the least memory, over models that are made up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.errors import RateUnreachable
from millstream.tuning.planning import MEMORY_PRECISION, _least_memory

LEAST, MOST = 1_000_000, 500_000_000


def model(rate: Callable[[int], float]) -> Any:
    """One without a disk buffer that has this rate with some bytes of memory."""
    master = SimpleNamespace(statistics=SimpleNamespace(bytes=MOST))
    return SimpleNamespace(
        has_buffer=False,
        least_buffer=0,
        least_memory=LEAST,
        setting=SimpleNamespace(master=master),
        iteration=lambda memory, buffer: SimpleNamespace(rate=rate(memory)),
    )


@pytest.mark.parametrize("memory", [LEAST + 1, 1_500_000, 40_000_000, 333_000_000, MOST])
def test_the_least_memory_for_a_rate(memory: int) -> None:
    found = _least_memory("any", model(float), float(memory))
    assert memory <= found <= min(MOST, memory * (1 + MEMORY_PRECISION) + 1)


def test_the_least_of_all_does() -> None:
    assert _least_memory("any", model(float), LEAST / 2) == LEAST


def test_a_rate_that_falls_again_is_reached_before() -> None:
    """A window that leaves a cache of the processor: 20 MB are as fast as 60 MB, and 30 MB faster than 40 MB."""

    def rate(memory: int) -> float:
        return float(memory if memory <= 30_000_000 else max(30_000_000 - (memory - 30_000_000), memory // 3))

    found = _least_memory("any", model(rate), 20_000_000.0)
    assert 20_000_000 <= found <= 20_100_000


def test_the_highest_rate_need_not_be_that_of_the_most_memory() -> None:
    with pytest.raises(RateUnreachable, match="highest rate predicted is") as problem:
        _least_memory("any", model(lambda memory: 1_000.0 if memory < 100_000_000 else 10.0), 5_000.0)
    assert problem.value.highest == 1_000.0
