"""XXH64 of bytes and Spark's xxhash64 of columns against a version in plain Python integers."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.kernels import hashing
from millstream.kernels.keys import KeyCodec

P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
MASK = (1 << 64) - 1


def rotate(x: int, bits: int) -> int:
    x &= MASK
    return (x << bits | x >> (64 - bits)) & MASK


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 step by step as its specification has it."""
    length, at = len(data), 0
    if length >= 32:
        lanes = [seed + P1 + P2, seed + P2, seed, seed - P1]
        while at + 32 <= length:
            words = struct.unpack_from("<4Q", data, at)
            lanes = [rotate(lane + word * P2, 31) * P1 & MASK for lane, word in zip(lanes, words, strict=True)]
            at += 32
        h = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            h = (h ^ rotate(lane * P2, 31) * P1) * P1 + P4 & MASK
    else:
        h = seed + P5
    h = h + length & MASK
    while at + 8 <= length:
        h ^= rotate(struct.unpack_from("<Q", data, at)[0] * P2, 31) * P1 & MASK
        h = rotate(h, 27) * P1 + P4 & MASK
        at += 8
    if at + 4 <= length:
        h ^= struct.unpack_from("<I", data, at)[0] * P1 & MASK
        h = rotate(h, 23) * P2 + P3 & MASK
        at += 4
    for byte in data[at:]:
        h = rotate(h ^ byte * P5 & MASK, 11) * P1 & MASK
    h = (h ^ h >> 33) * P2 & MASK
    h = (h ^ h >> 29) * P3 & MASK
    return h ^ h >> 32


KNOWN = {
    b"": 0xEF46DB3751D8E999,
    b"a": 0xD24EC4F1A98C6E5B,
    b"abc": 0x44BC2CF5AD770999,
    b"Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1,
}


@pytest.mark.parametrize("text", KNOWN)
def test_known_values(text: bytes) -> None:
    assert xxh64(text, 0) == KNOWN[text]
    assert hashing.checksum(text) == KNOWN[text]


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=150), seed=st.integers(0, MASK), start=st.integers(0, 9))
def test_any_bytes(data: bytes, seed: int, start: int) -> None:
    memory = np.frombuffer(bytes(start) + data + b"\xff" * 40, dtype=np.uint8)
    found = hashing.hash_bytes(memory.ctypes.data + start, len(data), np.uint64(seed))
    assert int(found) == xxh64(data, seed)


def test_every_length() -> None:
    data = np.random.default_rng(1).bytes(200)
    for length in range(len(data) + 1):
        assert hashing.checksum(data[:length]) == xxh64(data[:length], 0)


def number(form: str) -> Callable[[Any], bytes]:
    return lambda value: struct.pack(form, value)


def normal_float(form: str, nan: bytes) -> Callable[[float], bytes]:
    return lambda value: nan if math.isnan(value) else struct.pack(form, value or 0.0)


def unscaled(value: Decimal, scale: int) -> int:
    with localcontext() as context:
        context.prec = 50
        return int(value.scaleb(scale))


def big_integer(value: Decimal) -> bytes:
    """Java's BigInteger.toByteArray: two's complement, big-endian, as short as it gets."""
    whole = unscaled(value, 3)
    for length in range(1, 20):
        try:
            return whole.to_bytes(length, "big", signed=True)
        except OverflowError:
            continue
    raise AssertionError


EPOCH = datetime(1970, 1, 1)
small, large = st.integers(-(10**18) + 1, 10**18 - 1), st.integers(-(10**37), 10**37)
singles = st.floats(width=32, allow_subnormal=True)

# how Spark turns a value of a column into the bytes that it hashes
COLUMNS: dict[pa.DataType, tuple[st.SearchStrategy[Any], Callable[[Any], bytes]]] = {
    pa.bool_(): (st.booleans(), number("<i")),
    pa.int8(): (st.integers(-128, 127), number("<i")),
    pa.int16(): (st.integers(-(2**15), 2**15 - 1), number("<i")),
    pa.int32(): (st.integers(-(2**31), 2**31 - 1), number("<i")),
    pa.int64(): (st.integers(-(2**63), 2**63 - 1), number("<q")),
    pa.date32(): (st.dates(), lambda day: struct.pack("<i", (day - date(1970, 1, 1)).days)),
    pa.timestamp("us"): (st.datetimes(), lambda t: struct.pack("<q", (t - EPOCH) // timedelta(microseconds=1))),
    pa.float32(): (singles, normal_float("<f", b"\0\0\xc0\x7f")),
    pa.float64(): (st.floats(), normal_float("<d", b"\0\0\0\0\0\0\xf8\x7f")),
    pa.decimal128(18, 2): (small.map(lambda i: Decimal(i).scaleb(-2)), lambda x: struct.pack("<q", unscaled(x, 2))),
    pa.decimal128(38, 3): (large.map(lambda i: Decimal(f"{i}e-3")), big_integer),
    pa.string(): (st.text(max_size=40), str.encode),
    pa.large_string(): (st.text(max_size=40), str.encode),
    pa.binary(): (st.binary(max_size=40), bytes),
    pa.large_binary(): (st.binary(max_size=40), bytes),
    pa.binary(5): (st.binary(min_size=5, max_size=5), bytes),
}


@settings(max_examples=250, deadline=None)
@given(data=st.data(), types=st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=3), cut=st.integers(0, 11))
def test_columns_as_spark_hashes_them(data: st.DataObject, types: list[pa.DataType], cut: int) -> None:
    rows = data.draw(st.lists(st.tuples(*(st.none() | COLUMNS[kind][0] for kind in types)), min_size=1, max_size=20))
    names = [f"k{i}" for i in range(len(types))]
    columns = [pa.array([row[i] for row in rows], kind).slice(cut) for i, kind in enumerate(types)]
    codec = KeyCodec.of(pa.schema(list(zip(names, types, strict=True))), names)
    codes, valid = codec.codes(columns)
    rows = rows[cut:]
    assert valid.tolist() == [None not in row for row in rows]
    for row, code in zip(rows, codes.tolist(), strict=True):
        if None in row:
            continue
        if not codec.hashed:
            assert code == row[0]
            continue
        h = 42
        for value, kind in zip(row, types, strict=True):
            h = xxh64(COLUMNS[kind][1](value), h)
        assert code % (1 << 64) == h


@pytest.mark.parametrize("value", [0, -1, 127, 128, -128, -129, 255, 256, 2**63, -(2**63), 10**36, -(10**36)])
def test_long_decimals_at_the_borders_of_a_byte(value: int) -> None:
    column = pa.array([Decimal(f"{value}e-3")], pa.decimal128(38, 3))
    codes, _ = KeyCodec.of(pa.schema([("k", column.type)]), ["k"]).codes([column])
    assert int(codes[0]) % (1 << 64) == xxh64(big_integer(Decimal(f"{value}e-3")), 42)
