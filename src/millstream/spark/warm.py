"""Join operators that a Python worker keeps from task to task, with their caches of master rows.

A worker runs one task at a time. A task takes its operator out and gives it back after a clean end; an operator whose
task failed or was cut short is never given back, so rows held in it cannot turn up in another batch.
Invariant: at most one operator of a join is kept, that of the version it was used with last, and at most `KEPT` in all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import pyarrow as pa

from ..joins import Operator
from .workers import stir

KEPT = 2  # joins for which one worker stays warm; where each join has workers of its own there is never a second

_kept: dict[Hashable, tuple[int, Operator]] = {}


def take(join: Hashable, version: int, make: Callable[[], Operator]) -> Operator:
    """The warm operator of this join and version, or a new one once the old one's memory is free."""
    found = _kept.pop(join, None)
    if found is not None and found[0] == version:
        return found[1]
    if found is not None:
        drop(found[1])
        del found
    while len(_kept) >= KEPT:
        drop(_kept.pop(next(iter(_kept)))[1])
    return make()


def give_back(join: Hashable, version: int, operator: Operator) -> None:
    """Keep an operator that holds no rows for the next task."""
    _kept[join] = (version, operator)


def drop(operator: Operator) -> None:
    """Close an operator; its memory goes back to the system once the caller lets go of it."""
    operator.close()
    stir()
    pa.default_memory_pool().release_unused()
