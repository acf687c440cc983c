"""A workload: a master and a stream over its keys, named by its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from ..errors import InputError
from .arrivals import Arrivals, Poisson, SelfSimilar
from .keys import KeyKind, check_kind, key_columns
from .mixing import Int64s
from .sales import Places, sales
from .tables import DEFAULT_STEP, partsupp_batches, product_batches
from .zipf import Placement, Zipf


@dataclass(frozen=True)
class Workload:
    """What the master holds and what the stream asks for; equal workloads make equal data.

    - keys: different keys in the master
    - exponent, placement, absent, nulls, drift, arrivals: of the stream, as in `sales`
    - multiplicity, multiplicity_exponent: master rows a key, as in `partsupp`; 1 makes a master of `products`
    - key: type of the key
    - step: distance of two keys of the master; the numbers between are the absent keys
    """

    keys: int = 1_000_000
    exponent: float = 1.0
    placement: Placement = "scattered"
    multiplicity: int = 1
    multiplicity_exponent: float | None = None
    absent: float = 0.0
    nulls: float = 0.0
    drift: float = 0.0
    key: KeyKind = "int"
    step: int = DEFAULT_STEP
    arrivals: Arrivals = field(default_factory=Poisson)
    seed: int = 0

    def __post_init__(self) -> None:
        check_kind(self.key)
        if self.multiplicity < 1:
            raise InputError(f"multiplicity must be at least 1, not {self.multiplicity}")
        self.stream(0)  # checks everything that belongs to the stream

    @property
    def on(self) -> list[str]:
        """The key columns, with the same names in master and stream."""
        return key_columns(self.key)

    def resized(self, keys: int) -> Workload:
        """The same workload over a master with another number of keys."""
        return replace(self, keys=keys)

    def keyed(self, key: KeyKind) -> Workload:
        """The same workload with keys of another type."""
        return replace(self, key=key)

    def master_table(self) -> pa.Table:
        """R, in key order."""
        return pa.Table.from_batches(list(self.master_batches()))

    def master_batches(self, *, batch_rows: int = 65_536) -> Iterator[pa.RecordBatch]:
        """R in batches, in key order."""
        if self.multiplicity == 1:
            return product_batches(self.keys, seed=self.seed, key=self.key, step=self.step, batch_rows=batch_rows)
        return partsupp_batches(
            self.keys,
            multiplicity=self.multiplicity,
            multiplicity_exponent=self.multiplicity_exponent,
            seed=self.seed,
            key=self.key,
            step=self.step,
            batch_rows=batch_rows,
        )

    def stream(self, rows: int, *, batch_rows: int = 65_536) -> Iterator[pa.RecordBatch]:
        """S: the first `rows` rows of the stream."""
        return sales(
            rows,
            keys=self.keys,
            exponent=self.exponent,
            placement=self.placement,
            absent=self.absent,
            nulls=self.nulls,
            drift=self.drift,
            key=self.key,
            step=self.step,
            arrivals=self.arrivals,
            seed=self.seed,
            batch_rows=batch_rows,
        )

    def stream_table(self, rows: int) -> pa.Table:
        """S as one table."""
        return pa.Table.from_batches(list(self.stream(rows)))

    def popularity(self, numbers: Int64s) -> np.ndarray:
        """The share of the rows with a present key that ask for each product (0 .. keys - 1), before any drift."""
        ranks = Places(self.keys, placement=self.placement, seed=self.seed).ranks(numbers)
        return Zipf(self.keys, self.exponent).probability(ranks)


NAMED: dict[str, Workload] = {
    "zipf0": Workload(exponent=0.0),
    "zipf05": Workload(exponent=0.5),
    "zipf1": Workload(),
    "zipf1-clustered": Workload(placement="clustered"),
    "zipf15": Workload(exponent=1.5),
    "many-to-many": Workload(multiplicity=4),
    "many-to-many-skewed": Workload(multiplicity=64, multiplicity_exponent=1.0),
    "absent90": Workload(absent=0.9),
    "drifting": Workload(drift=0.01),
    "nulls": Workload(nulls=0.1, absent=0.1),
    "bursty": Workload(arrivals=SelfSimilar()),
}
