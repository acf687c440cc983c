"""`plan`: the parameters with the highest rate for a memory, or with the least memory for a rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import InputError, RateUnreachable
from ..master import Master
from ..units import format_bytes, parse_bytes
from .catalogue import MODELS, model_class
from .factors import Factors, load
from .models import Iteration, Model
from .setting import Setting
from .skew import estimate_skew

MEASURED = 1.25  # times the largest disk buffer that is worth a look: what is predicted there is still near
WALK = 12  # steps, each to twice or half the size at most
GRID = 14  # disk buffers that are looked at first
REFINEMENTS = 2
ALIKE = 0.97  # of the highest rate predicted: no model can tell such rates apart
MEMORY_PRECISION = 0.004
COARSE, FINE = 1.25, 1.03  # from one memory that is looked at to the next


@dataclass(frozen=True)
class Plan:
    """What a budget buys. `parameters` are options for `millstream.joins.create`; `split` is bytes by component.

    `rate` is mu, the tuples a second that are predicted; `c_loop` the seconds of an iteration by term, `tuples` those
    that it processes, `hits` the share of them that memory serves. `default_buffer` is the disk buffer that needs no
    tuning, which the plan has too unless another is clearly better; `default_rate` is what is predicted with it,
    `best_rate` with the best one, `loss` the distance between them.
    """

    algorithm: str
    memory: int
    rate: float
    parameters: dict[str, int]
    split: dict[str, int]
    tuples: float
    hits: float
    c_loop: dict[str, float]
    skew: float
    how: str
    default_buffer: int | None = None
    default_rate: float | None = None
    best_rate: float | None = None
    asked_rate: float | None = field(default=None)

    @property
    def loss(self) -> float:
        """How far the default disk buffer falls behind the optimum, as a share."""
        if self.default_rate is None or self.best_rate is None:
            return 0.0
        return max(0.0, 1 - self.default_rate / self.best_rate)


def plan(
    algorithm: str,
    master: Master,
    factors: Factors | None = None,
    *,
    memory: int | str | None = None,
    rate: float | None = None,
    skew: Any = 0.0,
    how: str = "inner",
) -> Plan:
    """The parameters with the highest service rate within `memory`, or with the least memory that sustains `rate`.

    `skew` is the exponent of Zipf's law that the keys of the stream follow (0, a flat stream, is the worst case), or a
    sample of the stream to estimate it from. Without `factors` the stored ones of this master are taken.
    """
    if (memory is None) == (rate is None):
        raise InputError("plan needs either memory= or rate=")
    model = model_of(algorithm, master, factors, skew=skew, how=how)
    if memory is not None:
        return _made(algorithm, model, parse_bytes(memory))
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise InputError(f"rate must be a positive number of tuples a second, not {rate!r}")
    return _made(algorithm, model, _least_memory(algorithm, model, float(rate)), asked=float(rate))


def model_of(algorithm: str, master: Master, factors: Factors | None, *, skew: Any = 0.0, how: str = "inner") -> Model:
    """The cost model of an algorithm on a master; refuses factors of another one."""
    if algorithm not in MODELS:
        raise InputError(f"unknown algorithm {algorithm!r}; choose one of {', '.join(MODELS)}")
    if factors is None:
        factors = load(master)
    else:
        factors.check(master)
    exponent = float(skew) if isinstance(skew, int | float) else estimate_skew(skew, master=master)
    return model_class(algorithm, master)(Setting(master, factors, exponent, how))


def best_buffer(model: Model, memory: int, near: int | None = None) -> int:
    """The disk buffer with the highest rate. `near` is one that is known to be about right."""
    if not model.has_buffer:
        return model.least_buffer
    least, most = model.least_buffer, model.largest_buffer(memory)
    if most <= least:
        return least
    known: dict[int, float] = {}

    def rate(buffer: float) -> float:
        size = int(buffer)
        if size not in known:
            known[size] = model.iteration(memory, size).rate
        return known[size]

    if near is None or not model.one_peak:
        grid = np.geomspace(least, most, GRID)
    else:
        grid = np.clip(np.geomspace(near / 2, near * 2, 5), least, most)
        for _ in range(WALK):  # uphill until the best one lies inside
            best = max(grid, key=rate)
            if best not in (grid[0], grid[-1]) or best in (least, most):
                break
            grid = np.clip(grid * (best / grid[2]), least, most)
    for _ in range(REFINEMENTS):
        best = int(np.argmax([rate(buffer) for buffer in grid]))
        grid = np.geomspace(grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)], 5)
    for buffer in grid:
        rate(buffer)
    return max(known, key=known.__getitem__)


def chosen_buffer(model: Model, memory: int, best: int) -> int:
    """The disk buffer that a plan has: the default one, unless that is far from what was measured or the `best` is
    clearly better.
    """
    if not model.has_buffer:
        return best
    default = model.default_buffer(memory)
    if default > MEASURED * model.largest_buffer(memory):
        return best
    enough = ALIKE * model.iteration(memory, best).rate
    return default if model.iteration(memory, default).rate >= enough else best


def _made(algorithm: str, model: Model, memory: int, asked: float | None = None) -> Plan:
    model.iteration(memory, model.least_buffer)  # refuses a memory that is too small
    best = best_buffer(model, memory)
    found: Iteration = model.iteration(memory, chosen_buffer(model, memory, best))
    default = model.default_buffer(memory) if model.has_buffer else None
    default_rate = None
    if default is not None:
        default_rate = model.iteration(memory, default).rate
    return Plan(
        algorithm=algorithm,
        memory=memory,
        rate=found.rate,
        parameters=found.parameters,
        split=found.memory,
        tuples=found.tuples,
        hits=found.hits,
        c_loop=found.seconds,
        skew=model.setting.skew,
        how=model.setting.how,
        default_buffer=default,
        default_rate=default_rate,
        best_rate=model.iteration(memory, best).rate if model.has_buffer else None,
        asked_rate=asked,
    )


def _least_memory(algorithm: str, model: Model, rate: float) -> int:
    """The least memory whose best rate is `rate`.

    More memory can be slower: what waits leaves a cache of the processor, or a turn has one read more. So the first of
    growing memories that is fast enough is looked for, and then bisected.
    """
    near: int | None = None
    highest = 0.0

    def reached(memory: int) -> float:
        nonlocal near, highest
        near = best_buffer(model, memory, near)
        found = model.iteration(memory, chosen_buffer(model, memory, near)).rate
        highest = max(highest, found)
        return found

    def walk(low: int, high: int, step: float) -> tuple[int, int] | None:
        """The first step that is fast enough, from the memory before it; None if there is none."""
        while low < high:
            following = min(high, int(step * low) + 1)
            if reached(following) >= rate:
                return low, following
            low = following
        return None

    low = model.least_memory
    most = max(low, model.setting.master.statistics.bytes)
    if reached(low) >= rate:
        return low
    around = walk(low, most, COARSE)
    if around is None:
        raise RateUnreachable(
            f"no memory up to the size of R ({format_bytes(most)}) sustains {rate:,.0f} tuples/s with {algorithm}: the "
            f"highest rate predicted is {highest:,.0f} tuples/s; use another algorithm or more tasks",
            highest=highest,
        )
    low, high = walk(*around, FINE) or around
    while high > low * (1 + MEMORY_PRECISION):
        middle = (low + high) // 2
        if reached(middle) >= rate:
            high = middle
        else:
            low = middle
    return high
