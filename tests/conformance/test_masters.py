"""The same join from masters that lie differently on disk: many parts, direct reads, older versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conformance import test_keys
from conformance.domains import DOMAINS
from driving import batches_of, direct, drive, run_join
from millstream import joins
from millstream.master import Build, Master, build_local, write_part
from millstream.master.parts import dense_spec, read_entries
from oracle import assert_same_bag, expected_join

every_algorithm = pytest.mark.parametrize("algorithm", joins.ALGORITHMS)

KINDS = ("bigint", "string", "bigint+string")


def cut(table: pa.Table, order: np.ndarray, keys: np.ndarray, parts: int) -> Iterator[list[pa.RecordBatch]]:
    """The rows in that order in so many parts and an empty one; rows of a key are in one part."""
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    borders = [0, *(int(starts[len(starts) * i // parts]) for i in range(1, parts)), len(order)]
    for low, high in pairwise(borders):
        yield table.take(pa.array(order[low:high])).combine_chunks().to_batches()
    yield []


def build_in_parts(table: pa.Table, path: Path, *, key: list[str], parts: int, frequency: str | None = None) -> Master:
    """A master as a cluster builds it: each part is written on its own."""
    layout = "key" if frequency is None else "frequency"
    with Build.begin(path, table.schema, key=key, layout=layout, segment_bytes=1_024) as build:
        spec = build.spec
        codes = spec.codec.codes([table[name].combine_chunks() for name in key])[0]
        if spec.hash_column:
            table = table.append_column(pa.field(spec.hash_column, pa.int64(), nullable=False), pa.array(codes))
        if frequency is None:
            order = np.argsort(codes, kind="stable")
            return build.commit([write_part(spec, rows, i) for i, rows in enumerate(cut(table, order, codes, parts))])
        # by the frequency of a key's first row, rows of a key together
        first = {code: -number for number, code in reversed(list(enumerate(codes.tolist())))}
        order = np.lexsort((codes, [-first[code] for code in codes.tolist()]))
        summaries = [write_part(spec, rows, i) for i, rows in enumerate(cut(table, order, codes, parts))]
        entries = pa.Table.from_batches([batch for summary in summaries for batch in read_entries(spec, summary)])
        numbers = np.asarray(entries["key"])
        by_key = cut(entries, np.argsort(numbers, kind="stable"), numbers, parts)
        dense = [write_part(dense_spec(spec), rows, 100 + i) for i, rows in enumerate(by_key)]
        return build.commit(summaries, dense)


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Master]:
    built = {}
    for kind in KINDS:
        _, table = test_keys.data(kind)
        for layout, frequency in (("key", None), ("frequency", "row")):
            path = tmp_path_factory.mktemp("parts") / "m"
            built[kind, layout] = build_in_parts(table, path, key=DOMAINS[kind].names, parts=5, frequency=frequency)
    return built


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["key", "frequency"])
def test_statistics(layout: str, kind: str, in_parts: dict[tuple[str, str], Master]) -> None:
    _, table = test_keys.data(kind)
    keys = zip(*(table[name].to_pylist() for name in DOMAINS[kind].names), strict=True)
    counts = Counter(key for key in keys if None not in key)
    found = in_parts[kind, layout].statistics
    assert found.rows == len(table)
    assert found.null_key_rows == len(table) - counts.total()
    assert found.distinct_keys == len(counts)
    assert found.max_key_rows == max(counts.values())
    heaviest = sorted((rows for rows in counts.values() if rows > 1), reverse=True)[: len(found.heaviest_keys)]
    assert [rows for _, rows in found.heaviest_keys] == heaviest
    assert found.heaviest_keys
    by_text = {", ".join(map(str, key)): rows for key, rows in counts.items()}
    assert all(by_text[text] == rows for text, rows in found.heaviest_keys)


def test_heaviest_keys_among_many_in_a_segment(tmp_path: Path) -> None:
    counts = np.full(100, 2)
    counts[80] = 500
    table = pa.table({"k": np.repeat(np.arange(100), counts)})
    master = build_local(table, tmp_path / "m", key="k", segment_bytes=1 << 16)
    assert master.statistics.heaviest_keys[0] == ("80", 500)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["key", "frequency"])
@pytest.mark.parametrize("factor", [1, 4])
@every_algorithm
def test_many_parts(
    algorithm: str, factor: int, layout: str, kind: str, in_parts: dict[tuple[str, str], Master]
) -> None:
    master = in_parts[kind, layout]
    stream, table = test_keys.data(kind)
    assert master.rows == len(table)
    assert len(master.manifest.parts) == 5
    on = DOMAINS[kind].names
    for how in ("left", "left_semi"):
        memory = factor * joins.least_memory(algorithm, master, on=on, how=how)
        result = run_join(algorithm, master, stream, on=on, how=how, memory=memory)
        assert_same_bag(result, test_keys.expected(kind, how))


@pytest.mark.parametrize("layout", ["key", "frequency"])
@every_algorithm
def test_direct_reads(algorithm: str, layout: str, in_parts: dict[tuple[str, str], Master]) -> None:
    master = direct(in_parts["string", layout])
    stream, _ = test_keys.data("string")
    memory = 2 * joins.least_memory(algorithm, master, on="k0", how="left")
    result = run_join(algorithm, master, stream, on="k0", how="left", memory=memory)
    assert_same_bag(result, test_keys.expected("string", "left"))


@every_algorithm
def test_a_version_stays_what_it_was(algorithm: str, tmp_path: Path) -> None:
    """An operator goes on with its version while others are built; any version can be opened again."""
    stream = pa.table({"k": np.arange(0, 400, 3)})
    tables = [pa.table({"k": np.arange(i, 300 + i), "row": np.arange(300) * 10 + i}) for i in range(3)]
    first = build_local(tables[0], tmp_path / "m", key="k", segment_bytes=1_024)
    schema = joins.output_schema(stream.schema, first, on="k", how="left")
    operator = joins.create(algorithm, first, on="k", how="left", memory="1MB")
    drive(operator, batches_of(stream.slice(0, 20), 10), schema)
    for table in tables[1:]:
        build_local(table, tmp_path / "m", key="k", segment_bytes=1_024)
    result = drive(operator, batches_of(stream, 50), schema)
    assert_same_bag(result, expected_join(stream, tables[0], on="k", how="left"))
    operator.close()
    assert Master.open(tmp_path / "m").version == 3
    for version, table in enumerate(tables, 1):
        master: Any = Master.open(tmp_path / "m", version=version)
        result = run_join(algorithm, master, stream, on="k", how="left")
        assert_same_bag(result, expected_join(stream, table, on="k", how="left"))


@every_algorithm
def test_path_as_uri(algorithm: str, tmp_path: Path) -> None:
    table = pa.table({"k": [1, 2, 2], "row": [1, 2, 3]})
    build_local(table, f"file://{tmp_path}/m", key="k")
    stream = pa.table({"k": [2, 3]})
    result = run_join(algorithm, Master.open(f"file://{tmp_path}/m"), stream, on="k", how="left")
    assert_same_bag(result, expected_join(stream, table, on="k", how="left"))
