"""Makes the records of the scenarios: files of line items, some 140 bytes a record, at a steady rate.

python lineitem.py data/lineitem --rate 1100 --records 100_000
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.workloads.keys import decimals

WORDS = np.array("carefully final deposits sleep furiously among the pending express requests above ironic".split())


def block(first: int, rows: int) -> pa.Table:
    """Records from number `first` on; the same numbers give the same records."""
    rng = np.random.default_rng(first)
    number = first + np.arange(rows)
    comment = [" ".join(words) for words in WORDS[rng.integers(0, len(WORDS), (rows, 6))]]
    return pa.table(
        {
            "l_orderkey": number // 4,
            "l_partkey": rng.integers(0, 200_000, rows),
            "l_suppkey": rng.integers(0, 1_000, rows),
            "l_linenumber": pa.array(number % 4 + 1, pa.int32()),
            "l_quantity": decimals(rng.integers(1, 51, rows) * 100, 12, 2),
            "l_extendedprice": decimals(rng.integers(90_000, 10_000_000, rows), 12, 2),
            "l_discount": decimals(rng.integers(0, 11, rows), 4, 2),
            "l_tax": decimals(rng.integers(0, 9, rows), 4, 2),
            "l_shipdate": pa.array(rng.integers(8_000, 10_500, rows).astype(np.int32)).cast(pa.date32()),
            "l_comment": comment,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--records", type=int, default=100_000, help="how many (default: 100000)")
    parser.add_argument("--rate", type=float, default=1100.0, help="records a second, 0 for at once (default: 1100)")
    parser.add_argument("--block", type=int, default=500, help="records in a file (default: 500)")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    for first in range(0, arguments.records, arguments.block):
        if arguments.rate:
            time.sleep(max(0.0, begun + first / arguments.rate - time.monotonic()))
        made = block(first, min(arguments.block, arguments.records - first))
        hidden = arguments.folder / f"_{first:09d}.parquet"
        pq.write_table(made, hidden)
        os.rename(hidden, arguments.folder / f"{first:09d}.parquet")


if __name__ == "__main__":
    main()
