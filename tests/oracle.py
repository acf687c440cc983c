"""The judge of joins: DuckDB says which rows belong together, plain comparison says whether the bags agree.

DuckDB sees the keys and row numbers alone. The expected rows are then taken from the very tables that went in, so
that payload columns must come out of the operators unchanged, whatever DuckDB thinks of their types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import duckdb
import numpy as np
import pyarrow as pa

On = str | Sequence[str] | Mapping[str, str]

_JOINS = {
    "inner": "SELECT s, r FROM stream JOIN master ON {condition}",
    "left": "SELECT s, r FROM stream LEFT JOIN master ON {condition}",
    "left_semi": "SELECT s, NULL AS r FROM stream SEMI JOIN master ON {condition}",
    "left_anti": "SELECT s, NULL AS r FROM stream ANTI JOIN master ON {condition}",
}


def key_pairs(on: On) -> dict[str, str]:
    """`on` in its long form: stream column -> master column."""
    if isinstance(on, str):
        return {on: on}
    return dict(on) if isinstance(on, Mapping) else {name: name for name in on}


def expected_join(
    stream: pa.Table, master: pa.Table, *, on: On, how: str, columns: Sequence[str] | None = None
) -> pa.Table:
    """What the join of stream and master is, according to DuckDB."""
    pairs = key_pairs(on)
    s, r = _matches(stream, master, pairs, how)
    result = stream.take(s)
    if how in ("left_semi", "left_anti"):
        return result
    if columns is None:
        columns = [name for name in master.schema.names if name not in pairs.values()]
    for name in columns:
        result = result.append_column(pa.field(name, master.schema.field(name).type), master[name].take(r))
    return result


def _matches(stream: pa.Table, master: pa.Table, pairs: dict[str, str], how: str) -> tuple[pa.Array, pa.Array]:
    def keys(table: pa.Table, names: Sequence[str], number: str) -> pa.Table:
        columns = [table[name] for name in names] + [pa.array(np.arange(len(table)))]
        return pa.table(columns, names=[f"k{i}" for i in range(len(names))] + [number])

    condition = " AND ".join(f"stream.k{i} = master.k{i}" for i in range(len(pairs)))
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        connection.register("stream", keys(stream, list(pairs), "s"))
        connection.register("master", keys(master, list(pairs.values()), "r"))
        found = connection.sql(_JOINS[how].format(condition=condition)).to_arrow_table()
    return tuple(found[name].cast(pa.int64()).combine_chunks() for name in ("s", "r"))


def bag(table: pa.Table) -> Counter[tuple[str, ...]]:
    """The rows with how often each occurs, values by what they look like: NaN is NaN, and -0.0 is not 0.0."""
    columns = [[repr(value) for value in column.to_pylist()] for column in table.columns]
    if not columns:
        return Counter({(): len(table)})
    return Counter(zip(*columns, strict=True))


def assert_same_bag(actual: pa.Table, expected: pa.Table) -> None:
    """Both tables have the same columns and the same rows, in any order; says which rows are too many or too few."""
    assert types(actual) == types(expected), f"columns are {types(actual)}, expected {types(expected)}"
    have, want = bag(actual), bag(expected)
    if have == want:
        return
    lines = [f"{len(actual)} rows, expected {len(expected)}; columns {', '.join(expected.schema.names)}"]
    for title, difference in (("missing", want - have), ("not expected", have - want)):
        lines.append(f"{title}: {difference.total()} rows, {len(difference)} different")
        lines += [f"  {times} x {', '.join(row)}" for row, times in sorted(difference.items())[:5]]
    raise AssertionError("\n".join(lines))


def types(table: pa.Table) -> list[tuple[str, str]]:
    return [(field.name, str(field.type)) for field in table.schema]
