"""Keys of two types that SQL compares by value are compared by value, without loss and without false matches."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from conformance.conftest import Masters
from driving import run_join
from millstream import joins
from oracle import assert_same_bag, expected_join

UTC = dt.UTC
NOON = dt.datetime(2024, 3, 31, 12, 0, tzinfo=UTC)
COINS = [Decimal(text) for text in ("0", "0.5", "0.05", "1", "1.01", "-1", "127", "128", "99999.99", "-0.01")]

# name -> stream key, master key; the types differ, some values exist on one side alone
PAIRS: dict[str, tuple[pa.Array, pa.Array]] = {
    "int8 with bigint": (
        pa.array([-128, 0, 5, 127, None], pa.int8()),
        pa.array([-128, 0, 5, 127, 128, 261, None], pa.int64()),
    ),
    "bigint with int8": (
        pa.array([-128, 0, 5, 127, 128, 261, -(2**63), 2**63 - 1, None], pa.int64()),
        pa.array([-128, 0, 5, 127, None], pa.int8()),
    ),
    "int32 with bigint": (
        pa.array([0, 1, -1, 2**31 - 1, None], pa.int32()),
        pa.array([0, 1, -1, 2**31 - 1, 2**32, 2**32 + 1, None]),
    ),
    "bigint with int32": (
        pa.array([0, 1, -1, 2**32, 2**32 + 1, 2**31, None]),
        pa.array([0, 1, -1, None], pa.int32()),
    ),
    "int16 with int32": (pa.array([7, -32_768], pa.int16()), pa.array([7, -32_768, 32_768], pa.int32())),
    "decimal with more digits": (
        pa.array([*COINS, None], pa.decimal128(10, 2)),
        pa.array([*COINS, Decimal("0.500001"), Decimal(10) ** 30, None], pa.decimal128(38, 6)),
    ),
    "decimal with fewer digits": (
        pa.array([*COINS, Decimal("0.500001"), Decimal("0.000001"), Decimal(10) ** 30, None], pa.decimal128(38, 6)),
        pa.array([*COINS, None], pa.decimal128(10, 2)),
    ),
    "decimal with more places": (
        pa.array([Decimal("1.5"), Decimal("12345.6")], pa.decimal128(6, 1)),
        pa.array([Decimal("1.5000"), Decimal("1.5001"), Decimal("0.1234")], pa.decimal128(6, 4)),
    ),
    "int32 with decimal": (
        pa.array([0, 1, -1, 127, 2**31 - 1, None], pa.int32()),
        pa.array([*COINS, None], pa.decimal128(10, 2)),
    ),
    "decimal with bigint": (
        pa.array([*COINS, Decimal(10) ** 18, None], pa.decimal128(25, 2)),
        pa.array([0, 1, -1, 127, 10**18, None]),
    ),
    "float with double": (
        pa.array([0.5, 0.1, -0.0, float("nan"), None], pa.float32()),
        pa.array([0.5, 0.1, 0.0, float("nan"), None]),
    ),
    "double with float": (
        pa.array([0.5, 0.1, -0.0, 1e300, float("nan"), float("inf"), None]),
        pa.array([0.5, 0.1, 0.0, float("nan"), float("inf"), None], pa.float32()),
    ),
    "zones": (
        pa.array([NOON, NOON.replace(hour=13), None], pa.timestamp("us", tz="Asia/Tokyo")),
        pa.array([NOON, NOON.replace(hour=14), None], pa.timestamp("us", tz="UTC")),
    ),
    "timestamp in milliseconds": (
        pa.array([1_711_886_400_000, 1_711_886_400_001, None], pa.timestamp("ms", tz="UTC")),
        pa.array([1_711_886_400_000_000, 1_711_886_400_001_000, 1_711_886_400_000_001], pa.timestamp("us", tz="UTC")),
    ),
    "timestamp in nanoseconds": (
        pa.array([1_711_886_400_000_000_000, 1_711_886_400_000_001_000, 1_711_886_400_000_001_001], pa.timestamp("ns")),
        pa.array([1_711_886_400_000_000, 1_711_886_400_000_001], pa.timestamp("us")),
    ),
    "string with large string": (
        pa.array(["", "a", "é", None]),
        pa.array(["", "a", "é", "b", None], pa.large_string()),
    ),
    "large string with string": (pa.array(["", "a", None], pa.large_string()), pa.array(["", "a", "b", None])),
    "string view with string": (
        pa.array(["", "a", "longer than twelve bytes", None], pa.string_view()),
        pa.array(["", "a", "longer than twelve bytes", None]),
    ),
    "dictionary with string": (
        pa.array(["a", "b", "a", None, "c"]).dictionary_encode(),
        pa.array(["a", "b", None]),
    ),
    "large binary with binary": (pa.array([b"", b"a", None], pa.large_binary()), pa.array([b"", b"a", b"b", None])),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("how", ["inner", "left_anti"])
@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_values_are_compared(algorithm: str, how: str, pair: str, masters: Masters) -> None:
    left, right = PAIRS[pair]
    stream = pa.table({"k": left, "position": list(range(len(left)))})
    table = pa.table({"k": right, "row": list(range(len(right)))})
    master = masters(f"coerced {pair}", table, key="k")
    result = run_join(algorithm, master, stream, on="k", how=how)
    assert_same_bag(plain(result), expected_join(plain(stream), table, on="k", how=how))
    assert len(expected_join(plain(stream), table, on="k", how="inner")) > 0


def plain(table: pa.Table) -> pa.Table:
    """The same with strings for views and dictionaries, which pyarrow cannot take rows from."""
    kind = table["k"].type
    if pa.types.is_dictionary(kind) or pa.types.is_string_view(kind):
        return table.set_column(0, "k", table["k"].cast(pa.string()))
    return table


@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_one_column_of_a_composite_key_is_coerced(algorithm: str, masters: Masters) -> None:
    table = pa.table({"a": pa.array([1, 1, 2]), "b": pa.array(["x", "y", "x"]), "row": [0, 1, 2]})
    stream = pa.table({"a": pa.array([1, 2, 2, 3], pa.int16()), "b": ["y", "x", "y", "x"], "position": [0, 1, 2, 3]})
    master = masters("coerced composite", table, key=["a", "b"])
    result = run_join(algorithm, master, stream, on=["a", "b"], how="left")
    assert_same_bag(result, expected_join(stream, table, on=["a", "b"], how="left"))
