"""Small random tables through every operator: any keys, duplicates, NULLs, budgets and cuts of the stream."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driving import drive
from millstream import joins
from millstream.master import build_local
from oracle import assert_same_bag

KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "tinyint": (pa.int8(), st.integers(-3, 3)),
    "bigint": (pa.int64(), st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 1 << 40]) | st.integers(-5, 5)),
    "string": (pa.string(), st.text("ab\0é", max_size=2)),
    "binary": (pa.binary(), st.binary(max_size=1)),
    "date": (pa.date32(), st.integers(0, 5).map(lambda days: date(1970, 1, 1) + timedelta(days))),
    "decimal": (pa.decimal128(20, 2), st.integers(-4, 4).map(lambda cents: Decimal(cents).scaleb(-2))),
    "double": (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, 5e-324])),
    "boolean": (pa.bool_(), st.booleans()),
}


@dataclass(frozen=True)
class Case:
    """One random join: the two sides as rows of keys, how the stream is cut, and how much memory there is to spare."""

    kinds: tuple[str, ...]
    master: list[tuple[Any, ...]]
    stream: list[tuple[Any, ...]]
    cuts: list[int]
    flushes: list[bool]
    how: str
    spare: int
    segment_bytes: int
    by_frequency: bool

    @property
    def names(self) -> list[str]:
        return [f"k{i}" for i in range(len(self.kinds))]

    def table(self, rows: list[tuple[Any, ...]], payload: str) -> pa.Table:
        columns = {
            name: pa.array([row[i] for row in rows], KEYS[kind][0])
            for i, (name, kind) in enumerate(zip(self.names, self.kinds, strict=True))
        }
        numbers = pa.array(range(len(rows)), pa.int64())
        texts = pa.array([None if i % 5 == 4 else "#" * (i % 37) for i in range(len(rows))], pa.string())
        return pa.table({**columns, f"{payload}_number": numbers, f"{payload}_text": texts})


@st.composite
def cases(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Case:
    kinds = tuple(draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3)))
    key = st.tuples(*(st.none() | KEYS[kind][1] for kind in kinds))
    master = draw(st.lists(key, max_size=60))
    stream = draw(st.lists(key | st.sampled_from(master) if master else key, max_size=80))
    cuts = draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
    return Case(
        kinds=kinds,
        master=master,
        stream=stream,
        cuts=[0, *cuts, len(stream)],
        flushes=draw(st.lists(st.booleans(), min_size=len(cuts) + 1, max_size=len(cuts) + 1)),
        how=draw(st.sampled_from(joins.HOWS)),
        spare=draw(st.sampled_from([0, 1, 100, 3_000, 1_000_000])),
        segment_bytes=draw(st.sampled_from([256, 1_024])),
        by_frequency=draw(st.booleans()),
    )


def plain_join(case: Case, stream: pa.Table, master: pa.Table) -> pa.Table:
    """The join by its definition: for every row of the stream, all rows of the master with an equal key."""
    rows: dict[tuple[Any, ...], list[int]] = {}
    for number, key in enumerate(case.master):
        if None not in key:
            rows.setdefault(comparable(key), []).append(number)
    found = [[] if None in key else rows.get(comparable(key), []) for key in case.stream]
    if case.how in ("left_semi", "left_anti"):
        kept = [i for i, matches in enumerate(found) if bool(matches) == (case.how == "left_semi")]
        return stream.take(pa.array(kept, pa.int64()))
    pairs = [(i, r) for i, matches in enumerate(found) for r in (matches or ([None] if case.how == "left" else []))]
    result = stream.take(pa.array([s for s, _ in pairs], pa.int64()))
    taken = master.drop(case.names).take(pa.array([r for _, r in pairs], pa.int64()))
    for field in taken.schema:
        result = result.append_column(field, taken[field.name])
    return result


def comparable(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Equal for keys that are equal in SQL: NaN is itself, both zeros are one; types do not mix within a column."""
    return tuple("NaN" if isinstance(value, float) and math.isnan(value) else value for value in key)


@pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(case=cases())
def test_any_small_join(algorithm: str, case: Case) -> None:
    stream, table = case.table(case.stream, "s"), case.table(case.master, "m")
    layout = {"layout": "frequency", "frequency": "m_number"} if case.by_frequency else {}
    with tempfile.TemporaryDirectory() as folder:
        master = build_local(table, f"{folder}/m", key=case.names, segment_bytes=case.segment_bytes, **layout)
        assert master.rows == len(case.master)
        memory = case.spare + joins.least_memory(algorithm, master, on=case.names, how=case.how)
        operator = joins.create(algorithm, master, on=case.names, how=case.how, memory=memory)
        schema = joins.output_schema(stream.schema, master, on=case.names, how=case.how, columns=None)
        out, pending = [], []
        for start, end, flush in zip(case.cuts, case.cuts[1:], case.flushes, strict=False):
            pending += stream.slice(start, end - start).combine_chunks().to_batches()
            if flush:
                out.append(drive(operator, pending, schema))
                pending = []
        out.append(drive(operator, pending, schema))
        operator.close()
    assert_same_bag(pa.concat_tables(out), plain_join(case, stream, table))
