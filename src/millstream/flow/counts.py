"""How many rows went where: in, out and rejected for each activity of a batch, and the proof that none is missing.

Nothing is counted on the way. What arrives at the ends, and what each activity rejects, says it all: before a filter
there were as many rows as behind it and rejected by it together.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from ..errors import MillstreamError
from .graph import Graph
from .nodes import Node, Replicate, Route


@dataclass(frozen=True)
class Activity:
    """What one activity did in a batch, and how long it took."""

    name: str
    rows_in: int
    rows_out: int
    rejected: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Branch:
    """Where the rows of a batch went on the way to one target: `rows_in` is the sum of all others.

    elsewhere: sent to other branches by a route. merged: fewer (or, negative, more) rows behind an activity that
    groups, compares or multiplies rows than in front of it.
    """

    target: str
    rows_in: int
    loaded: int
    rejected: int
    elsewhere: int
    merged: int

    @property
    def complete(self) -> bool:
        return self.rows_in == self.loaded + self.rejected + self.elsewhere + self.merged


@dataclass
class Tally:
    """Raw counts of a batch: rows of the source, rows at each end, rows behind each head of a segment, rejects.

    `arrived` and `behind` are by activity: targets and activities on sets of rows.
    """

    rows: int = 0
    arrived: dict[str, int] = field(default_factory=dict)
    behind: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def activities(graph: Graph, tally: Tally, *, shared: float = 0.0) -> dict[str, Activity]:
    """What each activity did. `shared` seconds are given to those without time of their own, by the rows they saw."""
    entering = {node.name: _entering(graph, node, tally) for node in graph.nodes}
    without = sum(rows for name, rows in entering.items() if name not in tally.seconds)
    found = {}
    for node in graph.nodes:
        rows, rejected = entering[node.name], tally.rejected.get(node.name, 0)
        out = tally.behind.get(node.name, rows) - rejected
        seconds = tally.seconds.get(node.name, shared * rows / without if without else 0.0)
        found[node.name] = Activity(node.name, rows, out, rejected, seconds)
    return found


def branches(graph: Graph, tally: Tally) -> list[Branch]:
    """The account of each target; raises if rows are unaccounted for, which would be a fault of the engine."""
    found = []
    for target in graph.targets:
        way = graph.path_to(target.name)
        elsewhere = merged = 0
        for node, following in itertools.pairwise(way):
            if isinstance(node, Route):
                left = _entering(graph, node, tally) - tally.rejected.get(node.name, 0)
                elsewhere += left - _entering(graph, following, tally)
            if node.name in tally.behind:
                merged += tally.arrived.get(node.name, 0) - tally.behind[node.name]
        branch = Branch(
            target.name,
            tally.rows,
            tally.arrived.get(target.name, 0),
            sum(tally.rejected.get(node.name, 0) for node in way),
            elsewhere,
            merged,
        )
        if not branch.complete:
            raise MillstreamError(f"rows of the branch to {target.name!r} are unaccounted for: {branch}")
        found.append(branch)
    return found


def _entering(graph: Graph, node: Node, tally: Tally) -> int:
    """How many rows came to an activity."""
    if node.name in tally.arrived or not node.outputs:
        return tally.arrived.get(node.name, 0)
    children = [child for output in node.outputs for child in graph.children(node.name, output)]
    behind = [_entering(graph, child, tally) for child in children]
    rejected = tally.rejected.get(node.name, 0)
    return rejected + (behind[0] if isinstance(node, Replicate) else sum(behind))


def ledger_counts(branch: Branch) -> dict[str, int]:
    """The account of a target as it stands in the ledger of the warehouse, where in = loaded + rejected must hold.

    `in` are the rows of the source that are this target's, `sent` all of them.
    """
    return {
        "in": branch.rows_in - branch.elsewhere - branch.merged,
        "loaded": branch.loaded,
        "rejected": branch.rejected,
        "sent": branch.rows_in,
        "elsewhere": branch.elsewhere,
        "merged": branch.merged,
    }
