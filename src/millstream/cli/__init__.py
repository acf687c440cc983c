"""The `millstream` command.

A command is a module of this package with a function `register(commands)` that adds its parser and sets `run`, a
function from the parsed arguments to nothing. What a command needs to do its work is imported when it runs, so that
`--help` stays quick. List a new command in `COMMANDS`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from millstream import __version__
from millstream.errors import MillstreamError

from . import bench, capture, demo, master, plan, reconcile, run, serve, stage, tune
from .parser import Parser

COMMANDS = (demo, run, plan, reconcile, master, tune, bench, stage, serve, capture)


def build_parser() -> Parser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="millstream",
        description="Keep a data warehouse fresh: capture, stage, join with master data that does not fit in memory, "
        "load.",
        epilog="example:\n  millstream master build products.parquet /data/products --key product_id",
    )
    parser.add_argument("--version", action="version", version=f"millstream {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.register(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it did its work, otherwise one line on stderr says why not."""
    arguments = build_parser().parse_args(argv)
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except MillstreamError as problem:
        return _fail(problem.message, 1)
    except BrokenPipeError:
        # the reader of our output went away, as with `| head`: what is left unwritten must not fail at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as problem:
        return _fail(str(problem), 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    return 0


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"millstream: {' '.join(message.split())}\n")
    return code
