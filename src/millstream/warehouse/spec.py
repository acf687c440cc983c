"""What a target table is: its columns, how batches go into it, and how it may change."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import pyarrow as pa

from ..errors import (
    ColumnClash,
    InputError,
    MillstreamError,
    NameRefused,
    TableMismatch,
    UnknownColumn,
    UnsupportedType,
)
from ..staging.columns import parse_type, stored_type, type_text
from .aggregates import Aggregate

Mode = Literal["append", "upsert", "aggregate"]

CAPTURED, SEQUENCE, SOURCE = "_captured", "_sequence", "_source"
OPERATION, DELETED = "_op", "_deleted"
SYSTEM = (SOURCE, SEQUENCE, CAPTURED)
CONTROL = (OPERATION, DELETED)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}", re.ASCII)
_TAKEN = ("_", "pg_", "duckdb_", "sqlite_", "millstream")


def check_name(name: object, what: str) -> str:
    """A table or column name that every backend takes: a letter or underscore, then letters, digits, underscores."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise NameRefused(
            f"{_shown(name)} cannot be the name of a {what}: use a letter, then letters, digits and underscores, "
            "63 at most"
        )
    return name


def check_table_name(name: object) -> str:
    """The name of a target table; those that databases and Millstream keep for themselves are refused."""
    checked = check_name(name, "table")
    if checked.lower().startswith(_TAKEN):
        raise NameRefused(f"table names that begin with {checked.split('_')[0] or '_'!r} are taken: rename {checked!r}")
    return checked


def check_label(label: object, what: str) -> str:
    """The name of a flow or the id of a part."""
    if not isinstance(label, str) or not _LABEL.fullmatch(label):
        raise NameRefused(
            f"{_shown(label)} cannot be the name of a {what}: use letters, digits and _, after the first also .:-, "
            "128 at most"
        )
    return label


def check_batch(batch: object) -> int:
    """The number of a batch: 0 or more, within 63 bits."""
    if isinstance(batch, bool) or not isinstance(batch, int) or not 0 <= batch < 1 << 63:
        raise InputError(f"a batch is a number from 0 on, not {_shown(batch)}")
    return batch


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True)
class TableSpec:
    """A target table, as a flow wants it.

    name: letters, digits and underscores.
    schema: the columns that rows arrive with; types are brought to those that a stream has (uint8 becomes int16,
        timestamps are in microseconds). `_source`, `_sequence` and `_captured` say where a row comes from; they are
        used (order within a batch, freshness) and stored only if `keep_system`.
    mode: "append" adds the rows; "upsert" replaces the rows with the same `key`, where of several rows of a batch the
        one with the highest `_sequence` wins (without that column, the last one), and a row whose `_deleted` is true
        or whose `_op` is "delete" or "D" removes the key; "aggregate" merges the rows into a view grouped by `key`.
    key: the columns that identify a row (upsert) or a group (aggregate); a NULL in them is a value like any other.
    aggregates: for mode "aggregate", {column of the view: "sum(column)", "count(*)", "count(column)", "min(column)",
        "max(column)" or "avg(column)"}.
    """

    name: str
    schema: pa.Schema
    mode: Mode = "append"
    key: Sequence[str] = ()
    aggregates: Mapping[str, str] = field(default_factory=dict)
    keep_system: bool = False

    def __post_init__(self) -> None:
        check_table_name(self.name)
        if self.mode not in get_args(Mode):
            raise InputError(f"mode must be one of {', '.join(get_args(Mode))}, not {self.mode!r}")
        object.__setattr__(self, "key", (self.key,) if isinstance(self.key, str) else tuple(self.key))
        object.__setattr__(self, "aggregates", dict(self.aggregates))
        _check_columns(self.name, self.schema)
        object.__setattr__(self, "schema", pa.schema([stored_field(entry, self.name) for entry in self.schema]))
        _check_system(self)
        if (self.mode == "append") != (not self.key) and not (self.mode == "aggregate" and not self.key):
            raise InputError(
                f"table {self.name!r}: mode {self.mode} " + ("takes no key" if self.key else "needs key=[...]")
            )
        if (self.mode == "aggregate") != bool(self.aggregates):
            raise InputError(f"table {self.name!r}: mode 'aggregate' and aggregates={{...}} go together")
        for name in self.key:
            if name not in self.schema.names:
                raise UnknownColumn(f"key column {name!r} of table {self.name!r} is not among {self.schema.names}")
            if pa.types.is_nested(self.schema.field(name).type):
                raise UnsupportedType(f"key column {name!r} of table {self.name!r} is nested")
        if len(set(self.key)) != len(self.key):
            raise InputError(f"key of table {self.name!r} names a column twice: {list(self.key)}")
        _check_columns(self.name, self.stored)

    def __hash__(self) -> int:
        return hash((self.name, str(self.schema), self.mode, self.key, tuple(self.aggregates.items())))

    @cached_property
    def columns(self) -> tuple[Aggregate, ...]:
        """The aggregates, parsed and typed; empty in other modes."""
        return tuple(Aggregate.parse(name, text, self.schema) for name, text in self.aggregates.items())

    @cached_property
    def stored(self) -> pa.Schema:
        """The columns of the table in the database."""
        if self.mode == "aggregate":
            fields = [self.schema.field(name) for name in self.key]
            shown = [pa.field(column.name, column.type) for column in self.columns]
            return pa.schema([*fields, *shown, *(state for column in self.columns for state in column.states)])
        control = CONTROL if self.mode == "upsert" else ()
        left_out = {*control, *(() if self.keep_system else SYSTEM)}
        return pa.schema([entry for entry in self.schema if entry.name not in left_out])

    def widened(self, other: TableSpec) -> TableSpec:
        """This spec with the columns that `other` has besides; `TableMismatch` if they cannot be one table."""
        differences = self._differences(other)
        if differences:
            raise TableMismatch(
                f"table {self.name!r} is another one than the flow wants: {'; '.join(differences)}",
                differences=differences,
            )
        new = [entry for entry in other.schema if entry.name not in self.schema.names]
        return replace(self, schema=pa.schema([*self.schema, *new])) if new else self

    def _differences(self, other: TableSpec) -> list[str]:
        found = [
            f"{what}: the table has {_text(mine)}, the flow wants {_text(theirs)}"
            for what, mine, theirs in (
                ("mode", self.mode, other.mode),
                ("key", self.key, other.key),
                ("aggregates", self.aggregates, other.aggregates),
                ("keep_system", self.keep_system, other.keep_system),
            )
            if mine != theirs
        ]
        mine = {entry.name.lower(): entry for entry in self.schema}
        for entry in other.schema:
            known = mine.get(entry.name.lower())
            if known is not None and (known.name, type_text(known.type)) != (
                entry.name,
                type_text(entry.type),
            ):
                mine_text, text = type_text(known.type), type_text(entry.type)
                found.append(f"column {entry.name}: the table has {known.name} {mine_text}, the flow sends {text}")
        return found

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON: for the wire and for the registry of tables."""
        return {
            "name": self.name,
            "columns": [[entry.name, type_text(entry.type)] for entry in self.schema],
            "mode": self.mode,
            "key": list(self.key),
            "aggregates": dict(self.aggregates),
            "keep_system": self.keep_system,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TableSpec:
        """The spec that `to_json` gave; `InputError` for anything else."""
        try:
            columns = [(str(name), parse_type(text)) for name, text in value["columns"]]
            return cls(
                value["name"],
                pa.schema(columns),
                mode=value.get("mode", "append"),
                key=list(value.get("key", ())),
                aggregates=dict(value.get("aggregates", {})),
                keep_system=value.get("keep_system", False) is True,
            )
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            if isinstance(problem, MillstreamError):
                raise
            raise InputError(f"this is not the description of a table: {problem!r}") from problem


def _text(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _check_columns(table: str, schema: pa.Schema) -> None:
    if not schema.names:
        raise InputError(f"table {table!r} needs a column")
    seen: set[str] = set()
    for entry in schema:
        check_name(entry.name, "column")
        if entry.name.lower() in seen:
            raise ColumnClash(f"table {table!r} has two columns {entry.name!r} (upper and lower case are the same)")
        seen.add(entry.name.lower())


def stored_field(entry: pa.Field, table: str) -> pa.Field:
    """The column with the type that it is stored as; `UnsupportedType` names the column."""
    try:
        return pa.field(entry.name, stored_type(entry.type))
    except UnsupportedType as problem:
        raise UnsupportedType(
            f"column {entry.name[:63]!r} of table {table!r} has type {entry.type}, which no table takes; cast it first"
        ) from problem


def _check_system(spec: TableSpec) -> None:
    wanted: list[tuple[str, Any, str]] = [
        (CAPTURED, pa.types.is_timestamp, "a timestamp"),
        (SEQUENCE, pa.types.is_int64, "int64"),
        (SOURCE, lambda type_: pa.types.is_string(type_) or pa.types.is_large_string(type_), "a string"),
    ]
    if spec.mode != "append":
        text = wanted[2][1]
        wanted += [(DELETED, pa.types.is_boolean, "boolean"), (OPERATION, text, "a string")]
    for name, fits, meant in wanted:
        if name in spec.schema.names and not fits(spec.schema.field(name).type):
            raise UnsupportedType(
                f"column {name!r} of table {spec.name!r} is {spec.schema.field(name).type} and must be {meant}"
            )
    if spec.mode == "aggregate" and (there := [name for name in CONTROL if name in spec.schema.names]):
        raise InputError(f"table {spec.name!r}: an aggregate cannot take deletes back; drop column {there[0]!r}")
