"""The checkpoint directory: whose it is, who holds it, what a crash has left of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import CheckpointRefused, Fenced
from millstream.flow import Files, Graph, ParquetFiles
from millstream.flow.checkpoint import Checkpoint

GRAPH = Graph.build("sales", [Files(path="/in", columns="a int"), ParquetFiles(path="/out")])
OFFSETS = b'v1\n{"batchWatermarkMs":0}\n{"logOffset":1}'
COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'


def spark_files(folder: Path, *, offsets: int, commits: int) -> Checkpoint:
    for name, count, content in (("offsets", offsets, OFFSETS), ("commits", commits, COMMIT)):
        (folder / name).mkdir(parents=True)
        for batch in range(count):
            (folder / name / str(batch)).write_bytes(content)
    (folder / "metadata").write_text('{"id":"x"}')
    return Checkpoint(folder)


def test_it_belongs_to_one_flow(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    checkpoint.hold()
    assert checkpoint.adopt(GRAPH) is None
    made = checkpoint.begin(GRAPH, first=7)
    assert checkpoint.adopt(GRAPH) == made
    assert made.first == 7
    for other in (
        Graph.build("other", GRAPH.nodes),
        Graph.build("sales", [Files(path="/elsewhere", columns="a int"), ParquetFiles(path="/out")]),
    ):
        with pytest.raises(CheckpointRefused, match="is the checkpoint of flow 'sales'"):
            checkpoint.adopt(other)


def test_of_a_query_that_is_no_flow(tmp_path):
    with pytest.raises(CheckpointRefused, match="no flow"):
        spark_files(tmp_path, offsets=1, commits=1).adopt(GRAPH)


def test_one_run_at_a_time_and_the_old_one_is_fenced(tmp_path):
    old, new = Checkpoint(tmp_path), Checkpoint(tmp_path)
    old.hold()
    old.check_held()
    with pytest.raises(CheckpointRefused, match="--take-over"):
        new.hold()
    new.hold(take_over=True)
    new.check_held()
    with pytest.raises(Fenced):
        old.check_held()
    old.release()
    Checkpoint(tmp_path).hold()


@pytest.mark.parametrize("torn", [b"", b"v1", b"v1\n", b'v1\n{"a":', b"\x00\x00\x00", OFFSETS[:-3]])
def test_torn_offsets_of_the_last_batch(tmp_path, torn):
    checkpoint = spark_files(tmp_path, offsets=3, commits=2)
    checkpoint.check_whole()
    (tmp_path / "offsets" / "2").write_bytes(torn)
    (tmp_path / "offsets" / ".2.crc").touch()
    with pytest.raises(CheckpointRefused, match=r"offsets/2 .*--repair"):
        checkpoint.check_whole()
    assert checkpoint.repair() == ["removed offsets/2: no target has anything of its batch, which is planned anew"]
    assert not (tmp_path / "offsets" / ".2.crc").exists()
    checkpoint.check_whole()


def test_torn_commit(tmp_path):
    checkpoint = spark_files(tmp_path, offsets=3, commits=3)
    (tmp_path / "commits" / "2").write_bytes(b"")
    assert checkpoint.repair() == ["removed commits/2: its batch is repeated, and targets know it"]
    checkpoint.check_whole()


def test_offsets_that_nothing_can_replace(tmp_path):
    checkpoint = spark_files(tmp_path, offsets=3, commits=3)
    (tmp_path / "offsets" / "2").write_bytes(b"")
    with pytest.raises(CheckpointRefused, match="nothing says where to go on"):
        checkpoint.repair()
    (tmp_path / "offsets" / "2").write_bytes(OFFSETS)
    (tmp_path / "offsets" / "0").write_bytes(b"")
    assert checkpoint.repair() == ["removed offsets/0: its batch is done and later ones are there"]


def test_the_files_of_each_activity_are_looked_at_too(tmp_path):
    for activity in ("FILTER", "TARGET"):
        spark_files(tmp_path / "activities" / activity, offsets=2, commits=2)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.check_whole()
    (tmp_path / "activities" / "FILTER" / "commits" / "1").write_bytes(b"v1")
    (tmp_path / "activities" / "TARGET" / "commits" / "1").unlink()
    (tmp_path / "activities" / "TARGET" / "offsets" / "1").write_bytes(b"")
    with pytest.raises(CheckpointRefused, match=r"activities/FILTER/commits/1, activities/TARGET/offsets/1 .*--repair"):
        checkpoint.check_whole()
    assert checkpoint.repair() == [
        "removed activities/FILTER/commits/1: its batch is repeated, and targets know it",
        "removed activities/TARGET/offsets/1: no target has anything of its batch, which is planned anew",
    ]
    checkpoint.check_whole()
