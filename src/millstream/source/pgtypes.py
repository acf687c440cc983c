"""PostgreSQL's types as Arrow's, and its text as their values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .lines import cast
from .pgoutput import Column

_TYPES = {
    16: pa.bool_(),
    17: pa.binary(),
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.int64(),
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", tz="UTC"),
}
_NUMERIC = 1700


def arrow_type(column: Column) -> pa.DataType:
    """The type of a column; text for all that has no better one, numeric without precision too."""
    if column.oid == _NUMERIC and column.modifier >= 4:
        precision, scale = (column.modifier - 4) >> 16 & 0xFFFF, (column.modifier - 4) & 0x7FF
        if precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    return _TYPES.get(column.oid, pa.string())


def schema(columns: Sequence[Column], extra: Sequence[tuple[str, pa.DataType]]) -> pa.Schema:
    """The columns of a table, and those that we add."""
    return pa.schema([*((column.name, arrow_type(column)) for column in columns), *extra])


def to_arrow(texts: Sequence[pa.Array], fields: Sequence[pa.Field]) -> tuple[list[pa.Array], dict[int, str]]:
    """Columns of text as their types, and the rows with values that have none there (infinity, BC, NaN), by place."""
    bad: dict[int, str] = {}
    columns = []
    for text, field in zip(texts, fields, strict=True):
        column, misfits = cast(text, field, _convert)
        bad.update(misfits)
        columns.append(column)
    return columns, bad


def _convert(text: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        known = pc.is_in(text, pa.array(["t", "f", None]))
        if not pc.all(known).as_py() and len(text):
            raise ValueError(f"not t or f: {text.filter(pc.invert(known))[0]}")
        return pc.equal(text, "t")
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else bytes.fromhex(value[2:]) for value in text.to_pylist()], kind)
    if pa.types.is_timestamp(kind) and kind.tz:
        # offsets come as +00, which is how the session was told to write them
        return pc.replace_substring_regex(text, r"\+00$", "Z").cast(kind)
    return text.cast(kind)


def keep(count: int, bad: dict[int, str]) -> pa.Array:
    """A mask without the bad rows."""
    mask = np.ones(count, dtype=bool)
    mask[list(bad)] = False
    return pa.array(mask)
