"""A flow as a graph: who gets whose rows, and everything that can be wrong with that before Spark is asked.

A flow has one source; each activity has one stream of rows coming in (a binary operation's second input is a master,
or what the flow remembers), so a sound flow is a tree from the source to its targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import InputError
from .columns import KnownColumns
from .nodes import REJECTS, Node, Source, Target, Unread
from .problems import Lines, Problem, invalid, near
from .yamlfile import Reading, parse, read

Output = tuple[str, str]  # name of an activity, name of its output


@dataclass(frozen=True)
class Graph:
    """The activities of a flow and what holds for all of them."""

    name: str
    nodes: tuple[Node, ...]
    warehouse: str = "http://127.0.0.1:7421"
    rejects: str = "rejects"
    queues: str = "none"
    state: str | None = None
    lines: Lines = field(default_factory=Lines, compare=False, repr=False)
    twins: tuple[tuple[int, int], ...] = field(default=(), compare=False, repr=False)  # activities with one name

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """The flow of a file; raises `FlowInvalid` with all mistakes."""
        return cls._of(read(path))

    @classmethod
    def parse(cls, content: str, *, file: str = "flow") -> Graph:
        """The flow of the text of a file."""
        return cls._of(parse(content, file=file))

    @classmethod
    def _of(cls, reading: Reading) -> Graph:
        given = {("name" if key == "flow" else key): value for key, value in reading.settings.items()}
        nodes, twins = _named(reading.nodes)
        graph = cls(given.pop("name", "flow"), nodes, lines=reading.lines, twins=twins, **given)
        found = [*reading.problems, *graph.problems()]
        if found:
            raise invalid(reading.lines.file, found)
        return graph

    @classmethod
    def build(cls, name: str, nodes: Sequence[Node], **settings: Any) -> Graph:
        """A graph of activities made in Python; raises `FlowInvalid` with all mistakes."""
        named, twins = _named(nodes)
        graph = cls(name, named, twins=twins, **settings)
        graph.check()
        return graph

    def check(self) -> None:
        found = self.problems()
        if found:
            raise invalid(self.lines.file, found)

    @property
    def base(self) -> Path:
        """The directory from which relative paths of the flow are meant."""
        return Path(self.lines.file).absolute().parent if self.lines.file else Path.cwd()

    def path(self, text: str) -> str:
        """A path of the flow as an absolute one; URIs stay as they are."""
        return text if "://" in text else str(self.base / text)

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Position of each activity in the flow."""
        return {node.name: number for number, node in enumerate(self.nodes)}

    @cached_property
    def source(self) -> Source:
        return next(node for node in self.nodes if isinstance(node, Source))

    @cached_property
    def inputs(self) -> dict[str, Output]:
        """The output that each activity but the source gets its rows from; of sound references only."""
        found: dict[str, Output] = {}
        for number, node in enumerate(self.nodes):
            if isinstance(node, Source):
                continue
            name, _, output = node.after.partition(".")
            if not node.after:
                if number == 0 or not self.nodes[number - 1].outputs:
                    continue
                previous = self.nodes[number - 1]
                found[node.name] = (previous.name, previous.outputs[0] if len(previous.outputs) == 1 else "")
            elif name in self.by_name:
                found[node.name] = (name, output)
        return found

    def children(self, name: str, output: str = "") -> list[Node]:
        """The activities that get the rows of an output."""
        return [node for node in self.nodes if self.inputs.get(node.name) == (name, output)]

    def path_to(self, name: str) -> list[Node]:
        """The activities from the source to this one, which is the last."""
        way: list[Node] = []
        while name not in [node.name for node in way]:
            way.append(self.by_name[name])
            if name not in self.inputs:
                break
            name = self.inputs[name][0]
        return way[::-1]

    @property
    def targets(self) -> list[Target]:
        return [node for node in self.nodes if isinstance(node, Target)]

    def problems(self) -> list[Problem]:
        """Everything that is wrong with the graph and, as far as they are known, with its columns."""
        found = [*self._names(), *self._references(), *self._shape()]
        if sum(isinstance(node, Source) for node in self.nodes) == 1:
            found += KnownColumns(self).problems()
        return found

    def _at(self, number: int, message: str, *options: str) -> Problem:
        return Problem(self.lines.of(number, *options), message)

    def _names(self) -> Iterator[Problem]:
        for first, second in self.twins:
            name, where = self.nodes[first].name, self.lines.of(first, "name")
            yield self._at(
                second, f"the name {name!r} is taken" + (f" by the activity in line {where}" if where else ""), "name"
            )
        sources = [number for number, node in enumerate(self.nodes) if isinstance(node, Source)]
        for number in sources[1:]:
            yield self._at(number, "a flow has one source; this is a second one")
        if not sources and not any(isinstance(node, Unread) for node in self.nodes):
            yield Problem(1 if self.lines.file else 0, "the flow has no source")

    def _references(self) -> Iterator[Problem]:
        taken: dict[Output, str] = {}
        for number, node in enumerate(self.nodes):
            if isinstance(node, Source):
                if node.after:
                    yield self._at(number, f"the source {node.name!r} comes after nothing; leave out after", "after")
                continue
            name, _, branch = node.after.partition(".")
            if node.after and name not in self.by_name:
                known = [one.name for one in self.nodes if not isinstance(one, Unread)]
                what = "this activity" if isinstance(node, Unread) else repr(node.name)
                message = f"{what} comes after {name!r}, which is not there{near(name, known)}"
                yield self._at(number, message, "after")
                continue
            if node.name not in self.inputs:
                before = self.nodes[number - 1].name if number else None
                what = f"comes after the target {before!r}" if before else "is the first activity"
                if not isinstance(node, Unread):
                    yield self._at(number, f"{node.name!r} {what}; say after which activity it comes")
                continue
            origin, branch = self.inputs[node.name]
            problem = self._output_problem(self.by_name[origin], branch)
            if problem:
                yield self._at(number, problem, "after")
            elif (origin, branch) in taken:
                yield self._at(
                    number,
                    f"the rows of {_shown(origin, branch)} go to {taken[origin, branch]!r} already; "
                    f"put a replicate behind {origin!r}",
                    "after",
                )
            else:
                taken[origin, branch] = node.name

    def _output_problem(self, node: Node, branch: str) -> str | None:
        if isinstance(node, Target):
            return f"{node.name!r} is a target, nothing comes after it"
        if branch in node.outputs or isinstance(node, Unread):
            return None
        if not branch:
            return f"{node.name!r} has branches; say {' or '.join(_shown(node.name, one) for one in node.outputs)}"
        if branch == REJECTS:
            return f"the rejects of {node.name!r} go to the table {self.rejects!r}; use a route to send them elsewhere"
        branches = [one for one in node.outputs if one]
        return f"{node.name!r} has no branch {branch!r}" + (near(branch, branches) if branches else "")

    def _shape(self) -> Iterator[Problem]:
        """Cycles, activities that no row reaches, and rows that end nowhere."""
        reached = self._reached()
        for number, node in enumerate(self.nodes):
            if node.name not in reached and not isinstance(node, Source | Unread):
                cycle = self._cycle(node.name)
                if cycle and node.name == min(cycle, key=lambda name: self.numbers[name]):
                    way = " -> ".join([*cycle, cycle[0]])
                    yield self._at(number, f"the rows go round in a circle: {way}", "after")
                elif not cycle and node.name in self.inputs and not self._behind_unread(node.name):
                    yield self._at(number, f"no row reaches {node.name!r}; nothing joins it to the source", "after")
            for output in () if isinstance(node, Unread) else node.outputs:
                if not self.children(node.name, output):
                    message = f"the rows of {_shown(node.name, output)} go nowhere; a target must come after it"
                    yield self._at(number, message)

    def _reached(self) -> set[str]:
        found = {node.name for node in self.nodes if isinstance(node, Source)}
        waiting = list(found)
        while waiting:
            name = waiting.pop()
            new = [node.name for node in self.nodes if self.inputs.get(node.name, ("", ""))[0] == name]
            waiting += [one for one in new if one not in found]
            found.update(new)
        return found

    def _behind_unread(self, name: str) -> bool:
        return any(isinstance(node, Unread) for node in self.path_to(name))

    def _cycle(self, name: str) -> list[str]:
        way: list[str] = []
        while name not in way:
            way.append(name)
            if name not in self.inputs:
                return []
            name = self.inputs[name][0]
        return way[way.index(name) :][::-1]


def _named(nodes: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[tuple[int, int], ...]]:
    """The activities, each with a name of its own (given, its table's, or its kind's), and which had the same one.

    The second of two with one name gets another, so that the rest of the flow can be checked all the same.
    """
    given = {node.name for node in nodes if node.name}
    named: list[Node] = []
    numbers: dict[str, int] = {}
    twins: list[tuple[int, int]] = []
    for number, node in enumerate(nodes):
        if not isinstance(node, Node):
            raise InputError(f"{node!r} is not an activity of a flow")
        if not node.name or node.name in numbers:
            if node.name:
                twins.append((numbers[node.name], number))
            wish = name = node.name or getattr(node, "table", None) or getattr(node, "stream", None) or node.kind
            count = 1
            while name in given:
                count += 1
                name = f"{wish}_{count}"
            given.add(name)
            node = replace(node, name=name)
        numbers[node.name] = number
        named.append(node)
    return tuple(named), tuple(twins)


def _shown(name: str, branch: str) -> str:
    return f"{name}.{branch}" if branch else repr(name)
