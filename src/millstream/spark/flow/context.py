"""What activities need to know of the run they are in."""

from __future__ import annotations

from dataclasses import dataclass

from ...flow import Graph, Node


@dataclass(frozen=True)
class Address:
    """Where tasks find the memory of a flow."""

    url: str
    token: str


@dataclass(frozen=True)
class Context:
    """The flow, and where its memory is; `memory` is None while a flow is only analysed.

    identified: rows have a `_source` and `_sequence` that are the same whenever they are read.
    slots: task slots, as many partitions as rows are spread over where they must be.
    """

    graph: Graph
    memory: Address | None = None
    identified: bool = False
    slots: int = 2

    def number(self, node: Node) -> int:
        return self.graph.numbers[node.name]
