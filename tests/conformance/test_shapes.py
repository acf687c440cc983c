"""Inputs of unusual shape: nothing at all, one row, one key everywhere, tiny and huge batches, slices, reuse."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from conformance.conftest import Masters
from driving import batches_of, drive, run_join
from millstream import joins
from oracle import assert_same_bag, expected_join

every_algorithm = pytest.mark.parametrize("algorithm", joins.ALGORITHMS)
every_how = pytest.mark.parametrize("how", joins.HOWS)

MASTER = pa.table(
    {
        "k": pa.array([*range(0, 400, 2), *range(0, 100, 4), None, None]),
        "name": [f"name {i}" * (i % 5) for i in range(227)],
        "size": pa.array(np.arange(227) / 4),
    }
)
STREAM = pa.table(
    {
        "k": pa.array([None if i % 17 == 0 else (i * i) % 450 for i in range(700)]),
        "position": np.arange(700),
        "note": [None if i % 3 else f"note {i}" for i in range(700)],
    }
)


def check(algorithm: str, master: object, stream: pa.Table, table: pa.Table, how: str, **options: object) -> None:
    result = run_join(algorithm, master, stream, on="k", how=how, **options)
    assert_same_bag(result, expected_join(stream, table, on="k", how=how))


@every_how
@every_algorithm
class TestSizes:
    def test_no_batches(self, algorithm: str, how: str, masters: Masters) -> None:
        operator = joins.create(algorithm, masters("shapes", MASTER, key="k"), on="k", how=how)
        assert not list(operator.flush())
        assert operator.stats.rows_in == operator.stats.rows_out == 0
        operator.close()

    def test_empty_stream(self, algorithm: str, how: str, masters: Masters) -> None:
        check(algorithm, masters("shapes", MASTER, key="k"), STREAM.slice(0, 0), MASTER, how)

    def test_empty_batches_between_others(self, algorithm: str, how: str, masters: Masters) -> None:
        master = masters("shapes", MASTER, key="k")
        empty = batches_of(STREAM, 1)[0].slice(0, 0)
        batches = [empty, *(b for batch in batches_of(STREAM, 100) for b in (batch, empty, empty))]
        result = run_join(algorithm, master, batches, on="k", how=how)
        assert_same_bag(result, expected_join(STREAM, MASTER, on="k", how=how))

    def test_empty_master(self, algorithm: str, how: str, masters: Masters) -> None:
        empty = MASTER.slice(0, 0)
        master = masters("empty", empty, key="k")
        assert master.rows == 0
        check(algorithm, master, STREAM, empty, how)

    def test_master_with_null_keys_alone(self, algorithm: str, how: str, masters: Masters) -> None:
        table = pa.table({"k": pa.nulls(3, pa.int64()), "name": ["a", "b", "c"]})
        check(algorithm, masters("null keys", table, key="k"), STREAM, table, how)

    def test_stream_with_null_keys_alone(self, algorithm: str, how: str, masters: Masters) -> None:
        stream = pa.table({"k": pa.nulls(50, pa.int64()), "position": np.arange(50)})
        check(algorithm, masters("shapes", MASTER, key="k"), stream, MASTER, how)

    @pytest.mark.parametrize("key", [7, 8, None])
    def test_one_row_on_both_sides(self, algorithm: str, how: str, key: int | None, masters: Masters) -> None:
        table = pa.table({"k": [7], "name": ["seven"]})
        stream = pa.table({"k": pa.array([key], pa.int64()), "position": [0]})
        check(algorithm, masters("one row", table, key="k"), stream, table, how)

    def test_one_key_on_all_rows(self, algorithm: str, how: str, masters: Masters) -> None:
        table = pa.table({"k": np.full(150, 5), "row": np.arange(150)})
        stream = pa.table({"k": np.full(60, 5), "position": np.arange(60)})
        master = masters("one key", table, key="k")
        least = joins.least_memory(algorithm, master, on="k", how=how)
        check(algorithm, master, stream, table, how, memory=least, batch_rows=25)

    def test_one_key_of_the_stream_against_many(self, algorithm: str, how: str, masters: Masters) -> None:
        stream = pa.table({"k": np.full(500, 44), "position": np.arange(500)})
        check(algorithm, masters("shapes", MASTER, key="k"), stream, MASTER, how, batch_rows=499)


@every_how
@every_algorithm
class TestBatches:
    @pytest.mark.parametrize("batch_rows", [1, 7, 700])
    def test_any_cut_of_the_stream(self, algorithm: str, how: str, batch_rows: int, masters: Masters) -> None:
        master = masters("shapes", MASTER, key="k")
        stream = STREAM.slice(0, 200) if batch_rows == 1 else STREAM
        memory = 2 * joins.least_memory(algorithm, master, on="k", how=how)
        check(algorithm, master, stream, MASTER, how, batch_rows=batch_rows, memory=memory)

    def test_sliced_batches(self, algorithm: str, how: str, masters: Masters) -> None:
        """Offsets that are no multiple of eight, in validity bitmaps, strings and booleans."""
        stream = STREAM.append_column("flag", pa.array([i % 3 == 0 for i in range(700)])).combine_chunks()
        (whole,) = stream.to_batches()
        batches = [whole.slice(3, 150), whole.slice(333, 77), whole.slice(699, 1), whole.slice(700, 0)]
        master = masters("shapes", MASTER, key="k")
        result = run_join(algorithm, master, batches, on="k", how=how)
        assert_same_bag(result, expected_join(pa.Table.from_batches(batches), MASTER, on="k", how=how))

    def test_an_operator_goes_on_after_flush(self, algorithm: str, how: str, masters: Masters) -> None:
        master = masters("shapes", MASTER, key="k")
        schema = joins.output_schema(STREAM.schema, master, on="k", how=how)
        memory = 2 * joins.least_memory(algorithm, master, on="k", how=how)
        operator = joins.create(algorithm, master, on="k", how=how, memory=memory)
        for start, length in ((0, 300), (300, 0), (300, 1), (301, 399), (0, 700)):
            part = STREAM.slice(start, length)
            result = drive(operator, batches_of(part, 64), schema)
            assert_same_bag(result, expected_join(part, MASTER, on="k", how=how))
        assert operator.stats.rows_in == 1_400
        operator.close()

    def test_batches_may_be_let_go_after_process(self, algorithm: str, how: str, masters: Masters) -> None:
        """Rows held back do not point into memory of the caller."""
        master = masters("shapes", MASTER, key="k")
        schema = joins.output_schema(STREAM.schema, master, on="k", how=how)
        operator = joins.create(algorithm, master, on="k", how=how)
        result = drive(operator, (_short_lived(batch) for batch in batches_of(STREAM, 50)), schema)
        assert_same_bag(result, expected_join(STREAM, MASTER, on="k", how=how))
        operator.close()


def _short_lived(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A copy whose buffers nobody else holds."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(pa.py_buffer(sink.getvalue().to_pybytes())).read_next_batch()


@every_algorithm
def test_two_operators_on_one_master_do_not_meet(algorithm: str, masters: Masters) -> None:
    master = masters("shapes", MASTER, key="k")
    schema = joins.output_schema(STREAM.schema, master, on="k", how="inner")
    one, two = (joins.create(algorithm, master, on="k", how="inner") for _ in range(2))
    out: dict[int, list[pa.RecordBatch]] = {0: [], 1: []}
    for i, batch in enumerate(batches_of(STREAM, 50)):
        out[i % 2] += (one, two)[i % 2].process(batch)
    out[0] += one.flush()
    out[1] += two.flush()
    for side in (0, 1):
        part = pa.Table.from_batches([b for i, b in enumerate(batches_of(STREAM, 50)) if i % 2 == side])
        joined = pa.Table.from_batches(out[side], schema=schema)
        assert_same_bag(joined, expected_join(part, MASTER, on="k", how="inner"))
    one.close()
    two.close()
