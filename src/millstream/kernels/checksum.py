"""XXH3 of long blocks: the checksum of a master's segments, several times as fast as XXH64.

XXH3 keeps eight sums of 64 bits and takes 64 bytes at a time: a processor with vectors does that in a few instructions,
but compilers do not find them in a loop over numbers. So the loop is written here in vectors of LLVM, which fits them
to whatever the processor has.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .hashing import hash_bytes

_SHORT = 240  # XXH3 has other functions for blocks up to here; ours have XXH64
_BLOCK = 1024
_STRIPE = 64

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_AVALANCHE = 0x165667919E3779F9

_I32, _I64, _I128 = (ir.IntType(bits) for bits in (32, 64, 128))
_LANES = ir.VectorType(_I64, 8)


def _lanes(values) -> ir.Constant:
    return ir.Constant(_LANES, [_I64(value) for value in values])


def _every(value: int) -> ir.Constant:
    return _lanes([value] * 8)


def _secret(start: int) -> ir.Constant:
    """The 64 bytes of the secret from `start` on."""
    return _lanes(np.frombuffer(_SECRET, "<u8", 8, start).tolist())


_FIRST = _lanes([_P32_3, _P1, _P2, _P3, _P4, _P32_2, _P5, _P32_1])
_NEIGHBOURS = ir.Constant(ir.VectorType(_I32, 8), [_I32(i ^ 1) for i in range(8)])


def _take(builder, sums, address, secret):
    """Add 64 bytes to the sums."""
    words = builder.load(builder.inttoptr(address, _LANES.as_pointer()), align=1)
    keyed = builder.xor(words, secret)
    product = builder.mul(builder.and_(keyed, _every(0xFFFFFFFF)), builder.lshr(keyed, _every(32)))
    swapped = builder.shuffle_vector(words, _LANES(ir.Undefined), _NEIGHBOURS)
    builder.store(builder.add(builder.load(sums), builder.add(swapped, product)), sums)


def _scramble(builder, sums):
    """What ends a block of 1,024 bytes."""
    value = builder.load(sums)
    value = builder.xor(builder.xor(value, builder.lshr(value, _every(47))), _secret(len(_SECRET) - _STRIPE))
    builder.store(builder.mul(value, _every(_P32_1)), sums)


def _merge(builder, sums, length):
    """One number of the eight sums."""
    keyed = builder.xor(builder.load(sums), _secret(11))
    merged = builder.mul(length, _I64(_P1))
    for pair in range(0, 8, 2):
        left, right = (builder.zext(builder.extract_element(keyed, _I32(pair + i)), _I128) for i in (0, 1))
        product = builder.mul(left, right)
        high = builder.lshr(product, _I128(64))
        merged = builder.add(merged, builder.trunc(builder.xor(product, high), _I64))
    merged = builder.mul(builder.xor(merged, builder.lshr(merged, _I64(37))), _I64(_AVALANCHE))
    return builder.xor(merged, builder.lshr(merged, _I64(32)))


@intrinsic
def _xxh3_long(typingctx, address, length):
    """XXH3, seed 0, of more than 240 bytes."""

    def codegen(context, builder, signature, args):
        address, length = args
        sums = cgutils.alloca_once_value(builder, _FIRST)
        before_last = builder.sub(length, _I64(1))
        blocks = builder.udiv(before_last, _I64(_BLOCK))
        with cgutils.for_range(builder, blocks) as block:
            start = builder.add(address, builder.mul(block.index, _I64(_BLOCK)))
            for number in range(_BLOCK // _STRIPE):
                _take(builder, sums, builder.add(start, _I64(number * _STRIPE)), _secret(8 * number))
            _scramble(builder, sums)

        rest = builder.add(address, builder.mul(blocks, _I64(_BLOCK)))
        stripes = builder.udiv(builder.urem(before_last, _I64(_BLOCK)), _I64(_STRIPE))
        secrets = cgutils.global_constant(
            builder,
            "xxh3_secrets",
            ir.Constant(ir.ArrayType(_LANES, 16), [_secret(8 * number) for number in range(16)]),
        )
        with cgutils.for_range(builder, stripes) as stripe:
            secret = builder.load(builder.gep(secrets, [_I64(0), stripe.index]))
            _take(builder, sums, builder.add(rest, builder.mul(stripe.index, _I64(_STRIPE))), secret)

        last = builder.sub(builder.add(address, length), _I64(_STRIPE))
        _take(builder, sums, last, _secret(len(_SECRET) - _STRIPE - 7))
        return _merge(builder, sums, length)

    return types.uint64(types.int64, types.int64), codegen


@njit(cache=True, nogil=True)
def block_checksum(address, length):
    """XXH3 of a block in memory, or XXH64 of one of up to 240 bytes."""
    if length <= _SHORT:
        return hash_bytes(address, length, np.uint64(0))
    return _xxh3_long(np.int64(address), np.int64(length))


def segment_checksum(buffer) -> int:
    """The checksum that a master's index has of each segment."""
    data = np.frombuffer(buffer, dtype=np.uint8)
    return int(block_checksum(data.ctypes.data, data.nbytes))
