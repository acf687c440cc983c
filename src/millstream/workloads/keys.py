"""Numbers as keys of every type that tests and users need; different numbers are different keys."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InputError
from .mixing import Int64s

KeyKind = Literal["int", "int32", "string", "binary", "decimal", "date", "timestamp", "composite"]
KEY_KINDS: tuple[str, ...] = get_args(KeyKind)

_EPOCH_2020 = 1_577_836_800_000_000  # microseconds
_LAST_DATE = 2_932_896  # 9999-12-31 in days, the last that Spark and SQL agree on
_STORES = 7
_DIGITS = np.frombuffer("".join(f"{i:04d}" for i in range(10_000)).encode(), dtype=np.uint8).reshape(10_000, 4)


def key_columns(kind: KeyKind) -> list[str]:
    """The names of the columns that make up a key of this kind."""
    check_kind(kind)
    return ["store", "product_id"] if kind == "composite" else ["product_id"]


def check_kind(kind: str) -> None:
    if kind not in KEY_KINDS:
        raise InputError(f"key {kind!r} is not one of {', '.join(KEY_KINDS)}")


def encode_keys(numbers: Int64s, kind: KeyKind, *, valid: npt.NDArray[np.bool_] | None = None) -> dict[str, pa.Array]:
    """The key columns for these numbers (>= 0), by name; rows that are not `valid` have a NULL in the key.

    The NULL of a composite key is in its last column.
    """
    check_kind(kind)
    columns = {"product_id": numbers} if kind != "composite" else {"product_id": numbers // _STORES}
    product_id = _encode(columns["product_id"], "int" if kind == "composite" else kind)
    if valid is not None:
        product_id = pc.if_else(pa.array(valid), product_id, pa.scalar(None, product_id.type))
    if kind == "composite":
        return {"store": digits(numbers % _STORES, prefix="S", width=4), "product_id": product_id}
    return {"product_id": product_id}


def _encode(numbers: Int64s, kind: str) -> pa.Array:
    if kind == "int":
        return pa.array(numbers)
    if kind == "int32":
        _check_limit(numbers, 2**31 - 1, kind)
        return pa.array(numbers.astype(np.int32))
    if kind == "string":
        return digits(numbers, prefix="P", width=12)
    if kind == "binary":
        offsets = np.arange(len(numbers) + 1, dtype=np.int32) * 8
        data = numbers.astype(">i8")
        return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    if kind == "decimal":
        return decimals(numbers, 18, 2)
    if kind == "date":
        _check_limit(numbers, _LAST_DATE, kind)
        return pa.array(numbers.astype(np.int32)).cast(pa.date32())
    return pa.array(_EPOCH_2020 + numbers * 1_000_003).cast(pa.timestamp("us", tz="UTC"))


def _check_limit(numbers: Int64s, limit: int, kind: str) -> None:
    if len(numbers) and int(numbers.max()) > limit:
        raise InputError(f"keys of type {kind} end at {limit}, so {int(numbers.max())} cannot be one; take fewer keys")


def digits(numbers: Int64s, *, prefix: str, width: int) -> pa.Array:
    """Strings of a prefix and the last `width` (a multiple of 4) decimal digits of each number."""
    size = len(prefix) + width
    text = np.empty((len(numbers), size), dtype=np.uint8)
    text[:, : len(prefix)] = np.frombuffer(prefix.encode(), dtype=np.uint8)
    rest = numbers
    for end in range(size, len(prefix), -4):
        rest, group = np.divmod(rest, 10_000)
        text[:, end - 4 : end] = _DIGITS[group]
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * size
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text))


def decimals(unscaled: Int64s, precision: int, scale: int) -> pa.Array:
    """Decimals from their digits without the point."""
    words = np.empty((len(unscaled), 2), dtype=np.int64)
    words[:, 0] = unscaled
    words[:, 1] = unscaled >> 63
    return pa.Array.from_buffers(pa.decimal128(precision, scale), len(unscaled), [None, pa.py_buffer(words)])
