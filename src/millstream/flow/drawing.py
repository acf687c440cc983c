"""A flow drawn as text: a box for each activity, arrows from the source down to the targets."""

from __future__ import annotations

from .graph import Graph
from .nodes import Node, Route, Target

WIDTH = 64


def draw(graph: Graph) -> str:
    """The picture of a sound flow."""
    mode = "each activity with a queue of its own" if graph.queues == "all" else "one query"
    head = [f"flow {graph.name}: {mode}; rejects go to {graph.rejects}", ""]
    return "\n".join([*head, *_subtree(graph, graph.source)])


def _subtree(graph: Graph, node: Node) -> list[str]:
    lines = _box(graph, node)
    branches = [(output, child) for output in node.outputs for child in graph.children(node.name, output)]
    if len(branches) == 1 and not branches[0][0]:
        return [*lines, "    |", "    v", *_subtree(graph, branches[0][1])]
    for number, (output, child) in enumerate(branches):
        last = number == len(branches) - 1
        label = _label(node, output)
        lines += ["    |", f"    +--[ {label} ]"]
        rest = _subtree(graph, child)
        stem = "     " if last else "    |"
        lines += [f"{stem}      |", f"{stem}      v", *(f"{stem}  {line}" for line in rest)]
    return lines


def _label(node: Node, output: str) -> str:
    if isinstance(node, Route):
        return f"{output}: {node.branches.get(output, 'otherwise')}"
    return output


def _box(graph: Graph, node: Node) -> list[str]:
    title = f"{node.name}  ({node.kind})" if node.name != node.kind else node.name
    body = [title, *([node.summary] if node.summary else [])]
    width = max(24, *(len(line) for line in body))
    side = "=" if isinstance(node, Target) or node is graph.source else "-"
    edge = "+" + side * (width + 2) + "+"
    lines = [edge, *(f"| {line.ljust(width)} |" for line in body), edge]
    if node.rejecting and not getattr(node, "otherwise", None):
        lines[1] += " --> rejects" if getattr(node, "rejects", "keep") == "keep" else " --> counted"
    return lines
