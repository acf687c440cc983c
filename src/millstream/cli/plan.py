"""`millstream plan`: check a flow file and draw it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import FlowInvalid, MillstreamError

from .parser import add_command

if TYPE_CHECKING:
    from millstream.flow import Graph

    from .parser import Commands


def register(commands: Commands) -> None:
    """Add `plan`."""
    parser = add_command(
        commands,
        "plan",
        summary="check a flow file and draw the flow",
        about="Mistakes are listed all at once with their lines. --analyse asks Spark too, about expressions and\n"
        "types; the source (staging, or the files) must be there for that.",
        example="millstream plan examples/shop.yaml",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the flow file")
    parser.add_argument("--analyse", action="store_true", help="check expressions and types with Spark as well")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Draw the flow, or say what is wrong with it."""
    from millstream.flow import draw

    graph = read_flow(arguments.file)
    print(draw(graph))
    if arguments.analyse:
        from millstream.spark.flow import Flow

        from .session import quiet_session

        spark = quiet_session("millstream plan")
        try:
            with telling_mistakes():
                specs = Flow(graph.name, graph=graph).analyse(spark)
        finally:
            spark.stop()
        for spec in specs.values():
            columns = ", ".join(f"{entry.name} {entry.type}" for entry in spec.stored)
            print(f"\ntable {spec.name} ({spec.mode}): {columns}")


def read_flow(path: Path) -> Graph:
    """The flow of a file; its mistakes go to stderr, a line for each."""
    from millstream.flow import Graph

    with telling_mistakes():
        return Graph.load(path)


class telling_mistakes:
    """Turns an invalid flow into lines on stderr, and one line to end with."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FlowInvalid):
            head, *lines = error.message.splitlines()
            for line in lines:
                sys.stderr.write(f"{line.strip()}\n")
            raise MillstreamError(head.rstrip(":")) from None
