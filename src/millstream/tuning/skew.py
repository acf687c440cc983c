"""The skew of a stream, estimated from a sample of its keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import InputError
from ..master import Master
from .popularity import popularity

LEAST_ROWS = 100
LARGEST = 3.0
STEPS = 24  # halvings of the range of exponents


def estimate_skew(sample: Any, *, master: Master | None = None, on: str | list[str] | None = None) -> float:
    """The exponent of Zipf's law that the keys of a sample follow best: 0 is uniform, 1 is Zipf's law.

    `sample` is a RecordBatch or Table with the key columns (`on`, by default the key of `master`, else the first
    column), or an array of keys. The estimate is the exponent at which as many different keys come up in so many rows
    as did; it depends on how many keys there are to ask for: those of `master`, or else as many as the repetitions in
    the sample make likely. 20,000 rows are a good sample.
    """
    counts = _counts(sample, master, on)
    rows = int(counts.sum())
    if rows < LEAST_ROWS:
        raise InputError(f"a sample of {rows} keys is too small to estimate a skew from; give at least {LEAST_ROWS}")
    if master is not None:
        return _exponent(len(counts), rows, max(len(counts), master.statistics.distinct_keys))
    repeats = float((counts * (counts - 1.0)).sum()) / (rows * (rows - 1.0))
    best, found = math.inf, 0.0
    for keys in np.unique(np.geomspace(max(2, len(counts)), 1e8, 24).astype(np.int64)).tolist():
        exponent = _exponent(len(counts), rows, keys)
        known = popularity(keys, exponent)
        expected = float((known.number * known.share**2).sum())
        off = abs(math.log(expected) - math.log(max(repeats, 1e-12)))
        if off < best:
            best, found = off, exponent
    return found


def _exponent(distinct: int, rows: int, keys: int) -> float:
    """The exponent at which `rows` rows over `keys` keys have that many different ones."""
    low, high = 0.0, LARGEST
    for _ in range(STEPS):
        middle = (low + high) / 2
        known = popularity(keys, middle)
        if float((known.number * -np.expm1(-rows * known.share)).sum()) > distinct:
            low = middle
        else:
            high = middle
    return round((low + high) / 2, 3)


def _counts(sample: Any, master: Master | None, on: str | list[str] | None) -> np.ndarray:
    """How often each different key of a sample comes up; NULL keys do not count."""
    if isinstance(sample, pa.RecordBatch | pa.Table):
        names = [on] if isinstance(on, str) else list(on) if on else master.key if master else [sample.schema.names[0]]
        missing = [name for name in names if name not in sample.schema.names]
        if missing:
            raise InputError(f"the sample has no column {missing[0]!r}; it has {', '.join(sample.schema.names)}")
        table = pa.table({name: sample.column(name) for name in names})
    else:
        values = sample if isinstance(sample, pa.Array | pa.ChunkedArray) else pa.array(sample)
        names, table = ["key"], pa.table({"key": values})
    grouped = table.drop_null().group_by(names).aggregate([([], "count_all")])
    return grouped.column("count_all").to_numpy()
