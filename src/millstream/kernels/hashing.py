"""XXH64 as Spark's `xxhash64` computes it, and the same function over plain bytes as checksum of stored blocks.

Spark hashes a row of key columns left to right, the hash of one column being the seed of the next; NULLs are
skipped. Clustering non-integer keys by this very hash lets the JVM sort a master while Python looks keys up in it.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32, uint64

from .memory import load_f32, load_f64, load_i8, load_i16, load_i32, load_i64, load_u8, load_u32, load_u64, store_u8

SPARK_SEED = 42

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


@njit(inline="always")
def _rotate(x, bits):
    return (x << uint64(bits)) | (x >> uint64(64 - bits))


@njit(inline="always")
def mix(h):
    """The finaliser of XXH64: every input bit reaches every output bit."""
    h ^= h >> uint64(33)
    h *= _P2
    h ^= h >> uint64(29)
    h *= _P3
    h ^= h >> uint64(32)
    return h


@njit(inline="always")
def hash_u32(value, seed):
    """XXH64 of four bytes."""
    h = seed + _P5 + uint64(4)
    h ^= uint64(value) * _P1
    h = _rotate(h, 23) * _P2 + _P3
    return mix(h)


@njit(inline="always")
def hash_u64(value, seed):
    """XXH64 of eight bytes."""
    h = seed + _P5 + uint64(8)
    h ^= _rotate(value * _P2, 31) * _P1
    h = _rotate(h, 27) * _P1 + _P4
    return mix(h)


@njit(cache=True, nogil=True)
def hash_bytes(address, length, seed):
    """XXH64 of `length` bytes at an address."""
    at = address
    end = address + length
    if length >= 32:
        v1 = seed + _P1 + _P2
        v2 = seed + _P2
        v3 = seed
        v4 = seed - _P1
        while at <= end - 32:
            v1 = _rotate(v1 + load_u64(at) * _P2, 31) * _P1
            v2 = _rotate(v2 + load_u64(at + 8) * _P2, 31) * _P1
            v3 = _rotate(v3 + load_u64(at + 16) * _P2, 31) * _P1
            v4 = _rotate(v4 + load_u64(at + 24) * _P2, 31) * _P1
            at += 32
        h = _rotate(v1, 1) + _rotate(v2, 7) + _rotate(v3, 12) + _rotate(v4, 18)
        h = (h ^ (_rotate(v1 * _P2, 31) * _P1)) * _P1 + _P4
        h = (h ^ (_rotate(v2 * _P2, 31) * _P1)) * _P1 + _P4
        h = (h ^ (_rotate(v3 * _P2, 31) * _P1)) * _P1 + _P4
        h = (h ^ (_rotate(v4 * _P2, 31) * _P1)) * _P1 + _P4
    else:
        h = seed + _P5
    h += uint64(length)
    while at <= end - 8:
        h ^= _rotate(load_u64(at) * _P2, 31) * _P1
        h = _rotate(h, 27) * _P1 + _P4
        at += 8
    if at <= end - 4:
        h ^= uint64(load_u32(at)) * _P1
        h = _rotate(h, 23) * _P2 + _P3
        at += 4
    while at < end:
        h ^= uint64(load_u8(at)) * _P5
        h = _rotate(h, 11) * _P1
        at += 1
    return mix(h)


# How a key column is hashed. The codes are shared with `keys.py`.
BOOL, INT8, INT16, INT32, INT64, FLOAT, DOUBLE, DECIMAL_SHORT, DECIMAL_LONG, VARLEN, VARLEN_LARGE, FIXED_BYTES = range(
    12
)


@njit(inline="always")
def _hash_decimal_bytes(address, seed, scratch):
    """Hash of a 128-bit integer as Java's BigInteger.toByteArray gives it: big-endian, the fewest bytes."""
    low = load_u64(address)
    high = load_i64(address + 8)
    count = 16
    while count > 1:
        top = load_u8(address + count - 1)
        below = load_u8(address + count - 2)
        if (top == 0 and below < 128) or (top == 255 and below >= 128):
            count -= 1
        else:
            break
    for i in range(count):
        store_u8(scratch + i, load_u8(address + count - 1 - i))
    if high == 0 and low == 0:
        count = 1
    return hash_bytes(scratch, count, seed)


@njit(cache=True, nogil=True)
def hash_column(kind, width, data, offsets, valid, hashes, scratch):
    """Fold one key column at address `data` into `hashes`, which holds the seeds; rows not `valid` are left alone."""
    for i in range(hashes.shape[0]):
        if not valid[i]:
            continue
        seed = hashes[i]
        if kind == VARLEN:
            start = int64_of(load_i32(offsets + 4 * i))
            end = int64_of(load_i32(offsets + 4 * i + 4))
            hashes[i] = hash_bytes(data + start, end - start, seed)
        elif kind == INT32:
            hashes[i] = hash_u32(uint32(load_i32(data + 4 * i)), seed)
        elif kind == INT64:
            hashes[i] = hash_u64(load_u64(data + 8 * i), seed)
        elif kind == DECIMAL_SHORT:
            hashes[i] = hash_u64(load_u64(data + 16 * i), seed)
        elif kind == DECIMAL_LONG:
            hashes[i] = _hash_decimal_bytes(data + 16 * i, seed, scratch)
        elif kind == BOOL:
            bit = (load_u8(data + (i >> 3)) >> (i & 7)) & 1
            hashes[i] = hash_u32(uint32(bit), seed)
        elif kind == INT8:
            hashes[i] = hash_u32(uint32(int64_of(load_i8(data + i))), seed)
        elif kind == INT16:
            hashes[i] = hash_u32(uint32(int64_of(load_i16(data + 2 * i))), seed)
        elif kind == FLOAT:
            single = load_f32(data + 4 * i)
            bits = load_u32(data + 4 * i)
            if single == 0.0:
                bits = uint32(0)
            elif single != single:
                bits = uint32(0x7FC00000)
            hashes[i] = hash_u32(bits, seed)
        elif kind == DOUBLE:
            double = load_f64(data + 8 * i)
            word = load_u64(data + 8 * i)
            if double == 0.0:
                word = uint64(0)
            elif double != double:
                word = uint64(0x7FF8000000000000)
            hashes[i] = hash_u64(word, seed)
        elif kind == VARLEN_LARGE:
            begin = load_i64(offsets + 8 * i)
            hashes[i] = hash_bytes(data + begin, load_i64(offsets + 8 * i + 8) - begin, seed)
        else:
            hashes[i] = hash_bytes(data + width * i, width, seed)


@njit(inline="always")
def int64_of(value):
    return np.int64(value)


def checksum(buffer) -> int:
    """XXH64 of a buffer, as stored beside every block."""
    data = np.frombuffer(buffer, dtype=np.uint8)
    return int(hash_bytes(data.ctypes.data, data.nbytes, np.uint64(0)))
