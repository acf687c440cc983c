"""Drives a join operator and checks what must hold for every one of them, whatever it joins."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millstream import joins
from millstream.master import Master
from oracle import On


def batches_of(table: pa.Table, batch_rows: int) -> list[pa.RecordBatch]:
    """The table in batches of so many rows; slices of shared buffers, so most have an offset."""
    (whole,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    return [whole.slice(start, batch_rows) for start in range(0, max(1, len(whole)), batch_rows)]


def direct(master: Master) -> Master:
    """The master read without the page cache; the test is skipped where the filesystem cannot do that."""
    try:
        os.close(os.open(Path(master.path) / master.manifest.parts[0].file, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this filesystem has no direct reads")
    return Master.open(master.path, direct=True)


def run_join(
    algorithm: str,
    master: Master,
    stream: pa.Table | Sequence[pa.RecordBatch],
    *,
    on: On,
    how: str = "inner",
    columns: Sequence[str] | None = None,
    memory: int | str = "4MB",
    batch_rows: int = 257,
    **options: Any,
) -> pa.Table:
    """Everything that the operator makes of the stream, after all checks of the operator's own promises."""
    batches = batches_of(stream, batch_rows) if isinstance(stream, pa.Table) else list(stream)
    operator = joins.create(algorithm, master, on=on, how=how, memory=memory, columns=columns, **options)
    try:
        return drive(operator, batches, joins.output_schema(batches[0].schema, master, on=on, how=how, columns=columns))
    finally:
        operator.close()


def drive(operator: Any, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """What comes out for these batches, the last rows by `flush`; counters and ledger agree with it."""
    before = operator.stats.as_dict()
    rows_in, out = 0, []
    for batch in batches:
        rows_in += len(batch)
        out += _checked(operator, operator.process(batch), schema)
    out += _checked(operator, operator.flush(), schema)
    assert not list(operator.flush()), "a second flush finds nothing"

    stats = operator.stats
    done = {name: value - before[name] for name, value in stats.as_dict().items()}
    assert done["rows_in"] == rows_in
    assert done["rows_in"] == done["matched"] + done["unmatched"]
    assert done["rows_out"] == sum(len(batch) for batch in out)
    assert min(stats.as_dict().values()) >= 0
    _check_memory(operator)
    if rows_in:
        assert (stats.memory_used, stats.memory_peak) == (operator.ledger.used, operator.ledger.peak)
    return pa.Table.from_batches(out, schema=schema)


def _checked(operator: Any, out: Iterable[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    kept = []
    for batch in out:
        assert isinstance(batch, pa.RecordBatch)
        assert batch.schema.equals(schema), f"{batch.schema}\nis not\n{schema}"
        batch.validate(full=True)
        _check_memory(operator)
        kept.append(batch)
    _check_memory(operator)
    return kept


def _check_memory(operator: Any) -> None:
    ledger = operator.ledger
    assert min(ledger.components.values()) >= 0
    assert sum(ledger.components.values()) == ledger.used <= ledger.peak <= operator.stats.memory_budget
    assert operator.stats.memory_used <= operator.stats.memory_peak <= ledger.peak
