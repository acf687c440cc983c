"""Keys of any type as one 64-bit integer, and the comparison of real keys after two such integers agree.

A single integer column is its own clustering key. Anything else is clustered by Spark's xxhash64 of the key columns.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numba import njit

from ..errors import KeyTypeMismatch, UnsupportedType
from . import hashing
from .gather import ROW_MASK, value_at
from .layout import Node
from .memory import compare_bytes, load_f32, load_f64, load_i32, load_i64, load_u8

if TYPE_CHECKING:
    from .pages import PageTable

_INTEGERS = {pa.int8(): hashing.INT8, pa.int16(): hashing.INT16, pa.int32(): hashing.INT32, pa.int64(): hashing.INT64}


def _hash_kind(type_: pa.DataType) -> int | None:
    """How Spark hashes a column of this type; None if it cannot be a key."""
    if type_ in _INTEGERS:
        return _INTEGERS[type_]
    if pt.is_boolean(type_):
        return hashing.BOOL
    if pt.is_date32(type_):
        return hashing.INT32
    if pt.is_timestamp(type_):
        return hashing.INT64 if type_.unit == "us" else None
    if type_ in (pa.time64("ns"), pa.duration("us")):  # what Spark makes of TIME and INTERVAL DAY TO SECOND
        return hashing.INT64
    if pt.is_float32(type_):
        return hashing.FLOAT
    if pt.is_float64(type_):
        return hashing.DOUBLE
    if pt.is_decimal128(type_):
        return hashing.DECIMAL_SHORT if type_.precision <= 18 else hashing.DECIMAL_LONG
    if pt.is_string(type_) or pt.is_binary(type_):
        return hashing.VARLEN
    if pt.is_large_string(type_) or pt.is_large_binary(type_):
        return hashing.VARLEN_LARGE
    if pt.is_fixed_size_binary(type_):
        return hashing.FIXED_BYTES
    return None


def _family(type_: pa.DataType) -> str:
    if type_ in _INTEGERS:
        return "integer"
    if pt.is_decimal128(type_):
        return "decimal"
    if pt.is_float32(type_) or pt.is_float64(type_):
        return "float"
    if pt.is_string(type_) or pt.is_large_string(type_):
        return "string"
    if pt.is_binary(type_) or pt.is_large_binary(type_) or pt.is_fixed_size_binary(type_):
        return "binary"
    if pt.is_timestamp(type_):
        return "timestamp with zone" if type_.tz else "timestamp"
    return str(type_)


def check_comparable(stream: pa.Field, master: pa.Field) -> None:
    """Refuse two key columns that no exact cast makes comparable."""
    families = {_family(stream.type), _family(master.type)}
    if len(families) > 1 and families != {"integer", "decimal"}:
        raise KeyTypeMismatch(
            f"stream column {stream.name!r} is {stream.type} and master column {master.name!r} is {master.type}: "
            f"they cannot be compared; cast the stream column to {master.type} first"
        )


def coerce(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The same values in the master's key type; values that it cannot hold become NULL, for they match nothing."""
    if array.type == target:
        return array
    if pt.is_timestamp(target):
        cast = array.cast(target, safe=False)
        return pc.if_else(pc.equal(cast.cast(array.type, safe=False), array), cast, pa.scalar(None, target))
    if _family(target) in ("string", "binary"):
        return array.cast(target)
    if _family(target) == "float":
        cast = array.cast(target, safe=False)
        same = pc.or_(pc.equal(cast.cast(array.type, safe=False), array), pc.is_nan(array))
        return pc.if_else(pc.fill_null(same, False), cast, pa.scalar(None, target))
    return _coerce_exact(array, target)


def _coerce_exact(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Between integers and decimals; what the target cannot hold exactly becomes NULL."""
    with contextlib.suppress(pa.ArrowInvalid):
        return array.cast(target)
    if array.type in _INTEGERS and target in _INTEGERS:
        cast = array.cast(target, safe=False)
        return pc.if_else(pc.equal(cast.cast(array.type), array), cast, pa.scalar(None, target))
    decimals = array.cast(pa.decimal128(19, 0)) if array.type in _INTEGERS else array
    scale = 0 if target in _INTEGERS else target.scale
    if target in _INTEGERS:
        high = 2 ** (target.bit_width - 1) - 1
        low = -high - 1
    else:
        high = 10 ** (target.precision - scale) - 1
        low = -high
    whole = decimals.cast(pa.decimal256(76, decimals.type.scale))
    fits = pc.and_(
        pc.equal(pc.round(whole, ndigits=scale), whole),
        pc.and_(
            pc.less(whole, _decimal(high + 1)),
            pc.greater(whole, _decimal(low - 1)),
        ),
    )
    return pc.if_else(pc.fill_null(fits, False), decimals, pa.scalar(None, decimals.type)).cast(target)


def _decimal(value: int) -> pa.Scalar:
    return pa.scalar(Decimal(value), pa.decimal256(45, 0))


@dataclass(frozen=True)
class KeyCodec:
    """How the key columns of a master become clustering keys."""

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]

    @classmethod
    def of(cls, schema: pa.Schema, key: list[str]) -> KeyCodec:
        types = tuple(schema.field(name).type for name in key)
        for name, type_ in zip(key, types, strict=True):
            if _hash_kind(type_) is None:
                raise UnsupportedType(
                    f"column {name!r} of type {type_} cannot be a key; use integers, strings, binary, dates, "
                    "times, timestamps and intervals as Spark has them, decimals, floats or booleans"
                )
        return cls(tuple(key), types)

    @property
    def hashed(self) -> bool:
        return len(self.types) > 1 or self.types[0] not in _INTEGERS

    def codes(self, columns: list[pa.Array]) -> tuple[np.ndarray, np.ndarray]:
        """Clustering key of each row, and which rows have no NULL in their key. Columns have the codec's types."""
        n = len(columns[0])
        valid = np.ones(n, dtype=np.bool_)
        for column in columns:
            if column.null_count:
                valid &= column.is_valid().to_numpy(zero_copy_only=False)
        if not self.hashed:
            column = columns[0] if columns[0].type == pa.int64() else columns[0].cast(pa.int64())
            if column.null_count:
                column = column.fill_null(0)
            return column.to_numpy(), valid
        hashes = np.full(n, hashing.SPARK_SEED, dtype=np.uint64)
        scratch = np.empty(16, dtype=np.uint8)
        for column in columns:
            kind = _hash_kind(column.type)
            buffers = column.buffers()
            width = column.type.byte_width if kind == hashing.FIXED_BYTES else 0
            offsets = 0
            if kind == hashing.BOOL:
                if column.offset % 8:
                    column = pa.concat_arrays([column, column.slice(0, 0)])
                    buffers = column.buffers()
                data = _address(buffers[1]) + column.offset // 8
            elif kind in (hashing.VARLEN, hashing.VARLEN_LARGE):
                offsets = _address(buffers[1]) + column.offset * (4 if kind == hashing.VARLEN else 8)
                data = _address(buffers[2])
            else:
                data = _address(buffers[1]) + column.offset * (column.type.bit_width // 8)
            hashing.hash_column(kind, width, data, offsets, valid, hashes, scratch.ctypes.data)
        return hashes.view(np.int64), valid


def _address(buffer: pa.Buffer | None) -> int:
    return buffer.address if buffer is not None else 0


def compare_kind(type_: pa.DataType) -> int:
    """Which comparison `keep_equal` uses for a key column."""
    if pt.is_float32(type_):
        return hashing.FLOAT
    if pt.is_float64(type_):
        return hashing.DOUBLE
    if pt.is_boolean(type_):
        return hashing.BOOL
    return hashing.VARLEN if _hash_kind(type_) in (hashing.VARLEN, hashing.VARLEN_LARGE) else hashing.FIXED_BYTES


def keep_equal(
    left: PageTable,
    left_node: Node,
    right: PageTable,
    right_node: Node,
    left_refs: np.ndarray,
    right_refs: np.ndarray,
) -> np.ndarray:
    """Which pairs have equal values in one key column; both tables hold it in the same type."""
    equal = np.empty(len(left_refs), dtype=np.bool_)
    kind = compare_kind(right_node.type)
    width = right_node.width
    _equal(
        kind, width, left.addresses, left.strides, left_node.first + 1, right.addresses, right.strides,
        right_node.first + 1, left_refs, right_refs, equal,
    )  # fmt: skip
    return equal


@njit(inline="always")
def _bounds(offset, width):
    if width == 4:
        return np.int64(load_i32(offset)), np.int64(load_i32(offset + 4))
    return load_i64(offset), load_i64(offset + 8)


@njit(cache=True, nogil=True)
def _equal(
    kind, width, left, left_strides, left_buffer, right, right_strides, right_buffer, left_refs, right_refs, equal
):
    for i in range(left_refs.shape[0]):
        a = left_refs[i]
        b = right_refs[i]
        if b < 0:
            equal[i] = False
            continue
        if kind == hashing.BOOL:
            x, y = left[a >> 32, left_buffer], right[b >> 32, right_buffer]
            p, q = a & ROW_MASK, b & ROW_MASK
            equal[i] = ((load_u8(x + (p >> 3)) >> (p & 7)) & 1) == ((load_u8(y + (q >> 3)) >> (q & 7)) & 1)
            continue
        x = value_at(left, left_strides, left_buffer, width, a)
        y = value_at(right, right_strides, right_buffer, width, b)
        if kind == hashing.VARLEN:
            x0, x1 = _bounds(x, width)
            y0, y1 = _bounds(y, width)
            same = x1 - x0 == y1 - y0
            if same and x1 > x0:
                same = (
                    compare_bytes(left[a >> 32, left_buffer + 1] + x0, right[b >> 32, right_buffer + 1] + y0, x1 - x0)
                    == 0
                )
            equal[i] = same
        elif kind == hashing.FIXED_BYTES:
            equal[i] = compare_bytes(x, y, width) == 0
        elif kind == hashing.DOUBLE:
            u = load_f64(x)
            v = load_f64(y)
            equal[i] = u == v or (u != u and v != v)
        else:
            s = load_f32(x)
            t = load_f32(y)
            equal[i] = s == t or (s != s and t != t)
