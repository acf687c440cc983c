"""Every algorithm x every `how` x every type of key, with duplicates, NULLs and absent keys on both sides."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from conformance.conftest import Masters
from conformance.domains import DOMAINS
from driving import run_join
from millstream import joins
from millstream.workloads import Zipf
from oracle import assert_same_bag, expected_join

MASTER_ROWS = 300
STREAM_ROWS = 500


@cache
def data(domain_name: str) -> tuple[pa.Table, pa.Table]:
    """A master that lacks the last quarter of the keys and has duplicates of others, and a skewed stream over all."""
    domain = DOMAINS[domain_name]
    rng = np.random.default_rng(len(domain_name))
    present = max(1, len(domain) * 3 // 4)
    at_least_once = np.arange(present)
    picks = np.concatenate([at_least_once, rng.integers(0, present, max(0, MASTER_ROWS - present))])
    rng.shuffle(picks)
    if present <= 2:
        picks = picks[:20]
    master = pa.table(
        {
            **domain.draw(picks, rng, nulls=0.05),
            "row": np.arange(len(picks)),
            "text": [None if i % 11 == 0 else "text " * (i % 7) + str(i) for i in range(len(picks))],
        }
    )
    picks = rng.permutation(len(domain))[Zipf(len(domain), 0.7).sample(rng, STREAM_ROWS) - 1]
    stream = pa.table({**domain.draw(picks, rng, nulls=0.08), "position": np.arange(STREAM_ROWS)})
    return stream, master


@cache
def expected(domain_name: str, how: str) -> pa.Table:
    stream, master = data(domain_name)
    return expected_join(stream, master, on=DOMAINS[domain_name].names, how=how)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("how", joins.HOWS)
@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
def test_join_is_the_sql_join(algorithm: str, how: str, domain: str, masters: Masters) -> None:
    stream, table = data(domain)
    on = DOMAINS[domain].names
    master = masters(f"key {domain}", table, key=on)
    memory = 2 * joins.least_memory(algorithm, master, on=on, how=how)
    result = run_join(algorithm, master, stream, on=on, how=how, memory=memory, batch_rows=97)
    assert_same_bag(result, expected(domain, how))


@pytest.mark.parametrize("domain", DOMAINS)
def test_cases_are_worth_testing(domain: str) -> None:
    """The data has what it should have: matches, duplicates, absent keys and NULLs."""
    stream, master = data(domain)
    pairs = len(expected(domain, "inner"))
    matched = len(expected(domain, "left_semi"))
    assert 0 < matched < pairs
    assert 0 < len(expected(domain, "left_anti")) == len(stream) - matched
    for name in DOMAINS[domain].names:
        assert stream[name].null_count > 0
        assert master[name].null_count > 0
