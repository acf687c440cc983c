"""The shape that all commands share: help with an example, and one line when the arguments are wrong."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from millstream.errors import InputError
from millstream.units import parse_bytes

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]


class Parser(argparse.ArgumentParser):
    """An argument parser that answers bad arguments with a single line and exit code 2."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")
        sys.exit(2)


def add_command(commands: Commands, name: str, *, summary: str, about: str = "", example: str) -> Parser:
    """A new command with its help: a summary for the list, more about it if needed, and an example to copy."""
    return commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}." + (f"\n\n{about}" if about else ""),
        epilog=f"example:\n  {example}",
    )


def names(text: str) -> list[str]:
    """Column names, separated by commas, as a list."""
    columns = [name.strip() for name in text.split(",")]
    if not all(columns):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of column names like a,b")
    return columns


def size(text: str) -> int:
    """A size like 16KiB or 256MB in bytes."""
    try:
        return parse_bytes(text, what="size")
    except InputError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def positive(text: str) -> int:
    """A whole number above zero; 1_000_000 is fine too."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return value
