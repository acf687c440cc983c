"""What activities remember: the same answers when asked again, after a restart, and after a torn write."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.errors import CorruptState
from millstream.flow.memory import CHANGED, NEW, SAME, Claims, Contents, Numbers
from millstream.flow.rowlog import RowLog


def keys(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(-(2**62), 2**62, count), rng.integers(-(2**62), 2**62, count)


def test_numbers_are_dense_stable_and_durable(tmp_path):
    high, low = keys(5000)
    numbers = Numbers(tmp_path / "n")
    first = numbers.assign(high[:2000], low[:2000])
    again = numbers.assign(high, low)
    assert (again[:2000] == first).all()
    assert sorted(again) == list(range(1, 5001))
    twice = numbers.assign(np.repeat(high[:10], 3), np.repeat(low[:10], 3))
    assert (twice == np.repeat(again[:10], 3)).all()
    assert (Numbers(tmp_path / "n").assign(high, low) == again).all()


def test_one_owner_for_each_key_within_the_horizon(tmp_path):
    high, low = keys(5000)
    owner = np.arange(5000)
    claims = Claims(tmp_path / "c", horizon=1000)
    for start in range(0, 5000, 500):
        piece = slice(start, start + 500)
        assert claims.claim(high[piece], low[piece], owner[piece]).all()
        recent = slice(max(0, start - 500), start + 500)
        assert not claims.claim(high[recent], low[recent], owner[recent] + 10_000).any()
        assert claims.claim(high[recent], low[recent], owner[recent]).all()
    assert len(list((tmp_path / "c").iterdir())) == 2
    after = Claims(tmp_path / "c", horizon=1000)
    assert not after.claim(high[4000:], low[4000:], owner[4000:] + 1).any()
    assert after.claim(high[:10], low[:10], owner[:10] + 1).all()  # beyond the horizon


def test_contents_answer_a_repeated_batch_as_the_first_time(tmp_path):
    high, low = keys(3)

    def ask(memory: Contents, batch: int, first: list[int], last: list[int]) -> list[int]:
        return memory.compare(batch, high, low, first=np.array(first), last=np.array(last)).tolist()

    memory = Contents(tmp_path / "x")
    for _ in range(2):
        assert ask(memory, 0, [1, 2, 3], [1, 2, 3]) == [NEW] * 3
    for reopened in (False, True, True):
        memory = Contents(tmp_path / "x") if reopened else memory
        assert ask(memory, 1, [1, 5, 3], [1, 5, 4]) == [SAME, CHANGED, SAME]
    memory._compact()
    memory = Contents(tmp_path / "x")
    assert ask(memory, 1, [1, 5, 3], [1, 5, 4]) == [SAME, CHANGED, SAME]
    assert ask(memory, 2, [1, 5, 4], [1, 5, 4]) == [SAME] * 3
    assert ask(memory, 3, [1, 5, 3], [1, 5, 3]) == [SAME, SAME, CHANGED]


def test_a_torn_tail_goes_and_nothing_else(tmp_path):
    log = RowLog(tmp_path / "log", columns=2)
    log.append(np.array([[1, 2], [3, 4]]))
    whole = (tmp_path / "log").stat().st_size
    log.append(np.array([[5, 6]]))
    content = (tmp_path / "log").read_bytes()
    for cut in range(whole, len(content)):
        (tmp_path / "log").write_bytes(content[:cut])
        assert RowLog(tmp_path / "log", columns=2).read().tolist() == [[1, 2], [3, 4]]
        assert (tmp_path / "log").stat().st_size == whole
    (tmp_path / "log").write_bytes(content)
    assert RowLog(tmp_path / "log", columns=2).read().tolist() == [[1, 2], [3, 4], [5, 6]]


def test_damage_in_the_middle_is_named(tmp_path):
    log = RowLog(tmp_path / "log", columns=2)
    log.append(np.array([[1, 2], [3, 4]]))
    log.append(np.array([[5, 6]]))
    content = bytearray((tmp_path / "log").read_bytes())
    content[25] ^= 1
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(CorruptState, match="damaged at byte 0"):
        RowLog(tmp_path / "log", columns=2).read()
