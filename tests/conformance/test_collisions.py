"""Different keys with the same 64-bit hash are different keys.

Masters of any but a single integer key are clustered by Spark's xxhash64. Both its rounds over eight bytes and its
finish can be inverted, so for any first half of a 16-byte key there is a second half with a given hash.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import pyarrow as pa
import pytest

from conformance.conftest import Masters
from driving import run_join
from millstream import joins
from millstream.kernels import hashing
from oracle import assert_same_bag, expected_join

MASK = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
SEED = 42


def rotate(x: int, bits: int) -> int:
    return ((x << bits) | (x >> (64 - bits))) & MASK


def scramble(word: int) -> int:
    return rotate(word * P2 & MASK, 31) * P1 & MASK


def unscramble(value: int) -> int:
    return rotate(value * pow(P1, -1, 1 << 64) & MASK, 64 - 31) * pow(P2, -1, 1 << 64) & MASK


def absorb(state: int, word: int) -> int:
    return (rotate(state ^ scramble(word), 27) * P1 + P4) & MASK


def finish(h: int) -> int:
    h = (h ^ (h >> 33)) * P2 & MASK
    h = (h ^ (h >> 29)) * P3 & MASK
    return h ^ (h >> 32)


def hash_16_bytes(first: int, second: int) -> int:
    return finish(absorb(absorb((SEED + P5 + 16) & MASK, first), second))


def hash_two_longs(first: int, second: int) -> int:
    seed = finish(absorb((SEED + P5 + 8) & MASK, first))
    return finish(absorb((seed + P5 + 8) & MASK, second))


def same_hash_bytes() -> Iterator[bytes]:
    """Keys of 16 bytes that all have the hash of sixteen dots."""
    (dots,) = struct.unpack("<Q", b"." * 8)
    start = (SEED + P5 + 16) & MASK
    wanted = absorb(start, dots) ^ scramble(dots)
    yield b"." * 16
    for number in count():
        first = struct.unpack("<Q", f"{number:08d}".encode())[0]
        second = unscramble(absorb(start, first) ^ wanted)
        assert hash_16_bytes(first, second) == hash_16_bytes(dots, dots)
        yield struct.pack("<QQ", first, second)


def same_hash_strings() -> Iterator[str]:
    """Those of `same_hash_bytes` that are ASCII: one in 256."""
    return (key.decode() for key in same_hash_bytes() if key.isascii())


def same_hash_longs() -> Iterator[tuple[int, int]]:
    """Pairs of longs with one hash: NULLs aside, a composite key is hashed column by column."""
    wanted = (finish(absorb((SEED + P5 + 8) & MASK, 0)) + P5 + 8) & MASK ^ scramble(0)
    for first in count():
        state = (finish(absorb((SEED + P5 + 8) & MASK, first)) + P5 + 8) & MASK
        second = unscramble(state ^ wanted)
        assert hash_two_longs(first, second) == hash_two_longs(0, 0)
        yield first, second - (1 << 64) if second >> 63 else second


def tables(keys: dict[str, list[object]]) -> tuple[pa.Table, pa.Table]:
    """A master of all but the last two keys, the first of them many times, and a stream of all keys."""
    columns = list(keys.values())
    size = len(columns[0])
    present = [*range(size - 2), *([0] * 30), *([1] * 3)]
    asked = [i % size for i in range(5 * size)]
    master = {name: [column[i] for i in present] for name, column in keys.items()}
    stream = {name: [column[i] for i in asked] for name, column in keys.items()}
    return (
        pa.table({**stream, "position": list(range(len(asked)))}),
        pa.table({**master, "row": list(range(len(present)))}),
    )


COLLIDING = {
    "binary": {"k": list(islice(same_hash_bytes(), 40))},
    "string": {"k": list(islice(same_hash_strings(), 12))},
    "bigint+bigint": dict(zip(("a", "b"), map(list, zip(*islice(same_hash_longs(), 40), strict=True)), strict=True)),
}


@pytest.mark.parametrize("kind", ["binary", "string"])
def test_keys_do_collide(kind: str) -> None:
    hashes = set()
    for key in COLLIDING[kind]["k"]:
        data = np.frombuffer(key.encode() if isinstance(key, str) else key, dtype=np.uint8)
        hashes.add(int(hashing.hash_bytes(data.ctypes.data, len(data), np.uint64(hashing.SPARK_SEED))))
    assert len(hashes) == 1


@pytest.mark.parametrize("kind", COLLIDING)
@pytest.mark.parametrize("how", joins.HOWS)
@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_colliding_keys_are_told_apart(algorithm: str, how: str, kind: str, masters: Masters) -> None:
    stream, table = tables(COLLIDING[kind])
    on = list(COLLIDING[kind])
    master = masters(f"collisions {kind}", table, key=on)
    memory = 2 * joins.least_memory(algorithm, master, on=on, how=how)
    result = run_join(algorithm, master, stream, on=on, how=how, memory=memory, batch_rows=33)
    assert_same_bag(result, expected_join(stream, table, on=on, how=how))


@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_absent_key_with_the_hash_of_a_present_one(algorithm: str, masters: Masters) -> None:
    """The membership filter says yes, the comparison of the key says no."""
    there, *others = islice(same_hash_strings(), 5)
    table = pa.table({"k": [there], "row": [0]})
    stream = pa.table({"k": [*others, there, *others]})
    master = masters("collision of one", table, key="k")
    for how in joins.HOWS:
        result = run_join(algorithm, master, stream, on="k", how=how, batch_rows=2)
        assert_same_bag(result, expected_join(stream, table, on="k", how=how))
