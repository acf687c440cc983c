"""Keys of each type: values that are easy to confuse, extremes, and enough ordinary ones."""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

UTC = dt.UTC


@dataclass(frozen=True)
class Domain:
    """Candidate keys of one type: columns of equal length, a key being a row of them."""

    name: str
    columns: tuple[pa.Array, ...]

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def names(self) -> list[str]:
        return [f"k{i}" for i in range(len(self.columns))]

    def draw(self, picks: np.ndarray, rng: np.random.Generator, *, nulls: float = 0.0) -> dict[str, pa.Array]:
        """The key columns of the picked candidates, a share of them (at least one) NULL, in each column on its own."""
        drawn = {}
        for name, column in zip(self.names, self.columns, strict=True):
            hidden = rng.random(len(picks)) < nulls / len(self.columns)
            if nulls and len(picks):
                hidden[rng.integers(len(picks))] = True
            drawn[name] = column.take(pa.array(picks, mask=hidden))
        return drawn


def _numbers(kind: pa.DataType, limit: int, *, size: int = 200) -> pa.Array:
    extremes = [-limit, -limit + 1, limit - 2, limit - 1]
    return pa.array(extremes + list(range(-size // 2, size // 2)), kind)


def _strings() -> pa.Array:
    odd = [
        "",
        " ",
        "  ",
        "\0",
        "\0\0",
        "a",
        "A",
        "a ",
        "é",
        "é",
        "Ω",
        "ﬀ",
        "ff",
        "𝔘",
        "😀",
        "日本語",
        "NULL",
        "null",
        "NaN",
    ]
    long = ["x" * 31, "x" * 32, "x" * 33, "x" * 1_000, "x" * 999 + "y"]
    return pa.array(odd + long + [f"key-{i}" for i in range(150)] + [str(i) for i in range(20)])


def _binaries(values: pa.Array) -> pa.Array:
    odd = [b"", b"\0", b"\0\0", b"\xff", b"\xff\xfe", bytes(range(256))]
    return pa.array(odd + [struct.pack(">i", i) for i in range(150)] + [v.encode() for v in values.to_pylist()[:15]])


def _doubles() -> pa.Array:
    odd_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]
    odd = [float("nan"), odd_nan, 0.0, -0.0, float("inf"), float("-inf"), 5e-324, -5e-324, 1.7976931348623157e308, 0.1]
    return pa.array(odd + [i / 8 for i in range(-80, 80)])


def _floats() -> pa.Array:
    odd = [float("nan"), 0.0, -0.0, float("inf"), float("-inf"), 1e-45, 3.4e38, 0.1]
    return pa.array(odd + [i / 8 for i in range(-80, 80)], pa.float32())


def _dates() -> pa.Array:
    odd = [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(1582, 10, 15)]
    return pa.array(odd + [dt.date(2024, 1, 1) + dt.timedelta(days=i) for i in range(150)])


def _timestamps(zone: str | None) -> pa.Array:
    tz = UTC if zone else None
    first = dt.datetime(2024, 3, 31, 0, 30, tzinfo=tz)
    odd = [dt.datetime(1, 1, 1, tzinfo=tz), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=tz)]
    odd += [dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=tz), dt.datetime(1970, 1, 1, tzinfo=tz)]
    quarters = [first + dt.timedelta(minutes=15 * i) for i in range(100)]
    close = [first + dt.timedelta(microseconds=i) for i in range(1, 50)]
    return pa.array(odd + quarters + close, pa.timestamp("us", tz=zone))


def _decimals(precision: int, scale: int) -> pa.Array:
    with decimal.localcontext(decimal.Context(prec=60)):
        unit = decimal.Decimal(1).scaleb(-scale)
        most = decimal.Decimal(10**precision - 1) * unit
        values = [
            most,
            -most,
            most - unit,
            *(unit * i for i in range(-75, 75)),
            *(decimal.Decimal(i) for i in range(2, 20)),
        ]
        return pa.array(values, pa.decimal128(precision, scale))


def _domains() -> dict[str, Domain]:
    strings, dates = _strings(), _dates()
    singles = {
        "int8": _numbers(pa.int8(), 2**7),
        "int16": _numbers(pa.int16(), 2**15),
        "int32": _numbers(pa.int32(), 2**31),
        "bigint": _numbers(pa.int64(), 2**63),
        "string": strings,
        "binary": _binaries(strings),
        "date": dates,
        "timestamp": _timestamps("UTC"),
        "timestamp_ntz": _timestamps(None),
        "interval": _numbers(pa.int64(), 2**40).cast(pa.duration("us")),
        "decimal(10,2)": _decimals(10, 2),
        "decimal(38,6)": _decimals(38, 6),
        "double": _doubles(),
        "float": _floats(),
        "boolean": pa.array([True, False]),
    }
    several = {
        "bigint+string": (pa.array(np.repeat(np.arange(5), 30)), strings.slice(0, 150)),
        "string+string": (
            pa.array(["", "a", "ab", "b", "ba"] * 5),
            pa.array([s for s in ("", "b", "ab", "bb", "a") for _ in range(5)]),
        ),
        "date+decimal+boolean": (dates.slice(0, 100), _decimals(10, 2).slice(0, 100), pa.array([True, False] * 50)),
        "int32+int32": (pa.array(list(range(20)) * 10, pa.int32()), pa.array(np.repeat(range(10), 20), pa.int32())),
    }
    return {name: Domain(name, (column,)) for name, column in singles.items()} | {
        name: Domain(name, columns) for name, columns in several.items()
    }


DOMAINS = _domains()
