"""Blocks from somebody who means harm: sound checksums, wrong content. Refused, never a crash, never stored."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from millstream.errors import BlockRefused, BlockTooLarge, MillstreamError
from millstream.staging import Block, Limits
from millstream.staging.block import Header, join
from millstream.staging.columns import conform, stored_schema
from millstream.staging.store import Store
from millstream.staging.stream import Stream
from staging_area import records

COLUMNS = pa.schema(
    [
        ("number", pa.int64()),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("list", pa.list_(pa.string())),
        ("map", pa.map_(pa.string(), pa.int32())),
        ("price", pa.decimal128(10, 2)),
    ]
)


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    with Store(tmp_path, limits=Limits(payload=1 << 20, expanded=4 << 20)) as store:
        yield store.open("orders", COLUMNS)


def batch(rows: int = 20) -> pa.RecordBatch:
    values = [
        {"number": n, "text": f"t{n}" if n % 3 else None, "flag": n % 2 == 0, "list": ["a"] * (n % 4), "map": {"k": n}}
        for n in range(rows)
    ]
    made = pa.RecordBatch.from_pylist(
        [{**one, "map": list(one["map"].items()), "price": None} for one in values], schema=COLUMNS
    )
    return conform(made, stored_schema(COLUMNS))


def offer(stream: Stream, header: Header, payload: bytes | pa.Buffer, *, honest: bool = True) -> int:
    """Hand a block in, its lengths and checksums made to fit unless told otherwise; how many records were taken."""
    payload = pa.py_buffer(payload)
    if honest:
        header = replace(header, payload=payload.size, checksum=zlib.crc32(payload))
        if header.codec == "none":
            header = replace(header, expanded=payload.size)
    claim = stream.claim("till", "a")
    content = pa.py_buffer(join(header, payload))
    return stream.accept(content, source="till", incarnation="a", claim=claim).rows


def block(rows: int = 20) -> tuple[Header, pa.Buffer]:
    return Block("orders", "till", "a", 0, batch(rows)).encode()


def test_the_way_these_tests_make_blocks(stream: Stream) -> None:
    assert offer(stream, *block()) == 20


def test_mutated_messages(stream: Stream) -> None:
    """Bytes of the Arrow message changed at random, checksums right: refused, or a sound batch of the right size."""
    seed = 4
    print(f"seed {seed}")
    chance = random.Random(seed)
    header, payload = block()
    refused = 0
    for turn in range(4000):
        changed = bytearray(payload)
        if turn % 2:  # most of what matters stands in front
            places = [chance.randrange(min(len(changed), 700)) for _ in range(chance.randint(1, 4))]
        else:
            places = [chance.randrange(len(changed)) for _ in range(chance.randint(1, 8))]
        for place in places:
            changed[place] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
        if turn % 10 == 0:
            changed = changed[: chance.randrange(len(changed))]
        fresh = replace(header, incarnation=f"i{turn}")
        try:
            claim = stream.claim("till", fresh.incarnation)
            sent = pa.py_buffer(bytes(changed))
            fresh = replace(fresh, payload=sent.size, expanded=sent.size, checksum=zlib.crc32(sent))
            taken = stream.accept(pa.py_buffer(join(fresh, sent)), source="till", incarnation=f"i{turn}", claim=claim)
            assert taken.rows == 20
        except BlockRefused:
            refused += 1
    assert refused > 1000


def test_other_messages_than_a_record_batch(stream: Stream) -> None:
    header, payload = block()
    schema_message = batch().schema.serialize()
    whole_stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(whole_stream, batch().schema) as writer:
        writer.write_batch(batch())
    for content in (schema_message, whole_stream.getvalue(), b"", b"\0" * 100, bytes(payload) + bytes(payload)):
        with pytest.raises(BlockRefused):
            offer(stream, header, content)


def test_another_schema_than_the_stream_has(stream: Stream) -> None:
    header, _ = block()
    for other in (records(0, 20), pa.record_batch({"number": pa.array(range(20), pa.int8())})):
        with pytest.raises(BlockRefused):
            offer(stream, replace(header, columns=other.num_columns), other.serialize())
    with pytest.raises(BlockRefused, match="columns"):
        offer(stream, replace(header, columns=99), batch().serialize())
    with pytest.raises(BlockRefused):
        offer(stream, replace(header, columns=0), batch().serialize())


@pytest.mark.parametrize("rows", [0, 1, 19, 21, 1 << 31, (1 << 62) - 1, 1 << 63])
def test_a_wrong_number_of_records(stream: Stream, rows: int) -> None:
    header, payload = block()
    with pytest.raises(BlockRefused):
        offer(stream, replace(header, rows=rows), payload)


def test_wrong_numbers(stream: Stream) -> None:
    header, payload = block()
    for changed in (
        replace(header, first=(1 << 64) - 1),
        replace(header, stream="other"),
        replace(header, source="web"),
        replace(header, incarnation="b"),
    ):
        with pytest.raises(BlockRefused):
            offer(stream, changed, payload)


def squeezed(rows: int, codec: str, *, width: int = 100) -> tuple[Header, pa.Buffer]:
    """A block that is small because all its records are the same."""
    same = conform(pa.record_batch({"text": pa.repeat("x" * width, rows)}), stored_schema(COLUMNS))
    return Block("orders", "till", "a", 0, same).encode(codec)  # type: ignore[arg-type]


def count_decompressed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    calls = []
    monkeypatch.setattr("millstream.staging.block._codec", lambda name: calls.append(name))
    return lambda: len(calls)


def test_bombs_are_refused_before_they_are_expanded(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = squeezed(60_000, "zstd")
    wide = squeezed(30, "zstd", width=100_000)
    assert bomb[1].size * 200 > bomb[0].expanded > 4 << 20
    assert wide[1].size * 200 < wide[0].expanded < 4 << 20
    expanded = count_decompressed(monkeypatch)
    with pytest.raises(BlockTooLarge, match="expands to"):
        offer(stream, *bomb)
    with pytest.raises(BlockTooLarge, match="-fold"):
        offer(stream, *wide)
    with pytest.raises(BlockTooLarge, match="above the limit"):
        offer(stream, bomb[0], bytes(2 << 20))
    assert expanded() == 0


def test_a_bomb_that_lies_about_its_size(stream: Stream) -> None:
    for codec in ("lz4", "zstd"):
        header, payload = squeezed(400_000, codec)
        for claimed in (0, 1000, 1 << 20, header.expanded - 1):
            with pytest.raises(BlockRefused):
                offer(stream, replace(header, expanded=claimed), payload)
        small, content = squeezed(10, codec)
        with pytest.raises(BlockRefused):
            offer(stream, replace(small, expanded=small.expanded + 1), content)
        with pytest.raises(BlockRefused):
            offer(stream, small, b"nonsense")


def test_a_message_that_is_compressed_inside(stream: Stream) -> None:
    """Arrow would expand its buffers while it reads, whatever they claim."""
    header, _ = block()
    same = conform(pa.record_batch({"text": pa.repeat("x" * 100, 100_000)}), stored_schema(COLUMNS))
    for codec in ("lz4", "zstd"):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, same.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
            writer.write_batch(same)
        reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
        reader.read_next_message()
        inside = reader.read_next_message().serialize()
        assert inside.size < 1 << 20
        with pytest.raises(BlockRefused, match="compressed inside"):
            offer(stream, replace(header, rows=100_000), inside)


def test_captured_is_never_null(stream: Stream) -> None:
    at = batch().schema.get_field_index("_captured")
    nulls = batch().set_column(at, batch().schema.field(at), pa.nulls(20, batch().schema.field(at).type))
    with pytest.raises(BlockRefused, match="_captured"):
        offer(stream, block()[0], nulls.serialize())


def test_text_that_is_no_text(stream: Stream) -> None:
    made = batch()
    at = made.schema.get_field_index("text")
    broken = pa.Array.from_buffers(pa.string(), 20, pa.array([b"\xff\xfe"] * 20, pa.binary()).buffers())
    with pytest.raises(BlockRefused):
        offer(stream, block()[0], made.set_column(at, made.schema.field(at), broken).serialize())


def test_nothing_of_all_this_was_stored(stream: Stream) -> None:
    header, payload = block()
    with pytest.raises(MillstreamError):
        offer(stream, replace(header, rows=7), payload)
    assert stream.log.position == 0
    assert offer(stream, header, payload) == 20
