"""Columns that are not keys come out as they went in, whatever their type, NULLs and all."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from conformance.conftest import Masters
from driving import run_join
from millstream import joins
from oracle import assert_same_bag, expected_join

ROWS = 60
NOON = dt.datetime(2024, 3, 31, 12, 0, 0, 123_456)
POINT = pa.struct([("x", pa.int32()), ("label", pa.string())])

# type -> values to choose from; every column gets NULLs as well
PAYLOADS: dict[str, tuple[pa.DataType, list[object]]] = {
    "boolean": (pa.bool_(), [True, False, True]),
    "int8": (pa.int8(), [-128, 0, 127]),
    "int16": (pa.int16(), [-32_768, 0, 32_767]),
    "int32": (pa.int32(), [-(2**31), 0, 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    "float": (pa.float32(), [0.5, -0.0, float("nan"), float("inf")]),
    "double": (pa.float64(), [0.1, -0.0, float("nan"), float("-inf"), 5e-324]),
    "decimal10": (pa.decimal128(10, 2), [Decimal("0.01"), Decimal("-99999999.99"), Decimal("0.00")]),
    "decimal38": (pa.decimal128(38, 18), [Decimal("99999999999999999999.999999999999999999"), Decimal("-1e-18")]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2024, 2, 29)]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [NOON.replace(tzinfo=dt.UTC), dt.datetime(1, 1, 1, tzinfo=dt.UTC)]),
    "timestamp_zone": (pa.timestamp("us", tz="Europe/Berlin"), [NOON.replace(tzinfo=dt.UTC)]),
    "timestamp_ntz": (pa.timestamp("us"), [NOON, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)]),
    "string": (pa.string(), ["", "plain", "日本語 😀", "\0", "long " * 100]),
    "large_string": (pa.large_string(), ["", "large", "é" * 300]),
    "binary": (pa.binary(), [b"", b"\0\xff", bytes(range(256))]),
    "large_binary": (pa.large_binary(), [b"", b"\0\xff"]),
    "struct": (POINT, [{"x": 1, "label": "one"}, {"x": None, "label": None}, {"x": -1, "label": ""}]),
    "list": (pa.list_(pa.int64()), [[], [1], [None], [1, 2, 3, None]]),
    "list_of_strings": (pa.list_(pa.string()), [[], [""], [None, "a", "日本"]]),
    "list_of_lists": (pa.list_(pa.list_(pa.float64())), [[], [[]], [None, [1.5, None]]]),
    "list_of_structs": (pa.list_(POINT), [[], [None], [{"x": 1, "label": None}, {"x": None, "label": "b"}]]),
    "struct_of_list": (pa.struct([("tags", pa.list_(pa.string()))]), [{"tags": []}, {"tags": None}, {"tags": ["t"]}]),
    "map": (pa.map_(pa.string(), pa.int32()), [[], [("a", 1)], [("a", None), ("b", 2)]]),
    "map_of_structs": (pa.map_(pa.int32(), POINT), [[], [(1, {"x": 1, "label": "y"}), (2, None)]]),
    "large_list": (pa.large_list(pa.int16()), [[], [1, None]]),
    "fixed_list": (pa.list_(pa.int32(), 2), [[1, 2], [None, 3]]),
    "fixed_binary": (pa.binary(5), [b"12345", b"\0\0\0\0\0"]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "time": (pa.time64("us"), [dt.time(0, 0), dt.time(23, 59, 59, 999_999)]),
    "duration": (pa.duration("us"), [dt.timedelta(0), dt.timedelta(days=-1)]),
    "nothing": (pa.null(), [None]),
}


def column(name: str, rows: int, *, seed: int) -> pa.Array:
    kind, values = PAYLOADS[name]
    rng = np.random.default_rng(seed)
    chosen = [values[i] for i in rng.integers(0, len(values), rows)]
    return pa.array([None if gap else value for gap, value in zip(rng.random(rows) < 0.2, chosen, strict=True)], kind)


@cache
def data(name: str) -> tuple[pa.Table, pa.Table]:
    rng = np.random.default_rng(7)
    columns = list(PAYLOADS) if name == "all" else [name]
    stream = {f"s_{c}": column(c, ROWS, seed=1) for c in columns}
    master = {f"m_{c}": column(c, ROWS, seed=2) for c in columns}
    return (
        pa.table({"k": rng.integers(0, 50, ROWS), **stream, "position": np.arange(ROWS)}),
        pa.table({"k": rng.integers(0, 40, ROWS), **master}),
    )


@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.parametrize("how", ["left", "left_semi"])
@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_payload_survives(algorithm: str, how: str, name: str, masters: Masters) -> None:
    stream, table = data(name)
    master = masters(f"payload {name}", table, key="k")
    memory = 2 * joins.least_memory(algorithm, master, on="k", how=how)
    result = run_join(algorithm, master, stream, on="k", how=how, memory=memory, batch_rows=17)
    assert_same_bag(result, expected_join(stream, table, on="k", how=how))


@pytest.mark.parametrize("how", joins.HOWS)
@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_all_types_together(algorithm: str, how: str, masters: Masters) -> None:
    stream, table = data("all")
    master = masters("payload all", table, key="k", segment_bytes=16_384)
    memory = joins.least_memory(algorithm, master, on="k", how=how)
    result = run_join(algorithm, master, stream, on="k", how=how, memory=memory, batch_rows=25)
    assert_same_bag(result, expected_join(stream, table, on="k", how=how))


@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_dictionaries_and_views_become_plain(algorithm: str, masters: Masters) -> None:
    """Encodings are not kept, values are."""
    stream, table = data("string")
    strings, bytes_ = stream["s_string"], stream["s_string"].cast(pa.binary())
    plain = stream.append_column("d", strings).append_column("v", strings).append_column("b", bytes_)
    encoded = stream.append_column("d", strings.dictionary_encode()).append_column("v", strings.cast(pa.string_view()))
    encoded = encoded.append_column("b", bytes_.cast(pa.binary_view()))
    table_of_dictionaries = table.set_column(1, "m_string", table["m_string"].dictionary_encode())
    master = masters("payload dictionary", table_of_dictionaries, key="k")
    result = run_join(algorithm, master, encoded, on="k", how="left", batch_rows=17)
    assert_same_bag(result, expected_join(plain, table, on="k", how="left"))


@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_a_row_larger_than_a_segment(algorithm: str, masters: Masters) -> None:
    sizes = [1, 10, 100_000, 5, 50_000, 0]
    table = pa.table({"k": np.arange(len(sizes)), "blob": [b"x" * size for size in sizes]})
    stream = pa.table({"k": list(range(len(sizes))) * 3})
    master = masters("large rows", table, key="k")
    memory = joins.least_memory(algorithm, master, on="k", how="inner")
    result = run_join(algorithm, master, stream, on="k", memory=memory)
    assert_same_bag(result, expected_join(stream, table, on="k", how="inner"))


def test_metadata_of_fields_is_kept(masters: Masters) -> None:
    field = pa.field("m", pa.int64(), metadata={"comment": "of the master"})
    table = pa.table([pa.array([1]), pa.array([2])], schema=pa.schema([pa.field("k", pa.int64()), field]))
    master = masters("metadata", table, key="k")
    schema = joins.output_schema(pa.schema([("k", pa.int64())]), master, on="k", how="left")
    assert schema.names == ["k", "m"]
    assert schema.field("m").nullable
