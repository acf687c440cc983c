"""A flow as few passes over the data: segments, each of which one Spark job carries from its head to all its outlets.

```
 source -> filter -> derive -> replicate -+-> target                  segment 0: one DataFrame, one job
                                          +-> select -> aggregate ....   outlet of segment 0, head of segment 1
                                                           +-> having -> target     segment 1: one job
```
Inside a segment no row is dropped or doubled. Where it branches, the columns are put aside as a struct and each branch
starts from them anew, so that what comes out is one wide row: for each outlet k a struct `__out_k` (NULL if the row
does not get there), and for each stretch between branchings a struct `__rej_k` for the row it has rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ...errors import MillstreamError
from ...flow.nodes import SYSTEM_COLUMNS, Aggregate, Node, ParquetFiles, Route, Table, Target
from ..types import column
from .context import Context
from .rows import BRANCH, apply
from .sets import is_set
from .state import AT, GONE, MARKS, ROW, WHY, alive, live_columns

OUT, REJECTED, _ASIDE = "__out_", "__rej_", "__aside_"
_ALIVE = "__alive"

Complain = Callable[[Node, DataFrame, Exception], DataFrame]


@dataclass(frozen=True)
class Outlet:
    """An end of a segment: a target, or an activity that is the head of the next segment."""

    number: int
    node: Node

    @property
    def column(self) -> str:
        return f"{OUT}{self.number}"

    @property
    def is_target(self) -> bool:
        return isinstance(self.node, Target)


@dataclass
class Woven:
    """A segment: its DataFrame of wide rows, its outlets, and how many stretches have rejects."""

    df: DataFrame
    outlets: list[Outlet] = field(default_factory=list)
    stretches: int = 0


def weave(df: DataFrame, head: Node, context: Context, *, problem: Complain | None = None) -> Woven:
    """The segment that begins behind `head`, whose rows are the marked rows of `df`.

    problem: what to do about an activity that Spark refuses: gives the DataFrame to go on with.
    """
    woven = Woven(df)
    weaver = _Weaver(context, woven, problem)
    woven.df = weaver.behind(df, head)
    return woven


class _Weaver:
    def __init__(self, context: Context, woven: Woven, problem: Complain | None) -> None:
        self.context, self.woven, self.problem = context, woven, problem
        self._asides = 0
        self._rejecting = True  # whether the present stretch may have rejects; the head of a segment may

    def behind(self, df: DataFrame, node: Node) -> DataFrame:
        """Whatever comes behind an activity that was done."""
        graph = self.context.graph
        while node.outputs == ("",):
            (node,) = graph.children(node.name)
            if self._is_end(node):
                df = self._end(self._rejects(df), node, wanted=alive())
                return df.select(*self._carried(df))
            df = self._apply(df, node)
        return self._branches(df, node)

    def _apply(self, df: DataFrame, node: Node) -> DataFrame:
        self._rejecting = self._rejecting or node.rejecting
        if self.problem is None:
            return apply(node, df, self.context)
        try:
            return apply(node, df, self.context)
        except (PySparkException, MillstreamError) as error:
            return self.problem(node, df, error)

    def _branches(self, df: DataFrame, node: Node) -> DataFrame:
        df = self._rejects(df)
        outputs = list(enumerate(node.outputs))
        children = [(position, self.context.graph.children(node.name, output)[0]) for position, output in outputs]
        # ends take what they want from the columns as they are; only a branch with activities needs them put aside
        for position, child in children:
            if self._is_end(child):
                df = self._end(df, child, wanted=alive() & self._wanted(node, F.col(BRANCH), position))
        longer = [(position, child) for position, child in children if not self._is_end(child)]
        return self._long_branches(df, node, longer) if longer else df.select(*self._carried(df))

    def _long_branches(self, df: DataFrame, node: Node, children: list[tuple[int, Node]]) -> DataFrame:
        names = live_columns(df)
        aside = f"{_ASIDE}{self._asides}"
        self._asides += 1
        branch = [F.col(BRANCH)] if isinstance(node, Route) else []
        kept = [alive().alias(_ALIVE), *branch, *map(column, names)]
        df = df.select(*self._carried(df), F.struct(*kept).alias(aside))
        for position, child in children:
            # rejects of the stretch before are noted already: to the branches they are gone
            here = F.col(aside)[_ALIVE] & self._wanted(node, F.col(aside)[BRANCH], position)
            none = F.lit(None).cast("string")
            df = df.select(
                *[column(name) for name in df.columns],
                *[F.col(aside).getField(name).alias(name) for name in names],
                F.when(~here, F.lit(GONE)).alias(AT),
                none.alias(WHY),
                none.alias(ROW),
            )
            df = self.behind(self._apply(df, child), child)
        return df.drop(aside)

    def _wanted(self, node: Node, branch: Column, position: int) -> Column:
        return branch == position if isinstance(node, Route) else F.lit(True)

    def _is_end(self, node: Node) -> bool:
        return isinstance(node, Target) or is_set(node, self.context)

    def _carried(self, df: DataFrame) -> list[Column]:
        """What is packed or put aside already."""
        return [column(name) for name in df.columns if name.startswith((OUT, REJECTED, _ASIDE))]

    def _end(self, df: DataFrame, node: Node, *, wanted: Column) -> DataFrame:
        """Pack what a target, or the head of the next segment, is to get."""
        outlet = Outlet(len(self.woven.outlets), node)
        self.woven.outlets.append(outlet)
        live = live_columns(df)
        try:
            packed = F.struct(*[column(name).alias(name) for name in wanted_columns(node, live)])
            return df.withColumn(outlet.column, F.when(wanted, packed))
        except PySparkException as error:
            if self.problem is None:
                raise
            self.problem(node, df, error)
            packed = F.struct(*[column(name).alias(name) for name in live])
            return df.withColumn(outlet.column, F.when(wanted, packed))

    def _rejects(self, df: DataFrame) -> DataFrame:
        """Pack what the stretch that ends here has rejected."""
        if not self._rejecting:
            return df
        self._rejecting = False
        number = self.woven.stretches
        self.woven.stretches += 1
        noted = F.struct(
            F.col(AT).alias("at"), F.col(WHY).alias("why"), F.col(ROW).alias("row"), *map(column, SYSTEM_COLUMNS)
        )
        return df.withColumn(f"{REJECTED}{number}", F.when(F.col(AT) >= 0, noted))


def wanted_columns(node: Node, live: list[str]) -> list[str]:
    """The columns that an outlet takes along, out of those there are."""
    users = [name for name in live if name not in SYSTEM_COLUMNS]
    match node:
        case Table(mode="aggregate"):
            assert node.key is not None
            assert node.aggregates is not None
            inputs = [_inner(text) for text in node.aggregates.values()]
            needed = list(dict.fromkeys([*node.key, *[name for name in inputs if name != "*"]]))
            return [*_spelt(needed, users), "_captured"]
        case Table():
            return [*(_spelt(node.columns, users) if node.columns else users), *SYSTEM_COLUMNS]
        case ParquetFiles():
            return _spelt(node.columns, live) if node.columns else live
        case Aggregate():
            return live  # expressions may name any of them
    return live


def _inner(call: str) -> str:
    """`amount` of `sum(amount)`."""
    return call.partition("(")[2].rpartition(")")[0].strip().strip("`")


def _spelt(names: object, there: list[str]) -> list[str]:
    """Columns as they are spelt where they come from."""
    assert isinstance(names, list | tuple)
    alike = {name.lower(): name for name in there}
    return [alike.get(str(name).lower(), str(name)) for name in names]


__all__ = ["MARKS", "OUT", "REJECTED", "Outlet", "Woven", "wanted_columns", "weave"]
