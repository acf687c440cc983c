"""Following a file: growth, rotation, restarts, bad lines; against a staging area that follows a script."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.capture import parse_ddl
from millstream.errors import InputError, MillstreamError
from millstream.source import FlowRegulator, sender
from millstream.source.follow import FileFollower
from millstream.source.lines import Format, parser
from scripted_staging import ScriptedStaging


class Capture:
    """A capture of one file, run in a thread, killed and started again as a test likes."""

    def __init__(self, folder: Path, staging: ScriptedStaging, kind: Format) -> None:
        self.file, self.staging, self.kind = folder / f"till.{kind}", staging, kind
        self._folder = folder
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.ddl = ""

    def run(self, *, once: bool = True) -> None:
        schema = parse_ddl(self.ddl) if self.ddl else None
        regulator = FlowRegulator(
            "grpc://127.0.0.1:1",
            "orders",
            source="file",
            spool=self._folder / "spool",
            schema=schema,
            replayed=True,
            sender="thread",
            when_full="wait",
        )
        try:
            lines = parser(self.kind, schema or regulator.schema, given=bool(self.ddl), header=True, delimiter=",")
            follower = FileFollower(self.file, regulator, lines, rejects=self._folder / "rejects.jsonl")
            follower.run(once=once, pause=0.005, over=self._over.is_set)
        finally:
            regulator.close(timeout=5)

    def start(self) -> None:
        self._over.clear()
        self._thread = threading.Thread(target=self.run, kwargs={"once": False})
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def append(self, text: str) -> None:
        with open(self.file, "a") as file:
            file.write(text)

    def column(self, name: str = "id") -> list[Any]:
        return [row[name] for row in self.staging.stored["orders"]]

    def rejects(self) -> list[dict[str, Any]]:
        path = self._folder / "rejects.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def arrives(self, expected: list[Any]) -> bool:
        deadline = time.monotonic() + 5
        while self.column() != expected and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.column() == expected


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Format], Capture]]:
    staging = ScriptedStaging()
    monkeypatch.setattr(sender, "connect", staging.connect)
    made: list[Capture] = []

    def capture(kind: Format) -> Capture:
        made.append(Capture(tmp_path, staging, kind))
        return made[-1]

    yield capture
    for one in made:
        one.stop()


Make = Callable[[Format], Capture]


def rows(*numbers: int) -> str:
    return "".join(f"{number},n{number}\n" for number in numbers)


def objects(*numbers: int) -> str:
    return "".join(json.dumps({"id": number, "name": f"n{number}"}) + "\n" for number in numbers)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_file_is_read_once_however_often_we_begin(make: Make, kind: Format) -> None:
    one = make(kind)
    lines = rows if kind == "csv" else objects
    one.append(("id,name\n" if kind == "csv" else "") + lines(*range(100)))
    one.run()
    one.run()
    one.append(lines(*range(100, 150)))
    one.run()
    assert one.column() == list(range(150))
    assert one.column("_sequence") == list(range(150))
    assert one.column("name")[42] == "n42"


def test_a_growing_file_is_followed_and_a_partial_line_waits(make: Make) -> None:
    one = make("csv")
    one.start()
    one.append("id,name\n1,a\n2,")
    assert one.arrives([1])
    one.append("b")
    time.sleep(0.05)
    assert one.column() == [1]
    one.append("\n3,c\n")
    assert one.arrives([1, 2, 3])
    assert one.column("name") == ["a", "b", "c"]


def test_a_last_line_without_its_end_counts_when_the_file_is_over(make: Make) -> None:
    one = make("csv")
    one.append("id,name\n1,a\n2,b")
    one.run()
    assert one.column() == [1, 2]


def test_a_renamed_file_is_read_to_its_end_before_the_new_one(make: Make) -> None:
    one = make("csv")
    one.append("id,name\n" + rows(1, 2))
    one.start()
    assert one.arrives([1, 2])
    with open(one.file, "a") as still_open:
        one.file.rename(one.file.with_suffix(".csv.1"))
        still_open.write(rows(3))
        still_open.flush()
        one.append("id,name\n" + rows(4))
    assert one.arrives([1, 2, 3, 4])


def test_files_renamed_while_nobody_looked_are_found(make: Make) -> None:
    one = make("csv")
    one.append("id,name\n" + rows(1, 2))
    one.run()
    one.append(rows(3))
    one.file.rename(one.file.with_suffix(".csv.2"))
    one.append("id,name\n" + rows(4, 5))
    os.utime(one.file, ns=(time.time_ns(), time.time_ns() + 10**9))
    one.file.rename(one.file.with_suffix(".csv.1"))
    one.append("name,id\nn6,6\n")
    os.utime(one.file, ns=(time.time_ns(), time.time_ns() + 2 * 10**9))
    one.run()
    assert one.column() == [1, 2, 3, 4, 5, 6]
    assert one.column("name")[-1] == "n6"


def test_a_truncated_file_is_read_from_its_beginning(make: Make) -> None:
    one = make("csv")
    one.append("id,name\n" + rows(1, 2, 3))
    one.start()
    assert one.arrives([1, 2, 3])
    one.file.write_text("id,name\n" + rows(4))
    assert one.arrives([1, 2, 3, 4])
    # longer than before at once: only its first bytes tell
    one.file.write_text("id,name\n" + rows(*range(50, 90)))
    assert one.arrives([1, 2, 3, 4, *range(50, 90)])


def test_a_file_that_comes_later_is_waited_for(make: Make) -> None:
    one = make("jsonl")
    one.start()
    time.sleep(0.05)
    one.append(objects(1))
    assert one.arrives([1])


def test_bad_lines_of_csv_are_set_aside_with_number_and_reason(make: Make) -> None:
    one = make("csv")
    one.ddl = "id bigint, name string, at timestamp, amount decimal(10,2)"
    with open(one.file, "wb") as file:
        file.write(
            b"id,name,at,amount\n"
            b"1,a,2024-01-01T00:00:00Z,1.50\n"
            b"x,b,2024-01-01T00:00:00Z,1\n"
            b"3,c\n"
            b"\n"
            b'4,"d,2024-01-01T00:00:00Z,1\n'
            b"5,\xff,2024-01-01T00:00:00Z,1\n"
            b"6,f,yesterday,1\n"
            b'7,"g, with ""quotes""",,\n'
            b"8,h,2024-01-01T00:00:00Z,1.234567\n"
        )
    one.run()
    one.run()
    assert one.column() == [1, 7]
    assert one.column("name") == ["a", 'g, with "quotes"']
    found = {reject["record"]: reject["reason"] for reject in one.rejects()}
    assert sorted(found) == [3, 4, 6, 7, 8, 10]
    assert "column id is int64" in found[3]
    assert found[4] == "2 values for 4 columns"
    assert found[6] == "a quote is not closed in the line"
    assert found[7] == "the line is not UTF-8"
    assert "column at is timestamp" in found[8]
    assert "column amount is decimal128(10, 2)" in found[10]


def test_bad_lines_of_json_are_set_aside(make: Make) -> None:
    one = make("jsonl")
    one.append(objects(1) + "{not json\n" + objects(2) + '{"id": "three"}\n[4]\n' + objects(5))
    one.run()
    assert one.column() == [1, 2, 5]
    assert [reject["record"] for reject in one.rejects()] == [2, 4, 5]


def test_new_names_are_new_columns(make: Make) -> None:
    one = make("jsonl")
    one.append(objects(1))
    one.run()
    one.append('{"id": 2, "extra": 1.5}\n')
    one.run()
    assert [row.get("extra") for row in one.staging.stored["orders"]] == [None, 1.5]
    other = make("csv")
    assert other.column() == [1, 2]


def test_a_capture_that_is_cut_off_from_staging_goes_on_where_the_spool_is(make: Make) -> None:
    one = make("csv")
    one.append("id,name\n" + rows(*range(1000)))
    one.staging.away = True
    thread = threading.Thread(target=one.run)
    thread.start()
    time.sleep(0.2)
    one.staging.away = False
    thread.join()
    one.append(rows(*range(1000, 1100)))
    one.run()
    assert one.column() == list(range(1100))


@pytest.mark.parametrize("text", ["id", "id bigint,", "id nosuchtype", "1d bigint", "a b c d"])
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(MillstreamError):
        parse_ddl(text)


def test_a_schema_with_commas_inside_of_types() -> None:
    schema = parse_ddl("id bigint, amount decimal(10,2), tags list<string>, at timestamp")
    assert schema.names == ["id", "amount", "tags", "at"]
    with pytest.raises(InputError, match="is not a column and a type"):
        parse_ddl("id")
