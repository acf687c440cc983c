"""A process that joins a long stream with a large master; it stops and waits for a line before and after.

Arguments: path of a small master for the warm-up, path of the large one, algorithm, budget, number of stream rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from millstream import joins
from millstream.master import Master


def stream(rows: int, keys: int, batch_rows: int = 20_000) -> Iterator[pa.RecordBatch]:
    """Half of the rows ask for a few hot keys, a tenth for keys that are not there, the rest for any."""
    rng = np.random.default_rng(11)
    for start in range(0, rows, batch_rows):
        kind = rng.random(batch_rows)
        asked = rng.integers(0, keys, batch_rows)
        asked = np.where(kind < 0.5, asked % (keys // 50) * 50, np.where(kind < 0.6, asked + keys, asked))
        yield pa.RecordBatch.from_pydict({"k": asked, "event": np.arange(start, start + batch_rows)})


def join(path: str, algorithm: str, budget: int, rows: int) -> dict[str, int]:
    operator = joins.create(algorithm, Master.open(path), on="k", how="left", memory=budget)
    out = 0
    for batch in stream(rows, operator.master.rows):
        out += sum(len(result) for result in operator.process(batch))
    out += sum(len(result) for result in operator.flush())
    operator.close()
    return {**operator.stats.as_dict(), "out": out}


def main() -> None:
    small, large, algorithm, budget, rows = sys.argv[1:]
    join(small, algorithm, 2_000_000, 40_000)
    print("warm", flush=True)
    sys.stdin.readline()
    print(json.dumps(join(large, algorithm, int(budget), int(rows))), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
