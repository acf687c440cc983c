"""Semi-stream joins: Arrow record batches in, joined batches out, inside a memory budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa

from ..errors import InputError
from ..master import Master, ParquetScan
from .ameshjoin import AdaptiveMeshJoin
from .auto import AutoJoin
from .base import Operator
from .cachejoin import CacheJoin
from .conditions import Condition, between, compare, predicate
from .hotfirst import HotFirstJoin
from .hybridjoin import HybridJoin
from .inlj import IndexNestedLoopJoin
from .ledger import Ledger
from .meshjoin import MeshJoin
from .moij import Moij
from .plan import HOWS, JoinPlan, On, Relation, check_how, master_columns
from .rmeshjoin import ReducedMeshJoin
from .scanjoin import ScanJoin
from .ssbj import SemiStreamBalancedJoin
from .xhybridjoin import XHybridJoin

_OPERATORS: dict[str, type[Operator]] = {
    operator.name: operator
    for operator in (
        AutoJoin,
        Moij,
        CacheJoin,
        XHybridJoin,
        HybridJoin,
        IndexNestedLoopJoin,
        MeshJoin,
        AdaptiveMeshJoin,
        ReducedMeshJoin,
        SemiStreamBalancedJoin,
    )
}
ALGORITHMS: tuple[str, ...] = tuple(_OPERATORS)
SCANS: tuple[str, ...] = tuple(name for name, operator in _OPERATORS.items() if issubclass(operator, ScanJoin))


def chosen(
    algorithm: str, master: Relation, *, condition: object = None, ordered: bool = False, on: On | None = ""
) -> str:
    """The algorithm that runs: the one named, where "auto" is meshjoin for what only a scan can do.

    Refuses an index join on unprepared Parquet, with a condition, or for output in stream order.
    """
    if algorithm not in _OPERATORS:
        raise InputError(f"unknown algorithm {algorithm!r}; choose one of {', '.join(ALGORITHMS)}")
    reason = None
    if isinstance(master, ParquetScan):
        reason = f"{master.path} is unprepared Parquet, which has no index"
    elif condition is not None or on is None:
        reason = "a condition beyond the equality of keys needs a scan of R"
    elif ordered:
        reason = "output in the order of the stream needs a scan of R"
    if reason is None or algorithm in SCANS:
        return algorithm
    if algorithm == "auto":
        return MeshJoin.name
    hint = " or build a master of it with millstream.build_master" if isinstance(master, ParquetScan) else ""
    raise InputError(f"{algorithm} cannot do this: {reason}; take one of {', '.join(SCANS)}{hint}")


def _operator(algorithm: str, master: Relation) -> type[Operator]:
    """What runs an algorithm on a relation."""
    by_frequency = isinstance(master, Master) and master.layout == "frequency"
    return HotFirstJoin if algorithm == "auto" and by_frequency else _OPERATORS[algorithm]


def create(
    algorithm: str,
    master: Relation,
    *,
    on: On | None = None,
    how: str = "inner",
    memory: int | str = "256MB",
    columns: Sequence[str] | None = None,
    **options: Any,
) -> Operator:
    """An operator that joins a stream with a master inside a memory budget; `options` are the algorithm's own."""
    algorithm = chosen(
        algorithm, master, condition=options.get("condition"), ordered=options.get("ordered", False), on=on
    )
    operator = _operator(algorithm, master)
    if not issubclass(operator, ScanJoin):
        options = {name: value for name, value in options.items() if name not in ("condition", "ordered")}
    for option in options:
        if option not in operator.options:
            known = ", ".join(operator.options) or "none"
            raise InputError(f"{algorithm} has no option {option!r}; its options: {known}")
    return operator(cast(Master, master), on=on, how=how, memory=memory, columns=columns, **options)


def output_schema(
    stream: pa.Schema,
    master: Relation,
    *,
    on: On | None = None,
    how: str = "inner",
    columns: Sequence[str] | None = None,
) -> pa.Schema:
    """The schema of the result; raises what is wrong with the arguments."""
    return JoinPlan.of(stream, master, on=on, how=how, columns=columns).output


def least_memory(
    algorithm: str,
    master: Relation,
    *,
    on: On | None = None,
    how: str = "inner",
    columns: Sequence[str] | None = None,
    condition: Condition | Callable[..., Any] | None = None,
) -> int:
    """The smallest budget that works, in bytes."""
    check_how(how)
    algorithm = chosen(algorithm, master, condition=condition, on=on)
    brought = master_columns(master, columns, on=on) if how in ("inner", "left") else []
    return _operator(algorithm, master).least_memory(cast(Master, master), brought)


__all__ = [
    "ALGORITHMS",
    "HOWS",
    "SCANS",
    "Condition",
    "Ledger",
    "Operator",
    "between",
    "chosen",
    "compare",
    "create",
    "least_memory",
    "output_schema",
    "predicate",
]
