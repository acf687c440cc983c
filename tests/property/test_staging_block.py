"""The format of blocks, and the log against a plain model: any blocks, in any order, however often, across restarts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import MillstreamError, RecordGap
from millstream.staging import Block
from millstream.staging.block import CODECS, Compression, decode, join, payload_of, unpack
from millstream.staging.columns import conform, stored_schema
from millstream.staging.names import check_name
from millstream.staging.store import Store
from staging_area import SCHEMA, raw

NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,40}", fullmatch=True)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
            "t": st.none() | st.text(max_size=20),
            "b": st.none() | st.binary(max_size=20),
            "l": st.none() | st.lists(st.none() | st.booleans(), max_size=4),
        }
    ),
    min_size=1,
    max_size=20,
)
COLUMNS = pa.schema([("n", pa.int64()), ("t", pa.string()), ("b", pa.binary()), ("l", pa.list_(pa.bool_()))])


@settings(max_examples=150, deadline=None)
@given(NAMES, NAMES, NAMES, st.integers(0, 1 << 61), ROWS, st.sampled_from(CODECS))
def test_a_block_comes_back(
    stream: str, source: str, incarnation: str, first: int, rows: list[dict[str, object]], codec: Compression
) -> None:
    schema = stored_schema(COLUMNS)
    batch = conform(pa.RecordBatch.from_pylist(rows, schema=COLUMNS), schema)
    header, payload = Block(stream, source, incarnation, first, batch).encode(codec)
    whole = pa.py_buffer(join(header, payload))
    assert whole.size == header.block_length
    assert whole.size % 8 == 0
    found = unpack(memoryview(whole))
    assert found == header
    assert (found.stream, found.source, found.incarnation, found.first) == (stream, source, incarnation, first)
    again = decode(found, payload_of(found, whole), schema)
    assert again.equals(batch)
    assert [check_name(name, what="name") for name in (stream, source, incarnation)]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_nonsense_is_refused(content: bytes) -> None:
    with pytest.raises(MillstreamError):
        unpack(content)


WHOLE = {codec: bytes(raw(0, 3, compression=codec)) for codec in CODECS}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_flipped_bit_and_any_cut_is_noticed(data: st.DataObject) -> None:
    whole = WHOLE[data.draw(st.sampled_from(CODECS))]
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        # not in the zeros after the payload, which mean nothing
        length = unpack(whole).length + unpack(whole).payload
        bit = data.draw(st.integers(0, 8 * length - 1))
        damaged = bytes(byte ^ (1 << bit % 8 if at == bit // 8 else 0) for at, byte in enumerate(whole))
    with pytest.raises(MillstreamError):
        payload_of(unpack(damaged), pa.py_buffer(damaged))


BLOCKS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), st.integers(0, 30), st.integers(1, 12)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(BLOCKS, st.sets(st.integers(0, 24), max_size=3), st.sampled_from([300, 1500, 1 << 20]))
def test_the_log_against_a_model(blocks: list[tuple[str, str, int, int]], restarts: set[int], segment: int) -> None:
    model: list[tuple[str, int]] = []
    due: dict[tuple[str, str], int] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.open("orders", SCHEMA)
        for turn, (source, incarnation, first, count) in enumerate(blocks):
            if turn in restarts:
                store.close()
                store = Store(Path(folder))
            stream = store.stream("orders")
            stream.log._segment_bytes = segment
            claim = stream.claim(source, incarnation)
            content = raw(first, count, source=source, incarnation=incarnation)
            expected = due.get((source, incarnation), 0)
            if first > expected:
                with pytest.raises(RecordGap) as gap:
                    stream.accept(content, source=source, incarnation=incarnation, claim=claim)
                assert gap.value.expected == expected
                continue
            stored = stream.accept(content, source=source, incarnation=incarnation, claim=claim)
            new = max(expected, first + count)
            assert (stored.next, stored.rows) == (new, new - expected)
            model += [(source, number) for number in range(expected, new)]
            due[source, incarnation] = new
        stream = store.stream("orders")
        stream.log.sync(stream.log.mark)
        found = [
            (header.source, header.first + number)
            for header, _ in stream.read(0, stream.log.durable)
            for number in range(header.rows)
        ]
        store.close()
    assert found == model
