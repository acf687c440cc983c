"""Which algorithm to take, and why; and the curves that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..master import Master
from ..units import format_bytes, parse_bytes
from .factors import Factors
from .planning import Plan, best_buffer, model_of

EASY = 1.1  # `auto` needs no tuning: another algorithm must be this much better to be advised
POINTS = 24


@dataclass(frozen=True)
class BufferCurve:
    """The predicted rate over the disk buffer in bytes, with the optimum and the default marked."""

    algorithm: str
    memory: int
    buffers: tuple[int, ...]
    rates: tuple[float, ...]
    optimum: tuple[int, float]
    default: tuple[int, float]


def advice(plans: Mapping[str, Plan], *, skew: float) -> str:
    """One or two sentences: what to take and why."""
    if not plans:
        return "No algorithm can do this: give more memory, or a lower rate."
    asked = next(iter(plans.values())).asked_rate is not None

    def worth(name: str) -> float:
        plan = plans[name]
        return (1 / plan.memory if asked else plan.rate) * (EASY if name == "auto" else 1.0)

    best = max(plans, key=worth)
    taken = plans[best]
    what = (
        f"Take {best} with {format_bytes(taken.memory)} for each task: it sustains {taken.rate:,.0f} tuples/s"
        if asked
        else f"Take {best}: {taken.rate:,.0f} tuples/s are predicted with {format_bytes(taken.memory)}"
    )
    return f"{what}. {_why(best, taken, skew)}"


def _why(name: str, plan: Plan, skew: float) -> str:
    reads = sum(seconds for term, seconds in plan.c_loop.items() if term.startswith("c_I/O"))
    share = reads / max(1e-12, sum(plan.c_loop.values()))
    parts = []
    if plan.hits > 0.2:
        parts.append(f"memory serves {plan.hits:.0%} of the tuples without a read")
    elif skew < 0.3:
        parts.append("with a flat stream a cache earns little, and memory goes to tuples that share their reads")
    parts.append(f"{share:.0%} of the time is for reading R")
    if plan.loss < 0.03 and plan.default_buffer is not None:
        parts.append(f"the default disk buffer does as well (it loses {plan.loss:.1%})")
    elif plan.default_buffer is not None and "disk_buffer" in plan.parameters:
        parts.append(f"give disk_buffer={plan.parameters['disk_buffer']}, the default loses {plan.loss:.1%}")
    if share > 0.5:
        parts.append("more memory or a faster disk would help most")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def curves(
    algorithms: Sequence[str],
    master: Master,
    factors: Factors,
    *,
    memory: int | str | Mapping[str, int],
    skew: Any = 0.0,
    how: str = "inner",
) -> list[BufferCurve]:
    """The rate over the disk buffer for algorithms that have one; `memory` is one for all, or one for each."""
    found = []
    for name in algorithms:
        model = model_of(name, master, factors, skew=skew, how=how)
        if not model.has_buffer:
            continue
        budget = memory[name] if isinstance(memory, Mapping) else parse_bytes(memory)
        low, high = model.least_buffer, model.largest_buffer(budget)
        buffers = tuple(np.unique(np.geomspace(low, max(low + 1, high), POINTS).astype(int)).tolist())
        best = best_buffer(model, budget)
        default = model.default_buffer(budget)
        found.append(
            BufferCurve(
                algorithm=name,
                memory=budget,
                buffers=buffers,
                rates=tuple(model.iteration(budget, one).rate for one in buffers),
                optimum=(best, model.iteration(budget, best).rate),
                default=(default, model.iteration(budget, default).rate),
            )
        )
    return found
