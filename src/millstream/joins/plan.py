"""What is to be joined: checked names and types of both sides, and the schema of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from ..errors import ColumnClash, InputError, UnknownColumn
from ..kernels.keys import KeyCodec, check_comparable, coerce, keep_equal
from ..kernels.layout import Layout, Node, plain
from ..kernels.pages import PageTable, aligned
from ..master import Master, ParquetScan

How = Literal["inner", "left", "left_semi", "left_anti"]
HOWS: tuple[str, ...] = get_args(How)
On = str | Sequence[str] | Mapping[str, str]
Relation = Master | ParquetScan


def check_how(how: str) -> None:
    if how not in HOWS:
        raise InputError(f"unknown how {how!r}; choose one of {', '.join(HOWS)}")


def stream_keys(on: On | None, master: Relation) -> list[str]:
    """The stream column for each key column of the master, in the master's order; none without `on`."""
    if on is None:
        return []
    if isinstance(on, str):
        pairs = {on: on}
    elif isinstance(on, Mapping):
        pairs = dict(on)
    else:
        pairs = {name: name for name in on}
        if len(pairs) != len(on):
            raise InputError(f"on names a column twice: {list(on)}")
    by_master = {right: left for left, right in pairs.items()}
    for right in by_master:
        if right not in master.schema.names:
            raise UnknownColumn(
                f"master column {right!r} in on= is not there; the master has {', '.join(master.schema.names)}"
            )
    if not master.key:
        raise InputError(f"{master.path} was scanned without a key; give one: Master.scan(..., key={list(by_master)})")
    if set(by_master) != set(master.key) or len(by_master) != len(pairs):
        raise InputError(
            f"on= must name the key of the master, which is {', '.join(master.key)}; "
            f"it names {', '.join(pairs.values()) or 'nothing'}"
        )
    return [by_master[name] for name in master.key]


def master_columns(master: Relation, columns: Sequence[str] | None, *, on: On | None = "") -> list[str]:
    """The master columns to bring: those named, by default all but the key (and the key too if it is not joined on)."""
    if columns is None:
        return [name for name in master.schema.names if on is None or name not in master.key]
    if isinstance(columns, str):
        raise InputError(f"columns must be a list of names, not the text {columns!r}")
    for name in columns:
        if name not in master.schema.names:
            raise UnknownColumn(
                f"column {name!r} in columns= is not in the master, which has {', '.join(master.schema.names)}"
            )
    if len(set(columns)) != len(columns):
        raise InputError(f"columns names a column twice: {list(columns)}")
    return list(columns)


@dataclass(frozen=True)
class JoinPlan:
    """A join of streams of one schema with a master, ready to run."""

    how: How
    stream: pa.Schema
    inner: pa.Schema  # the stream's columns in plain types, then key columns that had to be cast
    key_columns: tuple[int, ...]  # where the key is in `inner`
    codec: KeyCodec
    brought: tuple[int, ...]  # columns of the master's segments that go into the result
    output: pa.Schema

    @classmethod
    def of(
        cls, stream: pa.Schema, master: Relation, *, on: On | None, how: str, columns: Sequence[str] | None
    ) -> JoinPlan:
        check_how(how)
        twice = sorted({name for name in stream.names if stream.names.count(name) > 1})
        if twice:
            raise InputError(f"the stream has more than one column named {', '.join(twice)}; rename them first")
        keys = stream_keys(on, master)
        for name in keys:
            if name not in stream.names:
                raise UnknownColumn(
                    f"stream column {name!r} in on= is not there; the stream has {', '.join(stream.names)}"
                )
        for left, right in zip(keys, master.key if keys else [], strict=True):
            check_comparable(pa.field(left, plain(stream.field(left).type)), master.schema.field(right))
        names = master_columns(master, columns, on=on)
        fields = [pa.field(entry.name, plain(entry.type), entry.nullable) for entry in stream]
        brought: list[int] = []
        output = list(fields)
        if how in ("inner", "left"):
            clash = sorted(set(names) & set(stream.names))
            if clash:
                raise ColumnClash(
                    f"both stream and master have a column {', '.join(map(repr, clash))}; choose what to bring with "
                    f"columns=[...] or rename it in the stream"
                )
            for name in names:
                entry = master.schema.field(name)
                output.append(entry.with_nullable(True) if how == "left" else entry)
                brought.append(master.stored_schema.get_field_index(name))
        at = []
        for name, type_ in zip(keys, master.codec.types if keys else [], strict=True):
            position = stream.names.index(name)
            if fields[position].type != type_ and (master.codec.hashed or fields[position].type not in _INTEGER_TYPES):
                at.append(len(fields))
                fields.append(pa.field(f"__key_{len(at)}__", type_))
            else:
                at.append(position)
        return cls(how, stream, pa.schema(fields), tuple(at), master.codec, tuple(brought), pa.schema(output))  # type: ignore[arg-type]

    @property
    def hashed(self) -> bool:
        """Whether rows are found by a hash of their key, so that the key itself must be compared."""
        return bool(self.key_columns) and self.codec.hashed

    def codes(self, columns: list[pa.Array], rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Clustering key of each row, and which rows have no NULL in it; without a key all rows are alike."""
        if not self.key_columns:
            return np.zeros(rows, dtype=np.int64), np.ones(rows, dtype=np.bool_)
        return self.codec.codes(columns)

    def normalise(self, batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
        """A batch of the stream as a batch of `inner` whose arrays start at row 0."""
        columns = []
        for entry, column in zip(self.inner, batch.columns, strict=False):
            columns.append(column if column.type == entry.type else column.cast(entry.type))
        for position, name in zip(self.key_columns, keys, strict=True):
            if position >= len(batch.columns):
                columns.append(coerce(columns[batch.schema.names.index(name)], self.inner.field(position).type))
        return aligned(pa.RecordBatch.from_arrays(columns, schema=self.inner))


_INTEGER_TYPES = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


class KeyComparison:
    """Compares the real key columns of stream and master rows whose hashes agree."""

    def __init__(self, plan: JoinPlan, master: Relation) -> None:
        inner, stored = Layout.of(plan.inner), Layout.of(master.stored_schema)
        self.pairs: list[tuple[Node, Node]] = [
            (inner.columns[position], stored.column(name))
            for position, name in zip(plan.key_columns, master.key, strict=True)
        ]

    def equal(self, left: PageTable, right: PageTable, left_refs: np.ndarray, right_refs: np.ndarray) -> np.ndarray:
        """Which pairs of rows have the same key."""
        equal = np.ones(len(left_refs), dtype=np.bool_)
        for mine, theirs in self.pairs:
            equal &= keep_equal(left, mine, right, theirs, left_refs, right_refs)
        return equal
