"""XXH3 of segments against values of the reference implementation and a version in plain Python integers."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.kernels import checksum, hashing

MASK = (1 << 64) - 1

# What the reference implementation gives for the bytes i * i mod 251, i = 0, 1, ...
KNOWN = {241: 0xFA3E3F950B821A67, 1024: 0xA3115476086F73F1, 1025: 0x66B070BD27327C00, 8000: 0x3486B03A750B79F7}


def xxh3(data: bytes) -> int:
    """The specification's function for long inputs, step by step."""
    secret = checksum._SECRET
    p1, p2, p3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
    sums = [0xC2B2AE3D, p1, p2, p3, 0x85EBCA77C2B2AE63, 0x85EBCA77, 0x27D4EB2F165667C5, 0x9E3779B1]

    def take(at: int, key: int) -> None:
        words, keys = struct.unpack_from("<8Q", data, at), struct.unpack_from("<8Q", secret, key)
        for lane in range(8):
            mixed = words[lane] ^ keys[lane]
            sums[lane] = sums[lane] + words[lane ^ 1] + (mixed & 0xFFFFFFFF) * (mixed >> 32) & MASK

    for at in range(0, len(data) - 1, 64):
        if at + 64 < len(data):
            take(at, at % 1024 // 8)
            if at % 1024 == 960:
                for lane, key in enumerate(struct.unpack_from("<8Q", secret, 128)):
                    sums[lane] = (sums[lane] ^ sums[lane] >> 47 ^ key) * 0x9E3779B1 & MASK
    take(len(data) - 64, 121)
    merged = len(data) * p1 & MASK
    keys = struct.unpack_from("<8Q", secret, 11)
    for pair in range(0, 8, 2):
        product = (sums[pair] ^ keys[pair]) * (sums[pair + 1] ^ keys[pair + 1])
        merged = merged + (product & MASK ^ product >> 64) & MASK
    merged = (merged ^ merged >> 37) * 0x165667919E3779F9 & MASK
    return merged ^ merged >> 32


@pytest.mark.parametrize("length", KNOWN)
def test_known_values(length: int) -> None:
    data = bytes(i * i % 251 for i in range(length))
    assert xxh3(data) == KNOWN[length]
    assert checksum.segment_checksum(data) == KNOWN[length]


def test_every_length_around_the_ends_of_stripes_and_blocks() -> None:
    data = np.random.default_rng(3).bytes(3_200)
    for length in (*range(241, 400), *range(1_000, 1_100), *range(2_040, 2_120), *range(3_060, 3_200)):
        assert checksum.segment_checksum(data[:length]) == xxh3(data[:length]), length


@settings(max_examples=100, deadline=None)
@given(data=st.binary(min_size=241, max_size=5_000), start=st.integers(0, 9))
def test_any_bytes_anywhere(data: bytes, start: int) -> None:
    memory = np.frombuffer(bytes(start) + data + b"\xff" * 80, dtype=np.uint8)
    assert int(checksum.block_checksum(memory.ctypes.data + start, len(data))) == xxh3(data)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 239, 240])
def test_short_blocks_have_xxh64(length: int) -> None:
    data = np.random.default_rng(length).bytes(length)
    assert checksum.segment_checksum(data) == hashing.checksum(data)


def test_every_flipped_bit_changes_it() -> None:
    data = bytearray(np.random.default_rng(4).bytes(1_500))
    before = checksum.segment_checksum(data)
    seen = set()
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        seen.add(checksum.segment_checksum(data) & 0xFFFFFFFF)
        data[bit // 8] ^= 1 << bit % 8
    assert before & 0xFFFFFFFF not in seen
