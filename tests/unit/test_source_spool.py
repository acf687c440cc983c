"""The spool: what is written is read, what is torn is not, and a checkpoint is whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from millstream.errors import InputError, SpoolInUse
from millstream.source.spool import ROWS, SegmentReader, SpoolWriter, segments
from millstream.source.state import CURSOR_BYTES, SIZE, Checkpoint, State

SCHEMA = pa.schema([("id", pa.int64())]).serialize().to_pybytes()


def writer(folder: Path, **options: object) -> SpoolWriter:
    return SpoolWriter(folder, SCHEMA, segment_bytes=1 << 20, **options)  # type: ignore[arg-type]


def blocks(path: Path) -> list[tuple[int, int, bytes]]:
    reader = SegmentReader(path)
    place, found = reader.begin, []
    while block := reader.block(place):
        found.append((block.record, block.count, block.payload))
        place = block.end
    reader.close()
    return found


def test_blocks_are_read_as_they_were_written(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    spool.append(ROWS, 3, b"one", cursor=b"at 3")
    spool.append(ROWS, 2, b"two")
    (path,) = segments(tmp_path).values()
    assert blocks(path) == [(0, 3, b"one"), (3, 2, b"two")]
    assert (spool.record, spool.cursor) == (5, b"at 3")
    spool.close()


@pytest.mark.parametrize("where", ["every byte cut", "every byte flipped"])
def test_a_torn_or_damaged_last_block_is_no_block(tmp_path: Path, where: str) -> None:
    spool = writer(tmp_path / "spool")
    spool.append(ROWS, 1, b"whole")
    (path,) = segments(tmp_path / "spool").values()
    before = path.stat().st_size
    spool.append(ROWS, 1, b"torn")
    spool.close()
    content = path.read_bytes()
    for place in range(before, len(content)):
        damaged = bytearray(content[:place] if where == "every byte cut" else content)
        if where == "every byte flipped":
            damaged[place] ^= 0x40
        path.write_bytes(damaged)
        assert blocks(path) == [(0, 1, b"whole")]


def test_a_writer_goes_on_in_a_new_segment_behind_the_last_whole_block(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    spool.append(ROWS, 4, b"whole", cursor=b"c")
    spool.append(ROWS, 4, b"torn")
    incarnation = spool.incarnation
    spool.close()
    (path,) = segments(tmp_path).values()
    os.truncate(path, path.stat().st_size - 1)
    again = writer(tmp_path)
    assert (again.record, again.cursor, again.incarnation) == (4, b"c", incarnation)
    again.append(ROWS, 1, b"next")
    again.close()
    first, second = segments(tmp_path).values()
    assert blocks(first) == [(0, 4, b"whole")]
    assert blocks(second) == [(4, 1, b"next")]


def test_two_writers_cannot_share_a_spool(tmp_path: Path) -> None:
    spool = writer(tmp_path)
    with pytest.raises(SpoolInUse, match="a spool of its own"):
        writer(tmp_path)
    spool.close()
    writer(tmp_path).close()


@pytest.mark.parametrize(("options", "same"), [({}, False), ({"durable": True}, True), ({"replayed": True}, True)])
def test_numbers_begin_anew_after_a_restart_of_the_machine_unless_nothing_can_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool], same: bool
) -> None:
    spool = writer(tmp_path, **options)
    spool.close()
    monkeypatch.setattr("millstream.source.spool.boot", lambda: "another run of the machine")
    again = writer(tmp_path, **options)
    assert (again.incarnation == spool.incarnation) is same
    again.close()


def test_a_full_disk_leaves_the_spool_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = writer(tmp_path)
    spool.append(ROWS, 1, b"whole")
    real = os.writev

    def half(file: int, parts: list[bytes]) -> int:
        real(file, [parts[0]])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", half)
    with pytest.raises(OSError, match="No space"):
        spool.append(ROWS, 1, b"lost")
    monkeypatch.undo()
    spool.append(ROWS, 1, b"later")
    (path,) = segments(tmp_path).values()
    assert blocks(path) == [(0, 1, b"whole"), (1, 1, b"later")]
    spool.close()


def test_a_file_that_is_no_segment_is_named(tmp_path: Path) -> None:
    (tmp_path / "000000000001.spool").write_bytes(b"something else entirely")
    with pytest.raises(InputError, match=r"000000000001\.spool is not a segment"):
        writer(tmp_path)


def test_the_last_whole_checkpoint_counts(tmp_path: Path) -> None:
    state = State(tmp_path / "state")
    assert state.load() is None
    kept = [Checkpoint(1, 10 * n, n, n, "ab" * 16, "cd" * 16, b"x" * (n % CURSOR_BYTES)) for n in range(1, 40)]
    for checkpoint in kept:
        state.save(checkpoint)
    assert State(tmp_path / "state").load() == kept[-1]
    content = bytearray((tmp_path / "state").read_bytes())
    newest = content.index((39).to_bytes(8, "little"), 512)  # the generation at the head of its slot
    content[newest + 9] ^= 1
    (tmp_path / "state").write_bytes(content)
    assert State(tmp_path / "state").load() == kept[-2]
    assert len(content) == SIZE


def test_another_file_under_the_name_of_the_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"x" * SIZE)
    with pytest.raises(InputError, match="directory of its own"):
        State(tmp_path / "state")
