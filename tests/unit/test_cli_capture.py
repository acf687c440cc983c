"""`millstream capture` as people call it, with good and with bad arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.cli import main
from millstream.staging import Server, connect

COMMON = ["--stream", "till", "--state", "state", "--to"]


def test_a_file_once_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": number, "name": f"n{number}"}) for number in range(100)]
    Path("till.jsonl").write_text("\n".join([*lines, "{bad"]) + "\n")
    with Server(tmp_path / "staging", http_port=None) as server:
        command = ["capture", "file", "till.jsonl", "--once", *COMMON, server.url]
        assert main(command) == 0
        assert "100 records acknowledged in this run, 1 rejected" in capsys.readouterr().out
        with open("till.jsonl", "a") as file:
            file.write('{"id": 100, "name": "more"}\n')
        assert main(command) == 0
        with connect(server.url) as client:
            assert client.stream("till").records == 101


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["capture", "file", "x.log", *COMMON, "grpc://127.0.0.1:1"], "--format csv or jsonl is needed"),
        (["capture", "file", "x.csv", "--no-header", *COMMON, "grpc://127.0.0.1:1"], "--no-header needs --schema"),
        (["capture", "file", ".", "--format", "csv", *COMMON, "grpc://127.0.0.1:1"], "a directory"),
        (["capture", "file", "x.csv", "--once", *COMMON, "grpc://127.0.0.1:1"], "x.csv is not there"),
        (["capture", "file", "x.csv", *COMMON, "http://127.0.0.1:1"], "no url of a staging area"),
        (["capture", "file", "x.csv", "--schema", "id", *COMMON, "grpc://127.0.0.1:1"], "is not a column and a type"),
        (["capture", "postgres", "host=127.0.0.1 port=1", "--table", "t", "--once", *COMMON, "grpc://127.0.0.1:1"],
         "PostgreSQL cannot be reached"),
        (["capture", "postgres", "x", "--table", "t", "--slot", "A B", *COMMON, "grpc://127.0.0.1:1"],
         "replication slot"),
    ],
)  # fmt: skip
def test_bad_arguments_make_one_clear_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    error = capsys.readouterr().err.strip()
    assert words in error
    assert len(error.splitlines()) == 1


def test_staging_away_at_the_end_is_told_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("till.csv").write_text("id\n1\n2\n")
    arguments = ["capture", "file", "till.csv", "--once", "--wait", "0.2", *COMMON]
    assert main([*arguments, "grpc://127.0.0.1:1"]) == 1
    assert "2 records wait in state/spool" in capsys.readouterr().err
    with Server(tmp_path / "staging", http_port=None) as server:
        assert main(["capture", "file", "till.csv", "--once", *COMMON, server.url]) == 0
        with connect(server.url) as client:
            assert client.stream("till").records == 2
