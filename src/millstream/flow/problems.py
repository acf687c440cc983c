"""Mistakes in a flow, each with the line it is on, reported all at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..errors import FlowInvalid


@dataclass(frozen=True, order=True)
class Problem:
    """A mistake: the line of the flow file (0 for a flow built in Python), and what to do about it."""

    line: int
    message: str


@dataclass(frozen=True)
class Lines:
    """Where the activities of a flow file stand: line of each activity, and of each of its options."""

    file: str = ""
    nodes: tuple[dict[str, int], ...] = ()
    settings: dict[str, int] = field(default_factory=dict)

    def of(self, number: int, *options: str) -> int:
        """The line of the first of these options that activity `number` has, else of the activity itself."""
        if not 0 <= number < len(self.nodes):
            return 0
        lines = self.nodes[number]
        return next((lines[option] for option in options if option in lines), lines.get("", 0))


def invalid(file: str, problems: Iterable[Problem]) -> FlowInvalid:
    """One error for all mistakes, in the order of their lines."""
    ordered = sorted(set(problems))
    lines = [f"{file}:{one.line}: {one.message}" if file and one.line else one.message for one in ordered]
    count = "1 mistake" if len(ordered) == 1 else f"{len(ordered)} mistakes"
    return FlowInvalid(
        "\n".join([f"{count} in {file or 'the flow'}:", *(f"  {line}" for line in lines)]), problems=ordered, file=file
    )


def near(word: str, known: Iterable[str]) -> str:
    """`; did you mean x?` if one of the known words is close to this one, else the list of them."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known: {', '.join(known)}" if known else ""
