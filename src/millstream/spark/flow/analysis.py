"""Expressions and types of a flow, checked by Spark on DataFrames without rows: all mistakes at once, with lines."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import NullType, StructType

from ...errors import MasterNotFound, MillstreamError
from ...flow import Cast, Derive, Enrich, ForeignKey, Graph, Node, Problem, Route, SurrogateKey, Table
from ...flow.problems import invalid
from ...master import Master
from ...warehouse import TableSpec
from ..types import arrow_schema
from .complaints import said
from .context import Context
from .rows import BRANCH, arrive
from .run import table_spec
from .sets import apply_set
from .state import unmarked
from .weave import weave


def analyse(graph: Graph, rows: DataFrame, context: Context) -> dict[str, TableSpec]:
    """The tables that the flow asks the warehouse for, by target; raises `FlowInvalid` with all mistakes."""
    return _Analysis(graph, rows, context).tables()


class _Analysis:
    def __init__(self, graph: Graph, rows: DataFrame, context: Context) -> None:
        self.graph, self.context = graph, context
        self.empty = rows.sparkSession.createDataFrame([], rows.schema)
        self.found: list[Problem] = []

    def tables(self) -> dict[str, TableSpec]:
        for node in self.graph.nodes:
            if isinstance(node, Enrich | ForeignKey):
                self._master(node)
        if self.found:  # without its masters nothing behind them can be known
            raise invalid(self.graph.lines.file, self.found)
        specs: dict[str, TableSpec] = {}
        source = self.graph.source
        waiting: list[tuple[DataFrame, Node]] = [(arrive(source, self.empty, self.context), source)]
        while waiting:
            df, head = waiting.pop(0)
            woven = weave(df, head, self.context, problem=self._problem)
            kinds = {field.name: field.dataType for field in woven.df.schema.fields}
            for outlet in woven.outlets:
                struct = kinds[outlet.column]
                assert isinstance(struct, StructType)
                if outlet.is_target:
                    self._target(outlet.node, struct, specs)
                    continue
                rows = woven.df.select(f"{outlet.column}.*")
                waiting.append((self._set(outlet.node, rows), outlet.node))
        if self.found:
            raise invalid(self.graph.lines.file, self.found)
        return specs

    def _master(self, node: Enrich | ForeignKey) -> None:
        try:
            master = Master.open(self.graph.path(node.master))
        except (MasterNotFound, MillstreamError) as problem:
            self._say(node, str(problem), "master")
            return
        if isinstance(node, ForeignKey) and master.statistics.max_key_rows > 1:
            self._say(node, f"{node.master} has several rows for a key, so it cannot be referred to", "master")

    def _target(self, node: Node, struct: StructType, specs: dict[str, TableSpec]) -> None:
        unknown = self.found and any(isinstance(entry.dataType, NullType) for entry in struct.fields)
        if not isinstance(node, Table) or unknown:  # a column that could not be made is said already
            return
        try:
            specs[node.name] = table_spec(node, arrow_schema(struct))
        except MillstreamError as problem:
            self._say(node, problem.message)

    def _set(self, node: Node, rows: DataFrame) -> DataFrame:
        try:
            return apply_set(node, rows, self.context, batch=0, state=None)
        except (PySparkException, MillstreamError) as problem:
            self._say(node, said(problem), "columns", "key")
            names = [*getattr(node, "columns", ()), *([change] if (change := getattr(node, "change", "")) else [])]
            new = {name: F.lit(None) for name in names if name not in rows.columns}
            return unmarked(rows.withColumns(new) if new else rows)

    def _problem(self, node: Node, df: DataFrame, error: Exception) -> DataFrame:
        """Note what Spark says about an activity, and go on as if it had worked."""
        new = {}
        match node:
            case Derive():
                for name, text in node.columns.items():
                    new[name] = F.expr(text) if self._try(node, df, text, name) else F.lit(None)
            case Cast():
                for name, kind in node.columns.items():
                    self._try(node, df, f"try_cast(`{name}` AS {kind})", name)
            case Route():
                for name, text in node.branches.items():
                    self._try(node, df, text, name)
                new[BRANCH] = F.lit(0)
            case SurrogateKey():
                self._say(node, said(error), "key")
                new[node.column] = F.lit(None).cast("bigint")
            case _:
                self._say(node, said(error), "condition", "on", "columns", "column", "key")
        return df.withColumns(new) if new else df

    def _try(self, node: Node, df: DataFrame, text: str, name: str) -> bool:
        try:
            df.select(F.expr(text))
        except PySparkException as error:
            self._say(node, f"{name}: {said(error)}", "columns", "branches")
            return False
        return True

    def _say(self, node: Node, message: str, *options: str) -> None:
        line = self.graph.lines.of(self.graph.numbers[node.name], *options)
        self.found.append(Problem(line, f"{node.name!r}: {message}"))
