"""Malformed and truncated messages are refused: never a crash, never an address outside of the message.

The message lies against a page that may not be read, in a process of its own, so a read too far ends that process.
"""

from __future__ import annotations

import subprocess
import sys

FUZZER = """
import ctypes, mmap, sys
import numpy as np, pyarrow as pa
from millstream.kernels.layout import Layout
from millstream.kernels.segments import map_segment

PAGE, seed = mmap.PAGESIZE, int(sys.argv[1])
memory = mmap.mmap(-1, 8 * PAGE)
start_of_memory = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
for guard in (0, 7):
    assert libc.mprotect(ctypes.c_void_p(start_of_memory + guard * PAGE), PAGE, 0) == 0
rng = np.random.default_rng(seed)
schema = pa.schema([("k", pa.int64()), ("t", pa.string()), ("l", pa.list_(pa.int16()))])
batch = pa.RecordBatch.from_pylist([{"k": i, "t": "x" * i, "l": [i] * (i % 3)} for i in range(20)], schema=schema)
message = batch.serialize().to_pybytes()
metadata = int.from_bytes(message[4:8], "little")
buffers = Layout.of(schema).buffers
row = np.zeros(buffers, dtype=np.int64)
tried = refused = 0


def attempt(content, at_end):
    global tried, refused
    offset = 7 * PAGE - len(content) if at_end else PAGE
    memory[offset : offset + len(content)] = content
    start = start_of_memory + offset
    rows = map_segment(start, len(content), row, buffers)
    tried += 1
    if rows < 0:
        refused += 1
    else:
        inside = (row == 0) | ((row >= start) & (row <= start + len(content)))
        assert inside.all(), (rows, row - start, len(content))


attempt(message, True)
assert refused == 0

print("truncated", flush=True)
for length in range(len(message)):
    attempt(message[:length], True)

print("changed bytes", flush=True)
for at in range(8 + metadata):
    for value in (0, 1, 0x7F, 0x80, 0xFF, message[at] ^ 4):
        for at_end in (True, False):
            attempt(message[:at] + bytes([value]) + message[at + 1 :], at_end)

print("changed words", flush=True)
for at in range(8 + metadata - 7):
    for word in (2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 4096, 4096):
        attempt(message[:at] + word.to_bytes(8, "little") + message[at + 8 :], at % 2 == 0)

print("random", flush=True)
for _ in range(4000):
    content = bytearray(message)
    for at in rng.integers(0, 8 + metadata, rng.integers(1, 6)):
        content[at] = rng.integers(0, 256)
    attempt(bytes(content[: rng.integers(1, len(content) + 1)] if rng.random() < 0.3 else content), rng.random() < 0.5)
    attempt(rng.bytes(int(rng.integers(1, 300))), True)
    attempt(b"\\xff\\xff\\xff\\xff" + int(rng.integers(0, 64)).to_bytes(4, "little") + rng.bytes(200), True)
print(tried, refused)
"""


def test_messages_that_are_not_sound() -> None:
    seed = 20_240_131
    command = [sys.executable, "-c", FUZZER, str(seed)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, (
        f"seed {seed}: ended with {run.returncode} at {run.stdout.split()}\n{run.stderr[-2000:]}"
    )
    tried, refused = map(int, run.stdout.splitlines()[-1].split())
    print(f"{refused} of {tried} refused")
    assert refused > tried // 10
