"""The master tables: products (one row a key) and partsupp (several rows a key), about 120 bytes a row.

A row is a function of the seed and of its key's number, so any part of a table can be made alone: row 7 of
`products(10)` is `products(1, start=7)`. Key numbers are `start * step`, `(start + 1) * step` and so on; with the
default step of 2 the odd numbers are keys that no master has, lying between those that it has.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InputError
from .keys import KeyKind, decimals, digits, encode_keys
from .mixing import Int64s, below, mix

DEFAULT_STEP = 2

_MICROSECONDS_2024 = 1_704_067_200_000_000
_SECONDS_A_YEAR = 31_536_000


def _words(text: str) -> pa.Array:
    return pa.array(text.split())


_ADJECTIVES = _words(
    "Adjustable Antique Brushed Classic Compact Cordless Durable Elegant Foldable Handmade Insulated Lightweight "
    "Modular Portable Rechargeable Waterproof"
)
_MATERIALS = _words(
    "Aluminium Bamboo Beech Brass Ceramic Copper Cotton Glass Leather Linen Marble Oak Stainless Titanium Walnut Wool"
)
_NOUNS = _words(
    "Armchair Backpack Blender Bookshelf Candlestick Corkscrew Flashlight Headphones Kettle Keyboard Lampshade "
    "Notebook Saucepan Sunglasses Toothbrush Umbrella"
)
_CATEGORIES = _words(
    "Automotive Bathroom Bedroom Books Camping Cycling Electronics Fashion Fitness Garden Grocery Health Kitchen "
    "Lighting Music Office Outdoor Pets Stationery Toys"
)
_BRANDS = _words(
    "Alderbrook Bellweather Cobalt Dunmore Eastvale Farrow Greystone Hartwell Ironwood Juniper Kestrel Lindqvist "
    "Marlowe Northgate Oakhurst Pemberton Quillon Ravensworth Silverline Thornbury"
)


def products(rows: int, *, seed: int = 0, key: KeyKind = "int", start: int = 0, step: int = DEFAULT_STEP) -> pa.Table:
    """A table of products, one row a key, in key order."""
    batches = list(product_batches(rows, seed=seed, key=key, start=start, step=step))
    return pa.Table.from_batches(batches)


def product_batches(
    rows: int,
    *,
    seed: int = 0,
    key: KeyKind = "int",
    start: int = 0,
    step: int = DEFAULT_STEP,
    batch_rows: int = 65_536,
) -> Iterator[pa.RecordBatch]:
    """The same as `products`, in batches; at least one batch, so that the schema is known."""
    for numbers in _numbers(rows, start, step, batch_rows):
        yield _product_batch(numbers, seed=seed, key=key)


def partsupp(
    keys: int,
    *,
    multiplicity: int = 4,
    multiplicity_exponent: float | None = None,
    seed: int = 0,
    key: KeyKind = "int",
    start: int = 0,
    step: int = DEFAULT_STEP,
) -> pa.Table:
    """A table of who supplies which product: several rows a key, rows of a key together, in key order.

    Each key has `multiplicity` rows; with a `multiplicity_exponent` z it has m rows, 1 <= m <= multiplicity, with
    probability proportional to 1 / m ** z.
    """
    batches = partsupp_batches(
        keys,
        multiplicity=multiplicity,
        multiplicity_exponent=multiplicity_exponent,
        seed=seed,
        key=key,
        start=start,
        step=step,
    )
    return pa.Table.from_batches(list(batches))


def partsupp_batches(
    keys: int,
    *,
    multiplicity: int = 4,
    multiplicity_exponent: float | None = None,
    seed: int = 0,
    key: KeyKind = "int",
    start: int = 0,
    step: int = DEFAULT_STEP,
    batch_rows: int = 65_536,
) -> Iterator[pa.RecordBatch]:
    """The same as `partsupp`, in batches of whole keys, about `batch_rows` rows each."""
    if multiplicity < 1:
        raise InputError(f"multiplicity must be at least 1, not {multiplicity}")
    weights = None
    if multiplicity_exponent is not None:
        weights = np.cumsum(np.arange(1.0, multiplicity + 1.0) ** -multiplicity_exponent)
        weights /= weights[-1]
    for numbers in _numbers(keys, start, step, max(1, batch_rows // multiplicity)):
        counts = np.full(len(numbers), multiplicity)
        if weights is not None:
            uniform = (mix(numbers, seed=seed, salt=3) >> np.uint64(11)).astype(np.float64) / 2**53
            counts = np.searchsorted(weights, uniform, side="right") + 1
        yield _partsupp_batch(np.repeat(numbers, counts), _positions(counts), seed=seed, key=key)


def _numbers(count: int, start: int, step: int, at_once: int) -> Iterator[Int64s]:
    if count < 0 or start < 0 or step < 1 or at_once < 1:
        raise InputError(
            f"rows and start must be >= 0, step and batch_rows >= 1; not {count}, {start}, {step} and {at_once}"
        )
    for first in range(start, start + max(count, 1), at_once):
        yield np.arange(first, min(first + at_once, start + count), dtype=np.int64) * step


def _positions(counts: Int64s) -> Int64s:
    """0..count-1 for each count, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)


def _product_batch(numbers: Int64s, *, seed: int, key: KeyKind) -> pa.RecordBatch:
    words, facts = mix(numbers, seed=seed, salt=1), mix(numbers, seed=seed, salt=2)
    name = pc.binary_join_element_wise(
        _ADJECTIVES.take(pa.array(below(words, 16))),
        _MATERIALS.take(pa.array(below(words, 16, shift=8))),
        _NOUNS.take(pa.array(below(words, 16, shift=16))),
        digits(numbers, prefix="No. ", width=12),
        " ",
    )
    return pa.RecordBatch.from_pydict(
        {
            **encode_keys(numbers, key),
            "name": name,
            "category": _CATEGORIES.take(pa.array(below(words, len(_CATEGORIES), shift=24))),
            "brand": _BRANDS.take(pa.array(below(words, len(_BRANDS), shift=32))),
            "barcode": digits(below(words, 10**9, shift=16), prefix="", width=12),
            "price": decimals(99 + below(facts, 100_000), 10, 2),
            "supplier_id": pa.array(below(facts, 100_000, shift=16).astype(np.int32)),
            "updated_at": _moments(facts),
        }
    )


def _partsupp_batch(numbers: Int64s, position: Int64s, *, seed: int, key: KeyKind) -> pa.RecordBatch:
    row = mix(numbers, seed=seed, salt=4) + position.astype(np.uint64)
    words, facts = mix(row, seed=seed, salt=5), mix(row, seed=seed, salt=6)
    remark = pc.binary_join_element_wise(
        _ADJECTIVES.take(pa.array(below(words, 16))),
        _MATERIALS.take(pa.array(below(words, 16, shift=8))),
        _NOUNS.take(pa.array(below(words, 16, shift=16))),
        pa.scalar("from"),
        _BRANDS.take(pa.array(below(words, len(_BRANDS), shift=24))),
        digits(below(words, 10**8, shift=32), prefix="lot ", width=12),
        " ",
    )
    return pa.RecordBatch.from_pydict(
        {
            **encode_keys(numbers, key),
            "supplier_id": pa.array((position * 1_000 + below(facts, 1_000)).astype(np.int32)),
            "available": pa.array(below(facts, 10_000, shift=8).astype(np.int32)),
            "supply_cost": decimals(99 + below(facts, 100_000, shift=16), 10, 2),
            "agreement": digits(below(words, 10**9, shift=16), prefix="A-", width=12),
            "remark": remark,
            "updated_at": _moments(facts),
        }
    )


def _moments(bits: np.ndarray) -> pa.Array:
    moments = _MICROSECONDS_2024 + below(bits, _SECONDS_A_YEAR, shift=32) * 1_000_000 + below(bits, 1_000_000)
    return pa.array(moments).cast(pa.timestamp("us", tz="UTC"))
