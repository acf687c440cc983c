"""Semi-stream joins: Arrow record batches in, joined batches out, inside a memory budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ..errors import InputError
from ..master import Master
from .auto import AutoJoin
from .base import Operator
from .cachejoin import CacheJoin
from .hybridjoin import HybridJoin
from .inlj import IndexNestedLoopJoin
from .ledger import Ledger
from .moij import Moij
from .plan import HOWS, JoinPlan, On, check_how, master_columns
from .xhybridjoin import XHybridJoin

_OPERATORS: dict[str, type[Operator]] = {
    operator.name: operator for operator in (AutoJoin, Moij, CacheJoin, XHybridJoin, HybridJoin, IndexNestedLoopJoin)
}
ALGORITHMS: tuple[str, ...] = tuple(_OPERATORS)


def _operator(algorithm: str) -> type[Operator]:
    if algorithm not in _OPERATORS:
        raise InputError(f"unknown algorithm {algorithm!r}; choose one of {', '.join(ALGORITHMS)}")
    return _OPERATORS[algorithm]


def create(
    algorithm: str,
    master: Master,
    *,
    on: On,
    how: str = "inner",
    memory: int | str = "256MB",
    columns: Sequence[str] | None = None,
    **options: Any,
) -> Operator:
    """An operator that joins a stream with a master inside a memory budget; `options` are the algorithm's own."""
    operator = _operator(algorithm)
    for option in options:
        if option not in operator.options:
            known = ", ".join(operator.options) or "none"
            raise InputError(f"{algorithm} has no option {option!r}; its options: {known}")
    return operator(master, on=on, how=how, memory=memory, columns=columns, **options)


def output_schema(
    stream: pa.Schema, master: Master, *, on: On, how: str = "inner", columns: Sequence[str] | None = None
) -> pa.Schema:
    """The schema of the result; raises what is wrong with the arguments."""
    return JoinPlan.of(stream, master, on=on, how=how, columns=columns).output


def least_memory(
    algorithm: str, master: Master, *, on: On, how: str = "inner", columns: Sequence[str] | None = None
) -> int:
    """The smallest budget that works, in bytes."""
    check_how(how)
    brought = master_columns(master, columns) if how in ("inner", "left") else []
    return _operator(algorithm).least_memory(master, brought)


__all__ = ["ALGORITHMS", "HOWS", "Ledger", "Operator", "create", "least_memory", "output_schema"]
