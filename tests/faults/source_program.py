"""An application that sends numbered records, goes on where its spool is, and is killed on the way by whoever tests it.

    python source_program.py URL SPOOL COUNT [MODE] [PAUSE]

Records are (number, text). Prints `done` when staging has acknowledged all of them.
"""

from __future__ import annotations

import sys
import time

import pyarrow as pa

from millstream.source import FlowRegulator, launch

sys.meta_path.insert(0, launch._WithoutPandas())  # saves a second in each of many starts

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])


def main() -> None:
    url, spool, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    mode = sys.argv[4] if len(sys.argv) > 4 else "thread"
    pause = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
    regulator = FlowRegulator(
        url, "orders", source="till", spool=spool, schema=SCHEMA, block=7, linger=0.02, sender=mode
    )  # type: ignore[arg-type]
    for number in range(regulator.taken, count):
        regulator.send((number, f"record {number}"))
        if pause and number % 10 == 0:
            time.sleep(pause)
    print("done" if regulator.flush(30) else regulator.stats, flush=True)
    regulator.close()


if __name__ == "__main__":
    main()
