"""Records of one length, as bytes: what keyed record files and other old formats have anyway.

Nobody touches their fields on the way to the spool, and the sender takes them apart a column at a time.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from ..errors import InputError
from ..staging.columns import CAPTURED

_STAMP = struct.Struct("<d")
_FIELD = re.compile(r"(\d*)([?bBhHiIlLqQfdsx])")
_KINDS = {"?": "?", "b": "i1", "B": "u1", "h": "i2", "H": "u2", "i": "i4", "I": "u4", "l": "i4", "L": "u4"}
_KINDS |= {"q": "i8", "Q": "u8", "f": "f4", "d": "f8"}


@lru_cache
def dtype(layout: str) -> np.dtype[np.void]:
    """The layout in the words of numpy; `<` or `>` must say the order of bytes, so that nothing is padded."""
    order, fields = layout[:1], layout[1:].replace(" ", "")
    if order not in ("<", ">") or "".join(number + kind for number, kind in _FIELD.findall(fields)) != fields:
        raise InputError(f"{layout!r} is no layout of records; write it like '<qi12sd', as for struct, with < or >")
    names: list[str] = []
    kinds: list[str] = []
    offsets: list[int] = []
    place = 0
    for number, kind in _FIELD.findall(fields):
        width = int(number or 1) if kind in "sx" else struct.calcsize(order + kind)
        for _ in range(1 if kind in "sx" else int(number or 1)):
            if kind != "x":
                names.append(f"f{len(names)}")
                kinds.append(f"S{width}" if kind == "s" else order + _KINDS[kind])
                offsets.append(place)
            place += width
    return np.dtype({"names": names, "formats": kinds, "offsets": offsets, "itemsize": place})


def stamp() -> bytes:
    """The time, as it stands before packed records."""
    return _STAMP.pack(time.time())


def moment(stamped: bytes) -> float:
    """The time of a stamp."""
    return float(_STAMP.unpack(stamped)[0])


def joined(block: list[bytes], size: int) -> bytes | None:
    """A stamp and the records behind it in one piece; None if one of them is not of this size."""
    try:
        payload = b"".join(block)
    except TypeError:
        return None
    return payload if len(payload) == _STAMP.size + (len(block) - 1) * size else None


def to_batch(payloads: Sequence[bytes], layout: np.dtype[np.void], schema: pa.Schema) -> pa.RecordBatch:
    """The records of some blocks; texts end at their first zero byte."""
    rows = np.frombuffer(b"".join(payload[_STAMP.size :] for payload in payloads), layout)
    names = layout.names or ()
    columns = [_column(rows[name], field.type) for name, field in zip(names, list(schema)[:-1], strict=True)]
    stamps = np.array([_STAMP.unpack_from(payload)[0] for payload in payloads])
    counts = [(len(payload) - _STAMP.size) // layout.itemsize for payload in payloads]
    times = pa.array(np.repeat((stamps * 1e6).astype(np.int64), counts)).cast(CAPTURED.type)
    return pa.RecordBatch.from_arrays([*columns, times], schema=schema)


def _column(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    native = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    if native.dtype.kind == "S":
        text = pa.array(native.tolist(), pa.binary())
        return text if pa.types.is_binary(kind) else _decoded(text).cast(kind)
    column = pa.array(native)
    return column if column.type == kind else column.cast(kind)


def _decoded(text: pa.Array) -> pa.Array:
    try:
        return text.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8: old programs wrote Latin-1
        return pa.array([value.decode("latin-1") for value in text.to_pylist()])


def check(layout: str, schema: pa.Schema | None) -> np.dtype[np.void]:
    """The layout, if it goes with the schema (whose last column is `_captured`)."""
    known = dtype(layout)
    if schema is None or len(known.names or ()) != len(schema) - 1:
        columns = 0 if schema is None else len(schema) - 1
        raise InputError(f"layout {layout!r} has {len(known.names or ())} fields, the schema {columns} columns")
    try:
        to_batch([_STAMP.pack(0.0) + bytes(known.itemsize)], known, schema)
    except pa.ArrowException as problem:
        raise InputError(f"layout {layout!r} does not go with the schema: {problem}") from None
    return known
