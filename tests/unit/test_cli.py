"""The command line: help with an example for each command, and one clear line when something is wrong."""

from __future__ import annotations

import argparse
import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from millstream import __version__, cli
from millstream.cli.parser import Parser, add_command, names, positive, size
from millstream.errors import InputError
from millstream.master import Master, build_local


def walk(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command below a parser, and of the parser itself."""
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from walk(command, (*words, name))


COMMANDS = list(walk(cli.build_parser()))


def run(*words: str) -> int:
    """Run the command line; its exit code."""
    try:
        return cli.main(words)
    except SystemExit as stop:
        return int(stop.code or 0)


def only_line(text: str) -> str:
    """The one line that a text consists of."""
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    return text.rstrip()


def test_the_commands_are_there() -> None:
    assert {("master",), ("master", "build"), ("master", "show"), ("master", "verify")} <= set(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_an_example_that_parses(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words, "--help") == 0
    text, errors = capsys.readouterr()
    assert errors == ""
    example = text.split("example:\n")[1].strip()
    command = example.split()
    assert tuple(command[: len(words) + 1]) == ("millstream", *words)
    cli.build_parser().parse_args(command[1:])


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"millstream {__version__}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "COMMAND"),
        (("grind",), "grind"),
        (("master",), "COMMAND"),
        (("master", "build"), "SOURCE"),
        (("master", "build", "a.parquet", "b"), "--key"),
        (("master", "build", "a.parquet", "b", "--key", "x,,y"), "x,,y"),
        (("master", "build", "a.parquet", "b", "--key", "x", "--layout", "random"), "random"),
        (("master", "build", "a.parquet", "b", "--key", "x", "--segment-bytes", "huge"), "huge"),
        (("master", "show"), "PATH"),
        (("master", "show", "a", "--at", "yesterday"), "yesterday"),
        (("master", "verify", "a", "b"), "b"),
    ],
)
def test_bad_arguments_give_one_line(words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    line = only_line(errors)
    assert line.startswith("millstream")
    assert says in line
    assert "--help" in line


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--layout", "frequency"), "--frequency"),
        (("--frequency", "sold"), "--layout frequency"),
        (("--schema", "a INT"), "--schema"),
    ],
)
def test_options_of_build_that_do_not_go_together(
    options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("master", "build", "a.parquet", "b", "--key", "x", *options) == 1
    assert says in only_line(capsys.readouterr().err)


@pytest.mark.parametrize("command", ["show", "verify"])
def test_no_master_there(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nothing"
    assert run("master", command, str(path)) == 1
    out, errors = capsys.readouterr()
    assert out == ""
    assert str(path) in only_line(errors)
    assert not path.exists()


@pytest.mark.parametrize("command", ["show", "verify"])
def test_something_else_there(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("not a master")
    assert run("master", command, str(tmp_path)) == 1
    assert str(tmp_path) in only_line(capsys.readouterr().err)


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A master in two versions: key 2 has three rows, one row has no key."""
    path = tmp_path_factory.mktemp("masters") / "products"
    table = pa.table({"product_id": pa.array([1, 2, 2, 2, 3, None], pa.int64()), "name": list("abcdef")})
    build_local(table.slice(0, 1), path, key="product_id")
    build_local(table, path, key="product_id")
    return path


def test_show_for_people(products: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("master", "show", str(products)) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"path {products}" in lines
    assert "versions 1, 2" in lines
    assert "key product_id" in lines
    assert "layout by key" in lines
    assert "distinct keys 3, 1.7 rows each" in lines
    assert "NULL keys 1 rows" in lines
    assert "heaviest keys 2 3 rows" in lines
    assert {"columns product_id int64", "name string"} <= set(lines)


def test_show_for_machines(products: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("master", "show", str(products), "--json", "--at", "1") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["version"], facts["versions"], facts["rows"]) == (1, [1, 2], 1)
    assert facts["key"] == ["product_id"]
    assert facts["schema"] == {"product_id": "int64", "name": "string"}
    assert facts["bytes"] > 0


def test_show_names_the_versions_if_one_is_missing(products: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("master", "show", str(products), "--at", "7") == 1
    line = only_line(capsys.readouterr().err)
    assert "no version 7" in line
    assert "1, 2" in line


def test_verify_an_intact_master(products: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("master", "verify", str(products)) == 0
    out, errors = capsys.readouterr()
    assert "version 2 is intact, 6 rows" in only_line(out)
    assert errors == ""


def test_verify_names_the_damaged_file(products: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "products"
    shutil.copytree(products, damaged)
    master = Master.open(damaged)
    newest = master.manifest.parts[0].file
    content = bytearray((damaged / newest).read_bytes())
    content[int(master.index.offset[0]) + int(master.index.length[0]) // 2] ^= 1
    (damaged / newest).write_bytes(content)
    assert run("master", "verify", str(damaged)) == 1
    out, errors = capsys.readouterr()
    assert out == ""
    assert newest in only_line(errors)


@pytest.mark.parametrize(
    ("problem", "code", "says"),
    [
        (InputError("first line\nand a second"), 1, "millstream: first line and a second"),
        (OSError(errno.ENOSPC, "No space left on device", "/data"), 1, "No space left"),
        (KeyboardInterrupt(), 130, "millstream: interrupted"),
    ],
)
def test_what_a_command_raises_becomes_one_line(
    problem: BaseException,
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(arguments: argparse.Namespace) -> None:
        raise problem

    monkeypatch.setattr("millstream.cli.master.run_show", fail)
    assert run("master", "show", "anything") == code
    assert says in only_line(capsys.readouterr().err)


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: argparse.Namespace) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("millstream.cli.master.run_show", fail)
    with pytest.raises(ZeroDivisionError):
        run("master", "show", "anything")


def test_kinds_of_arguments() -> None:
    assert names("a, b") == ["a", "b"]
    assert size("16KiB") == 16_384
    assert positive("1_000") == 1_000
    for kind, text in [(names, ""), (names, "a,"), (size, "0"), (size, "-1"), (positive, "0"), (positive, "few")]:
        with pytest.raises(argparse.ArgumentTypeError):
            kind(text)


def test_options_are_not_guessed_from_their_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="millstream")
    command = add_command(parser.add_subparsers(), "turn", summary="turn", example="millstream turn")
    command.add_argument("--memory")
    with pytest.raises(SystemExit):
        parser.parse_args(["turn", "--mem", "1"])
    assert "--mem" in only_line(capsys.readouterr().err)
