"""Flow files: YAML, read with the line of every entry, so that each mistake can say where it is.

A text may name variables of the environment, `${NAME}` or `${NAME:-default}`. Only `true` and `false` are truth values
and dates stay texts, unlike in YAML 1.1, so that a column may be called `on` or a value be `no`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import InputError
from . import shapes
from .nodes import KINDS, SOURCES, Node, Source, Unread, options_of, required_of
from .problems import Lines, Problem, invalid, near

SETTINGS = {
    "flow": shapes.name,
    "warehouse": shapes.text,
    "rejects": shapes.table,
    "queues": shapes.one_of("none", "all"),
    "state": shapes.text,
}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain scalars."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _regexp, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?[0-9][0-9_]*$", "-+0123456789"),
    ("float", r"^[-+]?(?:[0-9][0-9_]*)?\.?[0-9]+(?:[eE][-+]?[0-9]+)?$", "-+0123456789."),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_regexp), list(_first))


@dataclass(frozen=True)
class Reading:
    """What a flow file says, as far as it can be read, and the mistakes in its form."""

    settings: dict[str, Any]
    nodes: list[Node]
    lines: Lines
    problems: list[Problem]


def read(path: str | Path) -> Reading:
    """The content of a flow file; raises `FlowInvalid` if it is not YAML."""
    try:
        content = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise InputError(f"{path} is not a text in UTF-8: {problem}") from None
    return parse(content, file=str(path))


def parse(content: str, *, file: str = "flow") -> Reading:
    """The same for the text of a flow file."""
    return _Reader(content, file).flow()


class _Reader:
    def __init__(self, content: str, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        try:
            self.loader = _Loader(content)
            self.root = self.loader.get_single_node()
        except yaml.YAMLError as problem:
            mark = getattr(problem, "problem_mark", None)
            said = getattr(problem, "problem", None) or str(problem)
            raise invalid(file, [Problem(mark.line + 1 if mark else 1, f"not YAML: {said}")]) from None

    def flow(self) -> Reading:
        if not isinstance(self.root, yaml.MappingNode):
            raise invalid(self.file, [Problem(1, "a flow file has 'flow: <name>' and 'nodes: [...]'")])
        settings: dict[str, Any] = {}
        lines: dict[str, int] = {}
        nodes: list[Node] = []
        places: list[dict[str, int]] = []
        for key, value in self.entries(self.root):
            line = _line(value)
            if key == "nodes":
                for one in self.items(value):
                    place, node = self.node(one)
                    nodes.append(node or self.unread(one))
                    places.append(place)
            elif key not in SETTINGS:
                self.say(_line(value), f"unknown setting {key!r}{near(key, [*SETTINGS, 'nodes'])}")
            else:
                lines[key] = line
                self.shaped(key, SETTINGS[key], value, settings)
        given = {key for key, _ in self.entries(self.root)}
        for missing in [key for key in ("flow", "nodes") if key not in given]:
            self.say(1, f"the setting '{missing}' is missing")
        return Reading(settings, nodes, Lines(self.file, tuple(places), lines), self.problems)

    def node(self, entry: yaml.Node) -> tuple[dict[str, int], Node | None]:
        """An activity and the lines of its options; None if it has mistakes, which are then noted."""
        place = {"": _line(entry)}
        if not isinstance(entry, yaml.MappingNode):
            self.say(place[""], "an activity is a mapping such as '- select: quantity > 0'")
            return place, None
        pairs = list(self.entries(entry))
        place |= {key: _line(value) for key, value in pairs}
        kinds = [key for key, _ in pairs if key in KINDS]
        if not pairs or not kinds:
            first = pairs[0][0] if pairs else ""
            self.say(place[""], f"unknown kind of activity {first!r}{near(first, KINDS)}")
            return place, None
        kind, head = next((key, value) for key, value in pairs if key in KINDS)
        cls: type[Node] = KINDS[kind]
        before = len(self.problems)
        given: dict[str, Any] = {}
        if issubclass(cls, Source):
            variant = self.plain(head)
            if variant not in SOURCES:
                self.say(place[kind], f"unknown source {variant!r}{near(str(variant), SOURCES)}")
                return place, None
            cls = SOURCES[variant]
        known = options_of(cls)
        if cls.main:
            place[cls.main] = place[kind]
            self.shaped(cls.main, known[cls.main], head, given, shown=kind)
        for key, value in pairs:
            if key == kind:
                continue
            if key not in known or key == cls.main:
                self.say(place[key], f"{kind} has no option {key!r}{near(key, [k for k in known if k != cls.main])}")
            else:
                self.shaped(key, known[key], value, given, shown=f"{kind}: {key}")
        for option in required_of(cls):
            if option != cls.main and option not in {key for key, _ in pairs}:
                self.say(place[""], f"{kind} needs the option {option!r}")
        if len(self.problems) > before:
            return place, None
        try:
            return place, cls(**given)
        except InputError as problem:
            self.say(place[""], problem.message)
            return place, None

    def unread(self, entry: yaml.Node) -> Unread:
        """A stand-in with the name and the place in the flow that the activity has, if they can be read."""
        given: dict[str, Any] = {}
        if isinstance(entry, yaml.MappingNode):
            for key, shape in (("name", shapes.name), ("after", shapes.reference)):
                for found in [value for name, value in self.entries(entry) if name == key]:
                    with contextlib.suppress(ValueError):
                        given[key] = shape(self.plain(found))
        return Unread(**given)

    def shaped(self, key: str, shape: Any, value: yaml.Node, into: dict[str, Any], *, shown: str = "") -> None:
        try:
            into[key] = shape(self.plain(value))
        except ValueError as problem:
            self.say(_line(value), f"{shown or key} {problem}")

    def plain(self, node: yaml.Node) -> Any:
        """The value of a YAML node, with the keys of mappings as they are written."""
        if isinstance(node, yaml.MappingNode):
            return {key: self.plain(value) for key, value in self.entries(node)}
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(one) for one in node.value]
        value = self.loader.construct_object(node)
        return self.expanded(value, node) if isinstance(value, str) else value

    def expanded(self, value: str, node: yaml.Node) -> str:
        def variable(found: re.Match[str]) -> str:
            known: str | None = os.environ.get(found[1]) or found.group(2)
            if known is None:
                name = found[1]
                self.say(_line(node), f"the environment has no variable {name}; set it, or write ${{{name}:-default}}")
            return known or "x"

        return _VARIABLE.sub(variable, value)

    def entries(self, node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                self.say(_line(key), f"{name!r} stands here a second time")
                continue
            seen.add(name)
            yield name, value

    def items(self, node: yaml.Node) -> list[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode):
            self.say(_line(node), "nodes must be a list of activities")
            return []
        return list(node.value)

    def say(self, line: int, message: str) -> None:
        problem = Problem(line, message)
        if problem not in self.problems:
            self.problems.append(problem)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
