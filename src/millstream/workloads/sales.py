"""The stream: sales of products, about 20 bytes a row, as Arrow record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from ..errors import InputError
from .arrivals import Arrivals, Poisson
from .keys import KeyKind, check_kind, encode_keys
from .mixing import Int64s, generator
from .tables import DEFAULT_STEP
from .zipf import Placement, Scatter, Zipf

_BLOCK = 32_768
_MICROSECONDS_2025 = 1_735_689_600_000_000
_MOMENT = pa.timestamp("us", tz="UTC")


def sales(
    rows: int,
    *,
    keys: int,
    exponent: float = 1.0,
    placement: Placement = "scattered",
    absent: float = 0.0,
    nulls: float = 0.0,
    drift: float = 0.0,
    key: KeyKind = "int",
    step: int = DEFAULT_STEP,
    arrivals: Arrivals | None = None,
    seed: int = 0,
    batch_rows: int = 65_536,
) -> Iterator[pa.RecordBatch]:
    """Sales of the products that `products(keys, key=key, step=step)` makes: key, quantity and moment of sale.

    - keys: how many different products there are
    - exponent: of Zipf's law; 0 is uniform
    - placement: "scattered" puts the hot keys anywhere, "clustered" makes the first key the hottest
    - absent: share of rows whose key no product has (of those with a key)
    - nulls: share of rows without a key
    - drift: ranks by which the hot set moves on for each row; 0.001 makes another key the hottest every 1000 rows
    - arrivals: when the rows are sold; Poisson arrivals if not given

    The rows do not depend on `batch_rows`, and a longer stream starts with the rows of a shorter one.
    """
    check_kind(key)
    if rows < 0 or batch_rows < 1 or step < 1:
        raise InputError(f"rows must be >= 0, batch_rows and step >= 1; not {rows}, {batch_rows} and {step}")
    if placement not in ("scattered", "clustered"):
        raise InputError(f"placement {placement!r} is not 'scattered' or 'clustered'")
    for name, share in (("absent", absent), ("nulls", nulls)):
        if not 0 <= share <= 1:
            raise InputError(f"{name} is a share between 0 and 1, not {share}")
    if drift < 0:
        raise InputError(f"drift must be >= 0, not {drift}")
    place = Places(keys, placement=placement, seed=seed)
    zipf = Zipf(keys, exponent)

    def block(number: int) -> dict[str, pa.Array]:
        rng = generator(seed, 3, number)
        position = number * _BLOCK + np.arange(_BLOCK)
        moved = np.floor(position * drift).astype(np.int64) if drift else 0
        ids = place.numbers(zipf.sample(rng, _BLOCK), moved) * step
        missing = rng.random(_BLOCK) < absent
        ids[missing] = _absent(ids[missing], keys=keys, step=step, rng=rng)
        valid = rng.random(_BLOCK) >= nulls if nulls else None
        quantity = rng.geometric(0.4, _BLOCK).astype(np.int32)
        return {**encode_keys(ids, key, valid=valid), "quantity": pa.array(quantity)}

    return _batches(block, rows, batch_rows, arrivals or Poisson(), seed)


class Places:
    """Which product has which rank of popularity."""

    def __init__(self, keys: int, *, placement: Placement, seed: int) -> None:
        self._keys = keys
        self._scatter = Scatter(keys, seed=seed) if placement == "scattered" else None

    def numbers(self, ranks: Int64s, moved: Int64s | int = 0) -> Int64s:
        """The numbers of the products with these ranks (1 is the hottest), after the hot set has moved on."""
        zero_based = (ranks - 1 + moved) % self._keys
        return zero_based if self._scatter is None else self._scatter.forward(zero_based)

    def ranks(self, numbers: Int64s) -> Int64s:
        """The ranks of these products before anything has moved."""
        return 1 + (numbers if self._scatter is None else self._scatter.backward(numbers))


def _absent(ids: Int64s, *, keys: int, step: int, rng: np.random.Generator) -> Int64s:
    """Keys that are not there: between two that are if there is room, behind the last one otherwise."""
    if step > 1:
        return ids + rng.integers(1, step, len(ids))
    return ids + keys


def _batches(
    block: Callable[[int], dict[str, pa.Array]], rows: int, batch_rows: int, arrivals: Arrivals, seed: int
) -> Iterator[pa.RecordBatch]:
    """The blocks with their moments of sale, cut anew; at least one batch, so that the schema is known."""
    pending: list[pa.RecordBatch] = []
    have = done = 0
    for number, moments in enumerate(_moments(rows, arrivals, seed)):
        columns = {name: column.slice(0, len(moments)) for name, column in block(number).items()}
        pending.append(pa.RecordBatch.from_pydict({**columns, "sold_at": moments}))
        have += len(moments)
        done += len(moments)
        if have >= batch_rows or done == rows:
            joined = pa.concat_batches(pending)
            whole = have if done == rows else have - have % batch_rows
            for start in range(0, max(whole, 1), batch_rows):
                yield joined.slice(start, min(batch_rows, whole - start))
            pending = [joined.slice(whole)]
            have -= whole


def _moments(rows: int, arrivals: Arrivals, seed: int) -> Iterator[pa.Array]:
    """Moments of sale in ascending order, one array for each block of the stream."""
    blocks = arrivals.time_blocks(seed=seed)
    rest = np.empty(0)
    for first in range(0, max(rows, 1), _BLOCK):
        size = min(_BLOCK, rows - first)
        parts, have = [rest], len(rest)
        while have < size:
            parts.append(next(blocks))
            have += len(parts[-1])
        times = np.concatenate(parts)
        times, rest = times[:size], times[size:]
        yield pa.array(_MICROSECONDS_2025 + np.round(times * 1e6).astype(np.int64)).cast(_MOMENT)
