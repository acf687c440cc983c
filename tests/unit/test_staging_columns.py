"""Names and columns of streams: what is accepted, how it is stored, which changes flow."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from millstream.errors import InputError, NameRefused, SchemaRefused, UnsupportedType
from millstream.staging import columns
from millstream.staging.names import check_column, check_name

UTC = pa.timestamp("us", tz="UTC")

HOSTILE = [
    "",
    ".",
    "..",
    "-x",
    "a/b",
    "a\\b",
    'a"b',
    "a'b",
    "a;b",
    "a b",
    "a\0b",
    "a\nb",
    "x" * 129,
    "x" * 65536,
    "оrders",
    None,
    7,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(name: object) -> None:
    with pytest.raises(NameRefused) as caught:
        check_name(name, what="stream")
    assert len(str(caught.value)) < 300
    with pytest.raises(NameRefused):
        check_column(name)


def test_usual_names() -> None:
    for name in ("orders", "till-7", "shop.orders_2", "7"):
        assert check_name(name, what="stream") == name
    with pytest.raises(NameRefused):
        check_column("7")


@pytest.mark.parametrize(
    "kind",
    [
        pa.bool_(), pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), UTC,
        pa.timestamp("us"), pa.decimal128(38, 10), pa.list_(pa.struct([("A", pa.int32()), ("b", pa.list_(UTC))])),
        pa.map_(pa.string(), pa.decimal128(5, 2)),
    ],
    ids=str,
)  # fmt: skip
def test_types_as_text(kind: pa.DataType) -> None:
    assert columns.parse_type(columns.type_text(kind)) == kind
    assert columns.stored_type(kind) == kind


@pytest.mark.parametrize(
    "text", ["", "in", "decimal(40,2)", "decimal(2,3)", "list<", "list<a>", "struct<a;b:int>", "list<" * 50, "map<int>"]
)
def test_texts_that_are_no_types(text: str) -> None:
    with pytest.raises((UnsupportedType, NameRefused)):
        columns.parse_type(text)


def test_aliases() -> None:
    assert columns.parse_type("BIGINT") == pa.int64()
    assert columns.parse_type("array<int>".replace("array", "list")) == pa.list_(pa.int32())


def test_other_types_are_stored_as_near_ones() -> None:
    offered = pa.schema(
        [
            ("d", pa.dictionary(pa.int32(), pa.string())),
            ("l", pa.large_string()),
            ("t", pa.timestamp("ns", tz="Europe/Berlin")),
            ("u", pa.uint32()),
        ]
    )
    stored = columns.stored_schema(offered)
    assert stored.types == [pa.string(), pa.string(), UTC, pa.int64(), UTC]
    at = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    batch = pa.RecordBatch.from_pylist([{"d": "x", "l": "y", "t": at, "u": 7}], schema=offered)
    (row,) = columns.conform(batch, stored).to_pylist()
    assert {name: row[name] for name in "dltu"} == {"d": "x", "l": "y", "t": at, "u": 7}
    assert abs(datetime.datetime.now(datetime.UTC) - row["_captured"]) < datetime.timedelta(minutes=1)


@pytest.mark.parametrize("kind", [pa.uint64(), pa.null(), pa.time64("us"), pa.duration("s"), pa.binary(4), pa.uuid()])
def test_types_that_cannot_be_stored(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedType):
        columns.stored_schema(pa.schema([("a", kind)]))


def test_unknown_extension_types_are_refused_too() -> None:
    field = pa.field("a", pa.binary(), metadata={"ARROW:extension:name": "evil", "ARROW:extension:metadata": ""})
    with pytest.raises(UnsupportedType, match="extension"):
        columns.stored_schema(pa.schema([field]))


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("a", pa.int64()), ("a", pa.int64())]),
        pa.schema([("_source", pa.string())]),
        pa.schema([("_captured", pa.string())]),
        pa.schema([(f"c{number}", pa.int8()) for number in range(2001)]),
    ],
    ids=["twice", "reserved", "captured", "many"],
)
def test_schemas_that_are_refused(schema: pa.Schema) -> None:
    with pytest.raises(SchemaRefused):
        columns.stored_schema(schema)


def test_additions_flow() -> None:
    old = columns.widened(None, columns.stored_schema(pa.schema([("a", pa.int64())])))
    new = columns.widened(old, columns.stored_schema(pa.schema([("b", pa.string()), ("a", pa.int64())])))
    assert new.names == ["a", "_captured", "b"]
    assert columns.widened(new, old) is new


def test_anything_else_is_refused_with_the_difference() -> None:
    old = columns.widened(None, columns.stored_schema(pa.schema([("a", pa.int64()), ("b", pa.string())])))
    offered = columns.stored_schema(
        pa.schema([pa.field("a", pa.string()), pa.field("b", pa.string()), pa.field("c", pa.int8(), nullable=False)])
    )
    with pytest.raises(SchemaRefused) as caught:
        columns.widened(old, offered)
    assert caught.value.difference == ["a: the stream has int64, offered is string", "c: new, so it must be nullable"]


def test_a_batch_is_made_to_fit() -> None:
    schema = columns.stored_schema(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    batch = columns.conform(pa.record_batch({"a": pa.array([1, 2], pa.int32())}), schema)
    assert batch.schema == schema
    assert batch.column("b").to_pylist() == [None, None]
    with pytest.raises(SchemaRefused, match="other"):
        columns.conform(pa.record_batch({"other": [1]}), schema)
    with pytest.raises(SchemaRefused, match="a cannot be stored as int64"):
        columns.conform(pa.record_batch({"a": ["x"]}), schema)


@pytest.mark.parametrize("given", [None, {}, [["a"]], [["a", "int64", "b", "c"]], ["a"]])
def test_schemas_from_outside(given: object) -> None:
    with pytest.raises(InputError):
        columns.from_list(given)
