"""Torn tails and flipped bits in a log: an unacknowledged tail goes, anything else is named and never skipped."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from millstream.errors import BlockDamaged, CorruptLog
from millstream.staging import Server, connect
from millstream.staging.durable import read_manifest
from millstream.staging.log import Log
from millstream.staging.store import Store
from staging_area import SCHEMA, expected, raw, records, stored


def image(tmp_path: Path) -> tuple[Path, Path, int, list[int]]:
    """A staging directory as a crash leaves it: two blocks acknowledged, two not. Its path, that of the segment, how
    much of that is acknowledged, and where the blocks begin."""
    with Store(tmp_path / "live") as store:
        stream = store.open("orders", SCHEMA)
        log = stream.log
        path = next(log.directory.glob("*.log"))
        begins = []
        for first in (0, 5, 10, 15):
            begins.append(log._active.size)
            stored_ = stream.put("till", incarnation="a", first=first, batch=records(first, 5))
            if first == 5:
                log.sync(stored_.mark)
                acknowledged = path.stat().st_size
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    return tmp_path / "crashed", tmp_path / "crashed" / path.relative_to(tmp_path / "live"), acknowledged, begins


def reopened(directory: Path) -> tuple[list[int], int]:
    """The numbers of all records that can be read after a start, and the one that is due."""
    place = directory / "streams/000001"
    log = Log(place, log=read_manifest(place / "stream.json")["log"], stream="orders", segment_bytes=1 << 20)
    found = [header.first + n for header, _ in log.read(0, log.durable) for n in range(header.rows)]
    log.close()
    return found, log.sources.get(("till", "a"), 0)


def test_a_tail_torn_at_every_byte(tmp_path: Path) -> None:
    directory, segment, acknowledged, begins = image(tmp_path)
    content = segment.read_bytes()
    for length in range(acknowledged, len(content) + 1):
        segment.write_bytes(content[:length])
        whole = sum(length >= end for end in (*begins[1:], len(content)))
        assert reopened(directory) == (list(range(5 * whole)), 5 * whole), length
    for length in range(0, acknowledged, 17):
        segment.write_bytes(content[:length])
        (directory / "streams/000001/synced").write_bytes((tmp_path / "live/streams/000001/synced").read_bytes())
        with pytest.raises(CorruptLog) as caught:
            Store(directory)
        assert caught.value.file == str(segment)
        assert segment.stat().st_size == length, "nothing may be changed"


def test_a_tail_of_zeros_or_of_other_bytes(tmp_path: Path) -> None:
    directory, segment, acknowledged, _ = image(tmp_path)
    content = segment.read_bytes()
    for tail in (bytes(5000), os.urandom(5000), content[:acknowledged]):
        segment.write_bytes(content[:acknowledged] + tail)
        assert reopened(directory) == (list(range(10)), 10)


def test_a_bit_flipped_anywhere_in_the_active_segment(tmp_path: Path) -> None:
    directory, segment, acknowledged, begins = image(tmp_path)
    marker = directory / "streams/000001/synced"
    content, synced = segment.read_bytes(), marker.read_bytes()
    for at in range(0, len(content), 3):
        segment.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
        marker.write_bytes(synced)
        if at < acknowledged:
            with pytest.raises(CorruptLog) as caught:
                Store(directory)
            assert caught.value.file == str(segment)
            assert caught.value.offset == max([0, *(begin for begin in begins if begin <= at)])
        else:
            whole = 2 + (at >= begins[3])
            assert reopened(directory) == (list(range(5 * whole)), 5 * whole)


def test_the_blocks_know_what_was_durable_when_the_marker_is_lost(tmp_path: Path) -> None:
    directory, segment, _, begins = image(tmp_path)
    content = segment.read_bytes()
    for at in range(begins[0], begins[2], 5):
        segment.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
        (directory / "streams/000001/synced").unlink(missing_ok=True)
        with pytest.raises(CorruptLog, match="damaged at byte"):
            Store(directory)


def test_damage_in_an_older_segment_is_named_when_it_is_read(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        stream = store.open("orders", SCHEMA)
        stream.log._segment_bytes = 1000
        for first in range(0, 50, 5):
            mark = stream.put("till", incarnation="a", first=first, batch=records(first, 5)).mark
        stream.log.sync(mark)
        segment = sorted(stream.log.directory.glob("*.log"))[1]
    content = bytearray(segment.read_bytes())
    content[-20] ^= 1
    segment.write_bytes(content)
    with Server(tmp_path, http_port=None) as server, connect(server.url) as client:
        assert client.stream("orders").end == 50
        with pytest.raises(CorruptLog, match=f"{segment} is damaged at byte"):
            stored(client)


def test_damage_of_the_small_files_is_named(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        stream = store.open("orders", SCHEMA)
        stream.register("sales")
    for name in ("staging.json", "streams/000001/stream.json", "streams/000001/flows.json"):
        path = tmp_path / name
        content = path.read_bytes()
        changed = content.replace(b"format", b"formal") if b"format" in content else content.replace(b"flows", b"flown")
        for damaged in (b"", content[:-9], changed, b"[]", b"\xff"):
            path.write_bytes(damaged)
            with pytest.raises(CorruptLog, match=path.name):
                Store(tmp_path)
        path.write_bytes(content)
    Store(tmp_path).close()


def test_a_bit_flipped_on_the_way_is_refused_and_sent_again(tmp_path: Path) -> None:
    with Server(tmp_path, http_port=None) as server, connect(server.url) as client:
        content = bytearray(raw(0, 5))
        for at in (4, 20, 60, 85, len(content) // 2, len(content) - 9):
            session = client.open("orders", "till", incarnation="a", schema=SCHEMA)
            flipped = content.copy()
            flipped[at] ^= 1
            session._writer.write_metadata(pa.py_buffer(bytes(flipped)))
            with pytest.raises((BlockDamaged, ValueError)):
                session.wait(5)
        session = client.open("orders", "till", incarnation="a", schema=SCHEMA)
        for length in (3, 79, 80, 100, len(content) - 1):
            session._writer.write_metadata(pa.py_buffer(bytes(content[:length])))
            with pytest.raises((BlockDamaged, ValueError)):
                session.wait(5)
            session = client.open("orders", "till", incarnation="a", schema=SCHEMA)
            assert session.next == 0
        session._writer.write_metadata(pa.py_buffer(bytes(content)))
        session.wait(5)
        assert stored(client) == expected(5)
