"""Which columns there are after each activity, as far as a flow says so itself; expressions are Spark's to check."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import MillstreamError
from ..master import Master
from .nodes import (
    RESERVED,
    SYSTEM_COLUMNS,
    Aggregate,
    Cast,
    Deduplicate,
    Derive,
    DetectUpdates,
    Difference,
    Domain,
    Enrich,
    Files,
    ForeignKey,
    Lookup,
    Node,
    NotNull,
    ParquetFiles,
    Rename,
    SurrogateKey,
    Table,
    Unread,
)
from .problems import Problem, near

if TYPE_CHECKING:
    from .graph import Graph

Columns = tuple[str, ...]
_DECLARED = re.compile(r"\s*(?:`([^`]+)`|([A-Za-z_][A-Za-z0-9_]*))\s+(.+)", re.DOTALL)


class KnownColumns:
    """Follows columns from the source down; a step whose columns cannot be known ends what is checked."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._found: list[Problem] = []

    def problems(self) -> list[Problem]:
        """Columns that are named but not there, that clash, or that belong to the engine."""
        self._found = []
        source = self.graph.source
        columns = declared(source.columns) if isinstance(source, Files) and source.columns else None
        known = None if columns is None else (*columns, *SYSTEM_COLUMNS)
        self._follow(source, known)
        return self._found

    def _follow(self, node: Node, known: Columns | None) -> None:
        after = self._after(node, known)
        for child in self.graph.nodes:
            if self.graph.inputs.get(child.name, ("", ""))[0] == node.name:
                self._follow(child, after)

    def _say(self, node: Node, message: str, *options: str) -> None:
        number = self.graph.numbers[node.name]
        self._found.append(Problem(self.graph.lines.of(number, *options), f"{node.name!r}: {message}"))

    def _need(self, node: Node, known: Columns | None, names: Iterable[str], option: str) -> None:
        if known is None:
            return
        alike = {name.lower() for name in known}
        shown = [name for name in known if name not in SYSTEM_COLUMNS]
        for name in names:
            if name.lower() not in alike:
                self._say(node, f"there is no column {name!r}{near(name, shown)}", option)

    def _fresh(self, node: Node, names: Iterable[str], option: str) -> None:
        for name in names:
            if name.startswith(RESERVED):
                self._say(node, f"columns that begin with {RESERVED} are the engine's own; rename {name!r}", option)
            elif name in SYSTEM_COLUMNS:
                self._say(node, f"the system column {name!r} cannot be changed", option)

    def _after(self, node: Node, known: Columns | None) -> Columns | None:
        """The columns behind an activity, from those in front of it; what is wrong is noted."""
        match node:
            case Unread():
                return None
            case NotNull():
                self._need(node, known, node.columns, "columns")
            case Domain():
                self._need(node, known, [node.column], "column")
            case Cast():
                self._need(node, known, node.columns, "columns")
                self._fresh(node, node.columns, "columns")
            case Derive():
                self._fresh(node, node.columns, "columns")
                return _with(known, node.columns)
            case Rename():
                return self._renamed(node, known)
            case SurrogateKey():
                self._need(node, known, node.key, "key")
                self._fresh(node, [node.column], "column")
                return _with(known, [node.column])
            case Deduplicate():
                self._need(node, known, node.key, "key")
            case Difference() | DetectUpdates():
                self._need(node, known, node.key, "key")
                self._fresh(node, [node.change], "change")
                if isinstance(node, DetectUpdates) and node.columns:
                    self._need(node, known, node.columns, "columns")
                return _with(known, [node.change])
            case Aggregate():
                self._need(node, known, node.by, "by")
                self._fresh(node, node.columns, "columns")
                return (*node.by, *node.columns, "_captured")
            case Enrich() | ForeignKey():
                return self._looked_up(node, known)
            case Table() | ParquetFiles():
                self._need(node, known, node.columns or (), "columns")
                if isinstance(node, Table) and node.key and (node.mode == "upsert" or known is not None):
                    self._need(node, tuple(node.columns) if node.columns and known else known, node.key, "key")
        return known

    def _renamed(self, node: Rename, known: Columns | None) -> Columns | None:
        self._need(node, known, node.columns, "columns")
        self._fresh(node, [*node.columns, *node.columns.values()], "columns")
        if known is None:
            return None
        new = tuple(node.columns.get(name, name) for name in known)
        for name in sorted({name for name in new if new.count(name) > 1}):
            self._say(node, f"two columns would have the name {name!r}", "columns")
        return tuple(dict.fromkeys(new))

    def _looked_up(self, node: Lookup, known: Columns | None) -> Columns | None:
        assert isinstance(node.on, dict)
        self._need(node, known, node.on, "on")
        if isinstance(node, Enrich) and node.columns:
            self._fresh(node, node.columns, "columns")
        try:
            master = Master.open(self.graph.path(node.master))
        except MillstreamError:
            return None  # it may be built before the flow is run; then it must be there
        names = [name for name in master.schema.names if name not in master.key]
        for name in node.on.values():
            if name not in master.key:
                self._say(node, f"{name!r} is not in the key of the master, which is {', '.join(master.key)}", "on")
        if not isinstance(node, Enrich):
            return known
        for name in node.columns or ():
            if name not in master.schema.names:
                self._say(node, f"the master has no column {name!r}{near(name, names)}", "columns")
        if known is None:
            return None
        brought = list(node.columns or names)
        for name in sorted({name.lower() for name in brought} & {name.lower() for name in known}):
            message = f"both the stream and the master have a column {name!r}; choose others with columns"
            self._say(node, message, "columns")
        return _with(known, brought)


def declared(columns: str) -> Columns:
    """The names in a list of columns as in CREATE TABLE."""
    names = []
    depth, begin = 0, 0
    for at, letter in enumerate(columns + ","):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            found = _DECLARED.match(columns[begin:at])
            if found:
                names.append(found[1] or found[2])
            begin = at + 1
    return tuple(names)


def _with(known: Columns | None, names: Iterable[str]) -> Columns | None:
    if known is None:
        return None
    there = {name.lower() for name in known}
    return (*known, *(name for name in names if name.lower() not in there))
