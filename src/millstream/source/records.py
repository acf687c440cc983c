"""Records as applications have them, as bytes in a spool, and as Arrow.

What is done in the application's thread is one call of `marshal` for a whole block; everything that costs more, types
and checks among it, is left to the sender. `marshal` knows no datetime, date or Decimal: a block with such values is
tagged, value by value, which costs the application about a microsecond for each record.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from operator import itemgetter
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InputError
from ..staging.columns import CAPTURED, stored_schema

MOST_BYTES = 16 << 20  # of a single value: staging refuses blocks of twice that
MARSHAL = 2  # the format without references: all Pythons read it, and shared values cost no look-up

Timed = tuple[Any, float]  # a record and the time when it was captured, in seconds

_PLAIN = frozenset((type(None), bool, int, float, str, bytes))
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


class Rejected(Exception):
    """A record cannot be sent, and why."""


def in_order(schema: pa.Schema) -> pa.Schema:
    """The columns with `_captured` last."""
    return pa.schema([*(field for field in schema if field.name != CAPTURED.name), CAPTURED])


def schema_message(schema: pa.Schema) -> bytes:
    """A schema as bytes, for the header of a segment."""
    return bytes(schema.serialize().to_pybytes())


class Copier:
    """Makes a record by value of what the application may change after it has sent it: a tuple if the names fit."""

    def __init__(self, names: Sequence[str]) -> None:
        self._width = len(names) or -1
        self._values: Callable[[dict[str, Any]], Any] = itemgetter(*names) if names else tuple
        self._single = len(names) == 1

    def __call__(self, record: Any) -> Any:
        if type(record) is dict:
            if len(record) == self._width:
                try:
                    values = self._values(record)
                    return (values,) if self._single else values
                except KeyError:
                    pass
            return record.copy()
        if isinstance(record, tuple | list):
            # as long as no column has a name, those of a named tuple are wanted
            return record if self._width < 0 and hasattr(record, "_fields") else tuple(record)
        return record


def encode(block: list[Any]) -> tuple[bytes, bool]:
    """A block as bytes, and whether values in it are tagged.

    A block is a list of records. One that is a list of a time and a record was captured then, any other at the time
    that is the first item of the block.
    """
    # marshal takes anything with a buffer, such as a number of numpy, for bytes; two records stand for the block
    if len(block) < 2 or (_is_plain(block[-1]) and _is_plain(block[1])):
        try:
            return marshal.dumps(block, MARSHAL), False
        except ValueError:
            pass
    return marshal.dumps([_tagged(record) for record in block], MARSHAL), True


def decode(payload: bytes, *, tagged: bool) -> list[Timed]:
    """The records of a block, each with its time."""
    items = marshal.loads(payload)
    if tagged:
        items = [_untagged(item) for item in items]
    if not items:
        return []
    start = items[0]
    return [(item[1], item[0]) if type(item) is list else (item, start) for item in items[1:]]


def _is_plain(record: Any) -> bool:
    if type(record) is list:
        record = record[1]
    if type(record) is dict:
        record = record.values()
    elif type(record) is not tuple:
        return False
    return _PLAIN.issuperset(map(type, record))


def _moment(value: datetime) -> Any:
    aware = value.tzinfo is not None
    naive = value.astimezone(UTC).replace(tzinfo=None) if aware else value
    return (..., "moment", (naive - _EPOCH) // _MICROSECOND, aware)


_TAGS: dict[type, Callable[[Any], Any]] = {
    datetime: _moment,
    date: lambda value: (..., "date", value.toordinal()),
    Decimal: lambda value: (..., "decimal", str(value)),
    time: lambda value: value.isoformat(),
    UUID: str,
    bytearray: bytes,
    memoryview: bytes,
}


_BASES: dict[type, Callable[[Any], Any]] = {
    **{base: _TAGS[base] for base in (datetime, date, Decimal)},
    **{base: base for base in (int, float, bytes)},
    str: str.__str__,
}


def _tagged(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in _TAGS:
        return _TAGS[kind](value)
    if isinstance(value, dict):
        return {_tagged(name): _tagged(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_tagged(inner) for inner in value]
    if isinstance(value, tuple):
        return tuple(_tagged(inner) for inner in value)
    if isinstance(value, np.generic):
        return _tagged(value.item())
    if isinstance(value, Enum):
        return _tagged(value.value)
    for base, plain in _BASES.items():
        if isinstance(value, base):  # a class of the application's own
            return plain(value)
    return (..., "unknown", kind.__name__, repr(value)[:200])


_UNTAG: dict[str, Callable[..., Any]] = {
    "moment": lambda count, aware: (_EPOCH + count * _MICROSECOND).replace(tzinfo=UTC if aware else None),
    "date": date.fromordinal,
    "decimal": Decimal,
    "unknown": lambda kind, text: Unknown(kind, text),
}


class Unknown:
    """A value of a type that cannot travel."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind, self.text = kind, text

    def __repr__(self) -> str:
        return self.text


def _untagged(value: Any) -> Any:
    kind = type(value)
    if kind is tuple:
        if value and value[0] is ...:
            return _UNTAG[value[1]](*value[2:])
        return tuple(_untagged(inner) for inner in value)
    if kind is list:
        return [_untagged(inner) for inner in value]
    if kind is dict:
        return {_untagged(name): _untagged(inner) for name, inner in value.items()}
    return value


def infer(block: Sequence[Any]) -> pa.Schema:
    """The schema that fits the first records; columns without a value are text. Tuples have columns c0, c1, ..."""
    values: dict[str, list[Any]] = {}
    for item in block:
        record = item[1] if type(item) is list else item
        if isinstance(record, dict):
            named = record
        elif hasattr(record, "_fields"):
            named = dict(zip(record._fields, record, strict=True))
        elif isinstance(record, tuple | list):
            named = {f"c{number}": value for number, value in enumerate(record)}
        else:
            continue
        for name, value in named.items():
            values.setdefault(name, []).append(value)
    if not values:
        raise InputError("none of the first records is a dict or a tuple; a schema cannot be inferred from them")
    return stored_schema(pa.schema([(name, _inferred(column)) for name, column in values.items()]))


def _inferred(values: list[Any]) -> pa.DataType:
    try:
        kind = pa.array(values).type
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        kind = pa.float64() if {*map(type, values)} <= {int, float, type(None)} else pa.string()
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, min(max(kind.scale, 2), 18))
    return kind


def to_batch(rows: Sequence[Timed], schema: pa.Schema) -> tuple[pa.RecordBatch, list[tuple[int, str]]]:
    """The records as a batch of the schema (whose last column is `_captured`), and the others by place and reason."""
    width = len(schema) - 1
    records = [record for record, _ in rows]
    reasons: dict[int, str] = {}
    if {*map(type, records)} != {tuple} or {*map(len, records)} != {width}:
        names = schema.names[:-1]
        for place, record in enumerate(records):
            try:
                records[place] = _as_tuple(record, names)
            except Rejected as problem:
                reasons[place] = str(problem)
    kept = [place for place in range(len(rows)) if place not in reasons] if reasons else range(len(rows))
    while True:
        columns, bad = _columns([records[place] for place in kept] if reasons else records, schema)
        if not bad:
            break
        reasons.update({kept[place]: why for place, why in bad.items()})
        kept = [place for place in range(len(rows)) if place not in reasons]
    huge = {} if sum(column.nbytes for column in columns) < MOST_BYTES else _huge(columns, schema)
    if huge:
        columns = [column.filter(_mask(len(kept), huge)) for column in columns]
        reasons.update({kept[place]: why for place, why in huge.items()})
        kept = [place for place in kept if place not in reasons]
    captured = np.array([rows[place][1] for place in kept], dtype=np.float64)
    times = pa.array((captured * 1e6).astype(np.int64)).cast(CAPTURED.type)
    return pa.RecordBatch.from_arrays([*columns, times], schema=schema), sorted(reasons.items())


def oversized(batch: pa.RecordBatch) -> list[tuple[int, str]]:
    """The records with a value that staging would refuse for its size, by place."""
    return sorted(_huge(batch.columns, batch.schema).items()) if batch.nbytes >= MOST_BYTES else []


def without(batch: pa.RecordBatch, places: Sequence[int]) -> pa.RecordBatch:
    """The other records of a batch."""
    return batch.filter(_mask(batch.num_rows, places))


def _mask(count: int, without: Iterable[int]) -> pa.Array:
    mask = np.ones(count, dtype=bool)
    mask[list(without)] = False
    return pa.array(mask)


def _huge(columns: Sequence[pa.Array], schema: pa.Schema) -> dict[int, str]:
    found: dict[int, str] = {}
    for column, field in zip(columns, schema, strict=False):
        if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
            sizes = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
            for place in np.flatnonzero(sizes > MOST_BYTES):
                found[int(place)] = f"column {field.name} has {sizes[place]:,} bytes, above the limit of {MOST_BYTES:,}"
    return found


def _as_tuple(record: Any, names: Sequence[str]) -> tuple[Any, ...]:
    if isinstance(record, dict):
        unknown = [name for name in record if name not in names]
        if unknown:
            raise Rejected(f"unknown column {unknown[0]!r}; the schema has {', '.join(names)}")
        return tuple(map(record.get, names))
    if not isinstance(record, tuple | list):
        raise Rejected(f"a record is a dict or a tuple, not {_kind(record)}")
    if len(record) != len(names):
        raise Rejected(f"{len(record)} values for {len(names)} columns")
    return tuple(record)


def _columns(records: list[Any], schema: pa.Schema) -> tuple[list[pa.Array], dict[int, str]]:
    """An array for each column; or the records that do not fit, by place."""
    fields = list(schema)[:-1]
    values: Sequence[Any] = list(zip(*records, strict=True)) if records else [()] * len(fields)
    columns, bad = [], {}
    for field, column in zip(fields, values, strict=True):
        try:
            array = pa.array(column, type=field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            bad.update(_misfits(column, field))
            continue
        if array.null_count and not field.nullable:
            nulls = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
            bad.update({int(place): f"column {field.name} must not be null" for place in nulls})
        columns.append(array)
    return columns, bad


def _misfits(column: Sequence[Any], field: pa.Field) -> dict[int, str]:
    bad = {}
    for place, value in enumerate(column):
        try:
            pa.array([value], type=field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
            first = (str(problem).splitlines() or [""])[0]
            why = f"a value of type {value.kind} cannot be sent" if isinstance(value, Unknown) else first
            bad[place] = f"column {field.name} is {field.type}, got {_kind(value)}: {why}"[:300]
    if not bad:  # single values fit, together they do not: too much text for one column
        bad = dict.fromkeys(range(len(column)), f"column {field.name}: too much data in one block")
    return bad


def _kind(value: Any) -> str:
    return value.kind if isinstance(value, Unknown) else type(value).__name__
