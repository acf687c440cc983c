"""Aggregates that can be merged batch by batch: sum, count, min, max and avg."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from ..errors import InputError, UnknownColumn, UnsupportedType

FUNCTIONS = ("sum", "count", "min", "max", "avg")
_CALL = re.compile(r"\s*([a-zA-Z]+)\s*\(\s*(\*|[A-Za-z_][A-Za-z0-9_]*)\s*\)\s*", re.ASCII)


@dataclass(frozen=True)
class Aggregate:
    """A column of an aggregate view: `name` = `function`(`source`), where source is None for `count(*)`.

    An average is kept as the sum and the count behind it, in the columns `states`, so that it can be merged.
    """

    name: str
    function: str
    source: str | None
    type: pa.DataType
    states: tuple[pa.Field, ...] = ()

    @classmethod
    def parse(cls, name: str, text: str, schema: pa.Schema) -> Aggregate:
        """`sum(amount)` over the columns of a schema; an error says what is wrong with it."""
        call = _CALL.fullmatch(text) if isinstance(text, str) else None
        function = call.group(1).lower() if call else ""
        if call is None or function not in FUNCTIONS:
            raise InputError(
                f"{str(text)[:80]!r} is not an aggregate: write sum(column), count(*), count(column), min(column), "
                "max(column) or avg(column)"
            )
        source = call.group(2)
        if source == "*":
            if function != "count":
                raise InputError(f"{text!r}: only count takes *")
            return cls(name, function, None, pa.int64())
        if source not in schema.names:
            raise UnknownColumn(f"{text!r}: there is no column {source!r}; there are: {', '.join(schema.names)}")
        type_ = schema.field(source).type
        if function == "count":
            return cls(name, function, source, pa.int64())
        if function in ("min", "max"):
            if pa.types.is_nested(type_) or pa.types.is_boolean(type_):
                raise UnsupportedType(f"{text!r}: values of type {type_} have no order")
            return cls(name, function, source, type_)
        total = _sum_type(type_)
        if total is None:
            raise UnsupportedType(f"{text!r}: values of type {type_} cannot be added")
        if function == "sum":
            return cls(name, function, source, total)
        states = (pa.field(f"_{name}_sum", total), pa.field(f"_{name}_count", pa.int64()))
        return cls(name, function, source, pa.float64(), states)


def _sum_type(type_: pa.DataType) -> pa.DataType | None:
    if pa.types.is_integer(type_):
        return pa.int64()
    if pa.types.is_floating(type_):
        return pa.float64()
    if pa.types.is_decimal(type_):
        return pa.decimal128(38, type_.scale)
    return None
