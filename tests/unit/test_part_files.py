"""Memory that the disk reads to directly."""

from __future__ import annotations

import pytest

from millstream.master.part_files import HUGE, PAGE, Memory


@pytest.mark.parametrize("size", [PAGE, HUGE - PAGE, HUGE, HUGE + PAGE, 2 * HUGE + 5 * PAGE])
def test_a_buffer_fills_huge_pages_from_their_beginning(size: int) -> None:
    """Otherwise it is a matter of chance how many of its pages are huge, and of that how fast the disk is."""
    memory = Memory.mostly_huge(size)
    assert memory.address % (HUGE if size >= HUGE else PAGE) == 0
    assert memory.nbytes == size + PAGE == Memory.of(size).nbytes, "and takes no more for that"
    everything = memory.array()
    assert len(everything) == size
    everything[:] = 7
    assert everything.ctypes.data == memory.address
    part = memory.part(size // 2, size - size // 2)
    assert part.array().sum() == 7 * (size - size // 2)
