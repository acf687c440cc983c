"""A filter over the keys of a master: says "surely absent" or "perhaps there", a few bits a key.

Split-block Bloom filters (blocks of 256 bits, one bit set in each of eight words), cut by key range so that a part
can be written with bounded memory: chunk c covers the keys from `first[c]` up to `first[c + 1]`.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint32, uint64

from .hashing import hash_u64

BITS_PER_KEY = 12
CHUNK_KEYS = 1 << 16

_SALTS = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)


def blocks_for(keys: int) -> int:
    """Number of 32-byte blocks for that many distinct keys."""
    return max(1, -(-keys * BITS_PER_KEY // 256))


@njit(cache=True, nogil=True)
def insert_keys(keys, blocks):
    """Set the bits of keys in a chunk of shape (blocks, 8)."""
    n = uint64(blocks.shape[0])
    for i in range(keys.shape[0]):
        h = hash_u64(uint64(keys[i]), uint64(0))
        block = ((h >> uint64(32)) * n) >> uint64(32)
        low = uint32(h)
        for word in range(8):
            blocks[block, word] |= uint32(1) << (uint32(low * _SALTS[word]) >> uint32(27))


@njit(cache=True, nogil=True)
def test_keys(keys, first, begin, blocks, present):
    """`present[i]` is False for keys that are surely absent; chunk c has the blocks `begin[c]` to `begin[c + 1]`."""
    chunks = first.shape[0]
    for i in range(keys.shape[0]):
        key = keys[i]
        low = 0
        high = chunks
        while low < high:
            middle = (low + high) >> 1
            if first[middle] <= key:
                low = middle + 1
            else:
                high = middle
        chunk = low - 1
        if chunk < 0:
            present[i] = False
            continue
        h = hash_u64(uint64(key), uint64(0))
        n = uint64(begin[chunk + 1] - begin[chunk])
        block = begin[chunk] + np.int64(((h >> uint64(32)) * n) >> uint64(32))
        bits = uint32(h)
        there = True
        for word in range(8):
            mask = uint32(1) << (uint32(bits * _SALTS[word]) >> uint32(27))
            if not (blocks[block, word] & mask):
                there = False
                break
        present[i] = there
