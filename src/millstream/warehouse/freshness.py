"""Freshness as it is kept in the ledger: for each batch a small histogram of the seconds from capture to commit.

Bucket 0 holds what took less than a millisecond; bucket n > 0 holds 2^((n-1)/16) to 2^(n/16) milliseconds, so a
quantile is right within 4.5 %. Histograms of any number of batches are added up to those of a flow.
"""

from __future__ import annotations

import datetime
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from .ledger import Entry
from .receipt import Freshness
from .spec import CAPTURED

_STEPS = 16
_LAST = 640
_MILLISECOND = 1000.0  # in microseconds
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Lags:
    """How old the rows of a batch were at a moment: a histogram, the first and last capture, rows from the future."""

    histogram: dict[int, int]
    first: datetime.datetime | None
    last: datetime.datetime | None
    ahead: int

    @classmethod
    def of(cls, rows: pa.Table, now: datetime.datetime) -> Lags:
        """The lags of a batch, empty without capture times. None is negative: a row from the future counts as 0."""
        if CAPTURED not in rows.schema.names or rows.num_rows == 0:
            return cls({}, None, None, 0)
        column = rows.column(CAPTURED).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).drop_null()
        if len(column) == 0:
            return cls({}, None, None, 0)
        captured = column.to_numpy()
        lags = microseconds(now) - captured
        buckets = np.bincount(_buckets(np.maximum(lags, 0)))
        histogram = {int(number): int(buckets[number]) for number in np.flatnonzero(buckets)}
        first, last = int(captured.min()), int(captured.max())
        return cls(histogram, _moment(first), _moment(last), int(np.count_nonzero(lags < 0)))


def microseconds(moment: datetime.datetime) -> int:
    """A moment as microseconds since 1970, exactly."""
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1)


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EARLIEST = microseconds(datetime.datetime(1, 1, 2, tzinfo=datetime.UTC))
_LATEST = microseconds(datetime.datetime(9999, 12, 30, tzinfo=datetime.UTC))


def _moment(value: int) -> datetime.datetime:
    # a capture time is data from outside: years that datetime does not know become the nearest that it does
    return _EPOCH + datetime.timedelta(microseconds=min(max(value, _EARLIEST), _LATEST))


def _buckets(lags: np.ndarray) -> np.ndarray:
    scaled = np.floor(_STEPS * np.log2(np.maximum(lags, 1) / _MILLISECOND)).astype(np.int64) + 1
    return np.clip(scaled, 0, _LAST)


def edges(bucket: int) -> tuple[float, float]:
    """The seconds between which the rows of a bucket lie."""
    if bucket == 0:
        return 0.0, 0.001
    return 2 ** ((bucket - 1) / _STEPS) / 1000, 2 ** (bucket / _STEPS) / 1000


def quantile(histogram: Mapping[int, int], share: float) -> float | None:
    """The seconds within which this share of the rows arrived; None for no rows."""
    total = sum(histogram.values())
    if total == 0:
        return None
    wanted = share * total
    below = 0
    for bucket in sorted(histogram):
        count = histogram[bucket]
        if below + count >= wanted:
            low, high = edges(bucket)
            return low + (high - low) * (wanted - below) / count
        below += count
    return edges(max(histogram))[1]


def share_above(histogram: Mapping[int, int], bound: float) -> float | None:
    """The share of rows that took longer than `bound` seconds."""
    total = sum(histogram.values())
    if total == 0:
        return None
    above = 0.0
    for bucket, count in histogram.items():
        low, high = edges(bucket)
        above += count * min(1.0, max(0.0, (high - bound) / (high - low)))
    return above / total


def report(entries: Sequence[Entry], bound: float) -> list[Freshness]:
    """The figures of each (flow, table) over the batches given, in any order."""
    grouped: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        grouped[entry.flow, entry.table].append(entry)
    return [
        _figures(flow, table, sorted(found, key=lambda entry: entry.committed_at), bound)
        for (flow, table), found in sorted(grouped.items())
    ]


def _figures(flow: str, table: str, entries: Sequence[Entry], bound: float) -> Freshness:
    histogram: Counter[int] = Counter()
    for entry in entries:
        histogram.update(entry.lags)
    p50, p95, p99 = (quantile(histogram, share) for share in QUANTILES)
    return Freshness(
        flow=flow,
        table=table,
        batches=len(entries),
        rows=sum(entry.rows for entry in entries),
        p50=p50,
        p95=p95,
        p99=p99,
        longest=edges(max(histogram))[1] if histogram else None,
        bound=bound,
        above=share_above(histogram, bound),
        time_above=_time_above(entries, bound),
        ahead=sum(entry.ahead for entry in entries),
        clock_jumps=sum(entry.clock_jump != 0 for entry in entries),
        last_commit=entries[-1].committed_at if entries else None,
    )


def _time_above(entries: Sequence[Entry], bound: float) -> float | None:
    """Of the time from the first commit to the last, the share that ended in a batch with a row above the bound."""
    late = total = 0.0
    for before, entry in itertools.pairwise(entries):
        seconds = max(0.0, (entry.committed_at - before.committed_at).total_seconds())
        total += seconds
        if entry.captured_min is not None and (entry.committed_at - entry.captured_min).total_seconds() > bound:
            late += seconds
    return late / total if total else None
