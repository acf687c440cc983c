"""Flow files: all mistakes at once with their lines, and the picture of a sound one. Golden files are in `golden`."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cli import main
from millstream.errors import FlowInvalid
from millstream.flow import Graph, draw

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", ["mistakes", "columns"])
def test_all_mistakes_at_once_with_lines(name):
    with pytest.raises(FlowInvalid) as caught:
        Graph.parse((GOLDEN / f"{name}.yaml").read_text(), file=f"{name}.yaml")
    assert caught.value.message + "\n" == (GOLDEN / f"{name}.txt").read_text()


def test_drawing():
    assert draw(Graph.load(GOLDEN / "drawn.yaml")) + "\n" == (GOLDEN / "drawn.txt").read_text()


def test_the_command_lists_mistakes_and_fails(capsys):
    assert main(["plan", str(GOLDEN / "mistakes.yaml")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 12
    assert lines[0].endswith("mistakes.yaml:2: unknown setting 'queus'; did you mean queues?")
    assert lines[-1].startswith("millstream: 11 mistakes in ")


def test_the_command_draws(capsys):
    assert main(["plan", str(GOLDEN / "drawn.yaml")]) == 0
    assert capsys.readouterr().out == (GOLDEN / "drawn.txt").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a flow file has 'flow: <name>'"),
        ("- a\n- b\n", "a flow file has 'flow: <name>'"),
        ("flow: [", "f:1: not YAML"),
        ("flow: f\n", "the setting 'nodes' is missing"),
        ("flow: f\nnodes: 5\n", "f:2: nodes must be a list"),
        ("flow: f\nnodes:\n  - 5\n", "f:3: an activity is a mapping"),
        ("flow: f\nnodes:\n  - source: kafka\n", "f:3: unknown source 'kafka'"),
        ("flow: f\nflow: g\nnodes: []\n", "f:2: 'flow' stands here a second time"),
        ("flow: f\nnodes:\n  - source: files\n", "f:3: source needs the option 'path'"),
        ("flow: f\nnodes:\n  - source: frame\n  - target: a\n  - target: b\n", "f:5: 'b' comes after the target 'a'"),
        ("flow: f\nnodes:\n  - source: frame\n  - source: frame\n  - target: a\n", "f:4: a flow has one source"),
        ("flow: f\nnodes:\n  - source: frame\n  - select: a\n", "f:4: the rows of 'select' go nowhere"),
        (
            "flow: f\nnodes:\n  - source: frame\n    name: s\n  - target: a\n  - target: b\n    after: s\n",
            "f:7: the rows of 's' go to 'a' already; put a replicate behind 's'",
        ),
        (
            "flow: f\nnodes:\n  - source: frame\n    name: s\n  - target: a\n  - target: b\n    after: s.rejects\n",
            "f:7: the rejects of 's' go to the table 'rejects'",
        ),
    ],
)
def test_single_mistakes(text, said):
    with pytest.raises(FlowInvalid) as caught:
        Graph.parse(text, file="f")
    assert said in caught.value.message


def test_a_file_that_is_not_there(capsys):
    assert main(["plan", "/nowhere/flow.yaml"]) == 1
    assert "No such file" in capsys.readouterr().err
