"""Master tables and streams with known properties, made by formula: the same seed gives the same rows everywhere.

    from millstream.workloads import NAMED, Workload

    shop = Workload(keys=1_000_000, exponent=1.0, absent=0.1)
    table = shop.master_table()                       # R: about 120 bytes a row
    for batch in shop.stream(100_000): ...            # S: about 20 bytes a row

    NAMED["drifting"].resized(5_000).stream(1_000)    # the workloads that tests and benchmarks use

Nothing here needs memory for all keys or all rows: keys are drawn by rejection-inversion, hot keys are scattered by
a bijection that is computed, and rows come in batches.
"""

from __future__ import annotations

from .arrivals import Arrivals, Bursty, Poisson, SelfSimilar, hurst
from .keys import KEY_KINDS, KeyKind, encode_keys, key_columns
from .sales import sales
from .tables import partsupp, partsupp_batches, product_batches, products
from .workload import NAMED, Workload
from .zipf import Placement, Scatter, Zipf

__all__ = [
    "KEY_KINDS",
    "NAMED",
    "Arrivals",
    "Bursty",
    "KeyKind",
    "Placement",
    "Poisson",
    "Scatter",
    "SelfSimilar",
    "Workload",
    "Zipf",
    "encode_keys",
    "hurst",
    "key_columns",
    "partsupp",
    "partsupp_batches",
    "product_batches",
    "products",
    "sales",
]
