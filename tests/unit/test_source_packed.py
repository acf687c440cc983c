"""Records as bytes of one length."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pyarrow as pa
import pytest

from millstream.errors import InputError
from millstream.source import FlowRegulator, packed, sender
from millstream.staging.columns import stored_schema
from scripted_staging import ScriptedStaging

LAYOUT = struct.Struct("<q6s2hd?3xi")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("low", pa.int16()),
        ("high", pa.int32()),
        ("price", pa.float64()),
        ("ok", pa.bool_()),
        ("count", pa.int32()),
    ]
)


@pytest.mark.parametrize("order", ["<", ">"])
def test_every_kind_of_field(order: str) -> None:
    layout = struct.Struct(order + LAYOUT.format[1:])
    records = [layout.pack(n, b"n%d" % n, -n, n, n / 2, n % 2 == 0, n) for n in range(5)]
    payload = packed.joined([struct.pack("<d", 12.5), *records], layout.size)
    assert payload is not None
    batch = packed.to_batch([payload], packed.check(layout.format, stored_schema(SCHEMA)), stored_schema(SCHEMA))
    assert batch.num_rows == 5
    row = batch.to_pylist()[3]
    assert {name: row[name] for name in SCHEMA.names} == {
        "id": 3, "name": "n3", "low": -3, "high": 3, "price": 1.5, "ok": False, "count": 3
    }  # fmt: skip
    assert row["_captured"].timestamp() == 12.5


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("qi", "with < or >"),
        ("<qz", "is no layout"),
        ("<q", "has 1 fields, the schema 7 columns"),
        ("<qqhhd?q", "does not go with the schema"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(layout: str, words: str) -> None:
    schema = pa.schema([*list(SCHEMA)[:-1], ("count", pa.date32())]) if words.startswith("does") else SCHEMA
    with pytest.raises(InputError, match=words):
        packed.check(layout, stored_schema(schema))


def test_bytes_and_tuples_and_rubbish_in_one_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = ScriptedStaging()
    monkeypatch.setattr(sender, "connect", staging.connect)
    layout = "<q4s"
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with FlowRegulator(
        "grpc://x:1", "orders", source="till", spool=tmp_path, schema=schema, layout=layout, block=10, sender="thread"
    ) as one:
        block = one.block
        for number in range(50):
            block.append(struct.pack(layout, number, b"n"))
            if len(block) > block.limit:
                one.end_block()
        one.send((50, "tuple"))
        block.append(struct.pack(layout, 51, b"more"))
        one.send(b"short")  # type: ignore[arg-type]
        one.send((1, 2, 3))
        assert one.flush(5)
        assert one.stats.rejected == 2
    rows = staging.stored["orders"]
    assert [row["id"] for row in rows] == list(range(52))
    assert [row["name"] for row in rows[49:]] == ["n", "tuple", "more"]
    assert all(abs(row["_captured"].timestamp() - time.time()) < 60 for row in rows)
