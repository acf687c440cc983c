"""Records on their way from Python to Arrow: types, tags, misfits and what is inferred."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millstream.errors import InputError
from millstream.source import records
from millstream.staging.columns import stored_schema


def way(rows: list[Any], schema: pa.Schema) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    payload, tagged = records.encode([12.5, *rows])
    timed = records.decode(payload, tagged=tagged)
    batch, bad = records.to_batch(timed, stored_schema(schema))
    assert batch.num_rows + len(bad) == len(rows)
    return [{name: row[name] for name in schema.names} for row in batch.to_pylist()], bad


class Colour(StrEnum):
    RED = "red"


MOMENT = datetime(2024, 5, 1, 12, 0, 0, 123456)
ZONED = MOMENT.replace(tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("kind", "value", "there"),
    [
        (pa.int64(), 5, 5),
        (pa.int64(), np.int64(5), 5),
        (pa.int32(), np.int16(-3), -3),
        (pa.float64(), np.float32(0.5), 0.5),
        (pa.bool_(), np.bool_(True), True),
        (pa.float64(), 3, 3.0),
        (pa.string(), "größer", "größer"),
        (pa.string(), Colour.RED, "red"),
        (pa.string(), uuid.UUID(int=7), str(uuid.UUID(int=7))),
        (pa.binary(), b"\x00\xff", b"\x00\xff"),
        (pa.binary(), bytearray(b"x"), b"x"),
        (pa.timestamp("us"), MOMENT, MOMENT),
        (pa.timestamp("us", tz="UTC"), ZONED, ZONED.astimezone(UTC)),
        (pa.date32(), date(1969, 12, 31), date(1969, 12, 31)),
        (pa.decimal128(10, 2), Decimal("-12.34"), Decimal("-12.34")),
        (pa.list_(pa.date32()), [date(2024, 1, 1)], [date(2024, 1, 1)]),
        (pa.struct([("a", pa.int64())]), {"a": 1}, {"a": 1}),
        (pa.string(), None, None),
    ],
)
def test_values_arrive_as_they_are(kind: pa.DataType, value: Any, there: Any) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", kind)])
    rows, bad = way([(0, value), (1, value), (2, None)], schema)
    assert bad == []
    assert [row["value"] for row in rows] == [there, there, None]


def test_each_record_has_its_time_or_that_of_the_block() -> None:
    for value in ("c", date(2024, 5, 1)):
        payload, tagged = records.encode([1.0, ("a",), ("b",), [2.5, (value,)]])
        assert records.decode(payload, tagged=tagged) == [(("a",), 1.0), (("b",), 1.0), ((value,), 2.5)]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (("x", "name"), "column id is int64, got str"),
        ((1, 2), "column name is string, got int"),
        ((1,), "1 values for 2 columns"),
        ((1, "a", "b"), "3 values for 2 columns"),
        ({"id": 1, "nam": "a"}, "unknown column 'nam'"),
        (None, "a record is a dict or a tuple, not NoneType"),
        ("text", "a record is a dict or a tuple, not str"),
        (object(), "a record is a dict or a tuple, not object"),
        ((object(), "a"), "a value of type object cannot be sent"),
        ((2**70, "a"), "column id is int64, got int"),
        ((1, "\ud800"), "column name is string, got str"),
        ((None, "a"), "column id must not be null"),
        ({"name": "a"}, "column id must not be null"),
    ],
)
def test_a_bad_record_is_told_from_the_good_ones_around_it(record: Any, reason: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    rows, bad = way([(1, "before"), record, {"id": 2, "name": "after"}, {"id": 3}], schema)
    assert [place for place, _ in bad] == [1]
    assert reason in bad[0][1]
    assert rows == [{"id": 1, "name": "before"}, {"id": 2, "name": "after"}, {"id": 3, "name": None}]


def test_a_value_above_the_limit_of_staging_is_rejected() -> None:
    rows, bad = way(
        [(1, "x"), (2, "x" * (records.MOST_BYTES + 1)), (3, "y")], pa.schema([("id", pa.int64()), ("t", pa.string())])
    )
    assert [row["id"] for row in rows] == [1, 3]
    assert bad[0][0] == 1
    assert "above the limit" in bad[0][1]


def test_a_schema_is_inferred_from_all_records_of_the_block() -> None:
    block = [1.0, {"a": 1, "b": None}, {"a": 2.5, "c": MOMENT}, {"d": Decimal("1.5"), "e": b"x"}]
    schema = records.infer(block)
    assert schema.names == ["a", "b", "c", "d", "e", "_captured"]
    assert [str(kind) for kind in schema.types[:5]] == [
        "double",
        "string",
        "timestamp[us]",
        "decimal128(38, 2)",
        "binary",
    ]
    assert records.infer([1.0, (1, "x")]).names == ["c0", "c1", "_captured"]
    with pytest.raises(InputError, match="none of the first records"):
        records.infer([1.0, 5, None])
