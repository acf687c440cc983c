"""Target tables: what can be one, and how it may change."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.errors import ColumnClash, InputError, NameRefused, TableMismatch, UnknownColumn, UnsupportedType
from millstream.warehouse import TableSpec
from millstream.warehouse.spec import check_batch, check_label

SCHEMA = pa.schema([("id", pa.int64()), ("shop", pa.string()), ("amount", pa.decimal128(10, 2))])
HOSTILE = [
    "",
    " ",
    "a b",
    'a"b',
    "a'b",
    "a;drop table x",
    "a/b",
    "../a",
    "a\0b",
    "a\n",
    "x" * 65_536,
    "1a",
    "a-b",
    "ordеrs",  # with a Cyrillic letter
    "\u202eorders",
    None,
    7,
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name)[:20])
def test_hostile_names_are_refused(name: object) -> None:
    with pytest.raises(NameRefused):
        TableSpec(name, SCHEMA)  # type: ignore[arg-type]
    if isinstance(name, str):
        with pytest.raises(NameRefused):
            TableSpec("orders", pa.schema([(name, pa.int64())]))


@pytest.mark.parametrize(
    "name", ["pg_class", "_hidden", "millstream", "MILLSTREAM_x", "duckdb_tables", "sqlite_master"]
)
def test_names_of_the_system_are_taken(name: str) -> None:
    with pytest.raises(NameRefused, match="taken"):
        TableSpec(name, SCHEMA)


@pytest.mark.parametrize("label", ["", "a/b", "../x", "a b", "a\0", "é", "-a", ".a", "x" * 129, None, 3])
def test_hostile_labels_are_refused(label: object) -> None:
    with pytest.raises(NameRefused):
        check_label(label, "flow")


@pytest.mark.parametrize("batch", [-1, 1 << 63, 1.5, "1", True, None])
def test_batches_are_numbers(batch: object) -> None:
    with pytest.raises(InputError):
        check_batch(batch)


def test_stored_columns_follow_the_mode() -> None:
    system = [("_source", pa.string()), ("_sequence", pa.int64()), ("_captured", pa.timestamp("us", tz="UTC"))]
    whole = pa.schema([*SCHEMA, *(pa.field(*one) for one in system), pa.field("_op", pa.string())])
    assert TableSpec("t", whole).stored.names == ["id", "shop", "amount", "_op"]
    assert TableSpec("t", whole, keep_system=True).stored.names == whole.names
    assert TableSpec("t", whole, mode="upsert", key="id").stored.names == SCHEMA.names
    view = TableSpec("t", SCHEMA, mode="aggregate", key=["shop"], aggregates={"mean": "avg(amount)", "n": "count(*)"})
    assert view.stored.names == ["shop", "mean", "n", "_mean_sum", "_mean_count"]
    assert view.stored.field("_mean_sum").type == pa.decimal128(38, 2)


def test_json_keeps_a_spec_whole() -> None:
    nested = pa.schema([*SCHEMA, pa.field("tags", pa.list_(pa.struct([("a", pa.date32()), ("b", pa.binary())])))])
    for spec in (
        TableSpec("t", nested, keep_system=True),
        TableSpec("t", nested, mode="upsert", key=["id", "shop"]),
        TableSpec("t", SCHEMA, mode="aggregate", aggregates={"total": "SUM( amount )"}),
    ):
        assert TableSpec.from_json(spec.to_json()) == spec
        assert hash(TableSpec.from_json(spec.to_json())) == hash(spec)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"name": "t"},
        {"name": "t", "columns": "id"},
        {"name": "t", "columns": [["id"]]},
        {"name": "t", "columns": []},
        {"name": "t", "columns": [["id", "whatever"]]},
        {"name": "t", "columns": [["id", "struct<" * 2000]]},
        {"name": "t", "columns": [["id", "int64"]], "key": 7},
        [],
        None,
    ],
)
def test_json_that_is_no_spec_is_refused(value: object) -> None:
    with pytest.raises((InputError, UnsupportedType)):
        TableSpec.from_json(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"mode": "merge"}, InputError, "append, upsert, aggregate"),
        ({"mode": "upsert"}, InputError, "needs key"),
        ({"key": ["id"]}, InputError, "takes no key"),
        ({"mode": "upsert", "key": ["nope"]}, UnknownColumn, "nope"),
        ({"mode": "upsert", "key": ["id", "id"]}, InputError, "twice"),
        ({"mode": "aggregate", "key": ["shop"]}, InputError, "go together"),
        ({"aggregates": {"n": "count(*)"}}, InputError, "go together"),
        ({"mode": "aggregate", "aggregates": {"n": "median(amount)"}}, InputError, "median"),
        ({"mode": "aggregate", "aggregates": {"n": "sum(*)"}}, InputError, "only count"),
        ({"mode": "aggregate", "aggregates": {"n": "sum(price)"}}, UnknownColumn, "price"),
        ({"mode": "aggregate", "aggregates": {"n": "sum(shop)"}}, UnsupportedType, "added"),
        ({"mode": "aggregate", "aggregates": {"n": "sum(amount); drop"}}, InputError, "not an aggregate"),
        ({"mode": "aggregate", "key": ["shop"], "aggregates": {"Shop": "count(*)"}}, ColumnClash, "Shop"),
    ],
)
def test_what_does_not_go_together(options: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        TableSpec("t", SCHEMA, **options)  # type: ignore[arg-type]


def test_columns_that_no_table_takes() -> None:
    for kind in (pa.null(), pa.month_day_nano_interval(), pa.duration("s"), pa.time64("us")):
        with pytest.raises(UnsupportedType, match="'bad'"):
            TableSpec("t", pa.schema([("bad", kind)]))
    with pytest.raises(ColumnClash):
        TableSpec("t", pa.schema([("id", pa.int64()), ("ID", pa.int64())]))
    with pytest.raises(UnsupportedType, match="_captured"):
        TableSpec("t", pa.schema([("_captured", pa.string())]))
    with pytest.raises(InputError, match="deletes"):
        TableSpec("t", pa.schema([("_deleted", pa.bool_())]), mode="aggregate", aggregates={"n": "count(*)"})


def test_a_table_widens_by_new_columns_and_by_nothing_else() -> None:
    spec = TableSpec("t", SCHEMA)
    assert spec.widened(spec) is spec
    less = TableSpec("t", pa.schema([SCHEMA.field("id")]))
    assert spec.widened(less) is spec
    more = spec.widened(TableSpec("t", pa.schema([("id", pa.int64()), ("note", pa.string())])))
    assert more.schema.names == ["id", "shop", "amount", "note"]
    with pytest.raises(TableMismatch) as caught:
        spec.widened(TableSpec("t", pa.schema([("id", pa.string()), ("SHOP", pa.string())]), mode="upsert", key="id"))
    told = " ".join(caught.value.differences)
    assert "mode" in told
    assert "id int64" in told
    assert "SHOP" in told
