"""The activities of a flow: frozen, typed, checked when built, and with no execution in them.

After the taxonomy of ETL activities in Karakasidis, Vassiliadis, Pitoura (IQIS 2005), section 2.2: filters (rows that
fail go to the reject output), transformers (1:1 and N:1), binary operations (the second input is a master or what the
flow remembers of earlier rows), and routing. A class is one kind of activity; its fields are the options of that kind
in a flow file, and `main` names the one that stands behind the kind itself (`- select: quantity > 0`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar

from ..errors import InputError
from ..joins import ALGORITHMS
from . import shapes
from .shapes import PLAIN, Shape

Names = str | Sequence[str]

SYSTEM_COLUMNS = ("_source", "_sequence", "_captured")
RESERVED = "__"  # columns that begin so are the engine's own
ACCEPT, REJECTS = "", "rejects"


def option(shape: Shape, default: Any = MISSING) -> Any:
    """A field whose value has a shape; an option that is not given keeps its default."""
    if default is MISSING:
        return field(metadata={"shape": shape})
    return field(default=default, metadata={"shape": shape})


@dataclass(frozen=True, kw_only=True)
class Node:
    """An activity. `after` is the activity, or `activity.branch`, whose rows it gets: by default the one before it."""

    kind: ClassVar[str] = ""
    main: ClassVar[str] = ""
    family: ClassVar[str] = ""
    rejecting: ClassVar[bool] = False

    name: str = option(shapes.name, "")
    after: str = option(shapes.reference, "")

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.default is not MISSING and value == entry.default:
                continue
            try:
                object.__setattr__(self, entry.name, entry.metadata["shape"](value))
            except ValueError as problem:
                raise InputError(f"{self.kind}: {entry.name} {problem}", option=entry.name) from None
        self.check()

    def check(self) -> None:
        """Raise `InputError` if the options do not fit each other."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its outputs; the nameless one is what `after: <name>` means."""
        return (ACCEPT,)

    @property
    def summary(self) -> str:
        """What it does, in a few words, for a drawing."""
        value = getattr(self, self.main) if self.main else ""
        return brief(value)


@dataclass(frozen=True, kw_only=True)
class Source(Node):
    """Where rows come from. A text longer than `max_text` characters makes its row a reject."""

    kind: ClassVar[str] = "source"
    family: ClassVar[str] = "source"
    rejecting: ClassVar[bool] = True
    variant: ClassVar[str] = ""

    max_text: int = option(shapes.positive, 1_000_000)

    @property
    def summary(self) -> str:
        return self.variant


@dataclass(frozen=True, kw_only=True)
class Staging(Source):
    """A stream of the staging area."""

    variant: ClassVar[str] = "staging"

    stream: str = option(shapes.name)
    url: str = option(shapes.text, "grpc://127.0.0.1:7411")
    max_rows: int | None = option(shapes.positive, None)

    @property
    def summary(self) -> str:
        return f"stream {self.stream} of {self.url}"


@dataclass(frozen=True, kw_only=True)
class Files(Source):
    """Files of a directory, as they appear; `columns` is their schema as in CREATE TABLE."""

    variant: ClassVar[str] = "files"

    path: str = option(shapes.text)
    format: str = option(shapes.one_of("parquet", "csv", "json"), "parquet")
    columns: str | None = option(shapes.text, None)
    max_files: int | None = option(shapes.positive, None)
    options: Mapping[str, str] | None = option(shapes.settings, None)

    def check(self) -> None:
        if self.format != "parquet" and self.columns is None:
            raise InputError(f"source: {self.format} files need columns, such as 'id bigint, name string'")

    @property
    def summary(self) -> str:
        return f"{self.format} files in {self.path}"


@dataclass(frozen=True, kw_only=True)
class Frame(Source):
    """A streaming DataFrame that is given when the flow is run: `flow.run(spark, checkpoint, source=df)`."""

    variant: ClassVar[str] = "frame"

    @property
    def summary(self) -> str:
        return "a streaming DataFrame"


@dataclass(frozen=True, kw_only=True)
class Filter(Node):
    """Accepts or rejects each row; rejects are kept with row and reason, or only counted (`rejects: count`)."""

    family: ClassVar[str] = "filter"
    rejecting: ClassVar[bool] = True

    rejects: str = option(shapes.one_of("keep", "count"), "keep")


@dataclass(frozen=True, kw_only=True)
class Select(Filter):
    """Accepts rows for which a condition is true (not false, not NULL)."""

    kind: ClassVar[str] = "select"
    main: ClassVar[str] = "condition"

    condition: str = option(shapes.expression)


@dataclass(frozen=True, kw_only=True)
class NotNull(Filter):
    """Accepts rows that have a value in all these columns; NaN is none."""

    kind: ClassVar[str] = "not_null"
    main: ClassVar[str] = "columns"

    columns: Names = option(shapes.columns)


@dataclass(frozen=True, kw_only=True)
class Domain(Filter):
    """Accepts rows whose column has one of some values, lies in a range (ends included), or matches a pattern."""

    kind: ClassVar[str] = "domain"
    main: ClassVar[str] = "column"

    column: str = option(shapes.text)
    values: Sequence[PLAIN] | None = option(shapes.values, None)
    low: PLAIN | None = option(shapes.bound, None)
    high: PLAIN | None = option(shapes.bound, None)
    matches: str | None = option(shapes.pattern, None)

    def check(self) -> None:
        ways = [self.values is not None, self.low is not None or self.high is not None, self.matches is not None]
        if sum(ways) != 1:
            raise InputError("domain: give exactly one of values, low and/or high, or matches")

    @property
    def summary(self) -> str:
        if self.values is not None:
            return brief(f"{self.column} in {', '.join(map(str, self.values))}")
        if self.matches is not None:
            return brief(f"{self.column} matches {self.matches}")
        ends = ("" if self.low is None else f"{self.low} <= ", "" if self.high is None else f" <= {self.high}")
        return brief(f"{ends[0]}{self.column}{ends[1]}")


@dataclass(frozen=True, kw_only=True)
class Lookup(Node):
    """What activities that look rows up in a master have in common."""

    master: str = option(shapes.text)
    on: Names | Mapping[str, str] = option(shapes.pairing)
    memory: int | str = option(shapes.size, "64MB")
    algorithm: str = option(shapes.one_of(*ALGORITHMS), "auto")

    @property
    def summary(self) -> str:
        return brief(f"{', '.join(self.on)} in {self.master}")


@dataclass(frozen=True, kw_only=True)
class ForeignKey(Lookup, Filter):
    """Accepts rows whose key is in a master."""

    kind: ClassVar[str] = "foreign_key"
    main: ClassVar[str] = "master"


@dataclass(frozen=True, kw_only=True)
class Derive(Node):
    """New columns, or new values for old ones, computed from the columns that came in."""

    kind: ClassVar[str] = "derive"
    main: ClassVar[str] = "columns"
    family: ClassVar[str] = "transformer 1:1"

    columns: Mapping[str, str] = option(shapes.expressions)


@dataclass(frozen=True, kw_only=True)
class Rename(Node):
    """New names for columns."""

    kind: ClassVar[str] = "rename"
    main: ClassVar[str] = "columns"
    family: ClassVar[str] = "transformer 1:1"

    columns: Mapping[str, str] = option(shapes.renaming)


@dataclass(frozen=True, kw_only=True)
class Cast(Filter):
    """Columns with other types; a row with a value that its type cannot hold is a reject."""

    kind: ClassVar[str] = "cast"
    main: ClassVar[str] = "columns"
    family: ClassVar[str] = "transformer 1:1"

    columns: Mapping[str, str] = option(shapes.expressions)


@dataclass(frozen=True, kw_only=True)
class SurrogateKey(Filter):
    """A column with a whole number for each natural key, from 1, the same for ever; a NULL key is a reject.

    Activities of a flow that name the same `keys` share one numbering; without it each has its own.
    """

    kind: ClassVar[str] = "surrogate_key"
    main: ClassVar[str] = "column"
    family: ClassVar[str] = "transformer 1:1"

    column: str = option(shapes.text)
    key: Names = option(shapes.columns)
    keys: str | None = option(shapes.name, None)

    @property
    def summary(self) -> str:
        return brief(f"{self.column} for {', '.join(self.key)}")


@dataclass(frozen=True, kw_only=True)
class Deduplicate(Filter):
    """Accepts one row of each key among at least the last `horizon` different keys, across batches and restarts."""

    kind: ClassVar[str] = "deduplicate"
    main: ClassVar[str] = "key"
    family: ClassVar[str] = "transformer 1:1"

    key: Names = option(shapes.columns)
    horizon: int = option(shapes.positive, 1_000_000)

    @property
    def summary(self) -> str:
        return brief(f"by {', '.join(self.key)}, last {self.horizon:,} keys")


@dataclass(frozen=True, kw_only=True)
class Aggregate(Node):
    """One row for each group of a micro-batch; with a target in mode `aggregate` behind it the sums add up."""

    kind: ClassVar[str] = "aggregate"
    main: ClassVar[str] = "columns"
    family: ClassVar[str] = "transformer N:1"

    columns: Mapping[str, str] = option(shapes.expressions)
    by: Names = option(shapes.columns)

    @property
    def summary(self) -> str:
        return brief(f"{', '.join(self.columns.values())} by {', '.join(self.by)}")


@dataclass(frozen=True, kw_only=True)
class Enrich(Lookup, Filter):
    """Columns of a master by its key; `how: inner` rejects rows without a match, `left` keeps them with NULLs."""

    kind: ClassVar[str] = "enrich"
    main: ClassVar[str] = "master"
    family: ClassVar[str] = "binary"

    how: str = option(shapes.one_of("inner", "left"), "inner")
    columns: Names | None = option(shapes.columns, None)


@dataclass(frozen=True, kw_only=True)
class Difference(Node):
    """New, changed and deleted rows of a snapshot against the one before; each micro-batch is a whole snapshot.

    Adds the column `change`: insert, update or delete (a deleted row has its last values). Equal rows leave the flow.
    """

    kind: ClassVar[str] = "difference"
    main: ClassVar[str] = "key"
    family: ClassVar[str] = "binary"

    key: Names = option(shapes.columns)
    change: str = option(shapes.text, "change")


@dataclass(frozen=True, kw_only=True)
class DetectUpdates(Filter):
    """Accepts rows that are new or differ from the last one of their key; others are counted as rejects.

    Adds the column `change`: insert or update. `columns` are those compared, by default all but the key.
    """

    kind: ClassVar[str] = "detect_updates"
    main: ClassVar[str] = "key"
    family: ClassVar[str] = "binary"

    key: Names = option(shapes.columns)
    columns: Names | None = option(shapes.columns, None)
    change: str = option(shapes.text, "change")
    rejects: str = option(shapes.one_of("keep", "count"), "count")


@dataclass(frozen=True, kw_only=True)
class Replicate(Node):
    """All rows to each of several branches."""

    kind: ClassVar[str] = "replicate"
    main: ClassVar[str] = "branches"
    family: ClassVar[str] = "routing"

    branches: Sequence[str] = option(shapes.names)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.branches)


@dataclass(frozen=True, kw_only=True)
class Route(Filter):
    """Each row to the first branch whose condition is true, else to `otherwise`, or to the rejects without one."""

    kind: ClassVar[str] = "route"
    main: ClassVar[str] = "branches"
    family: ClassVar[str] = "routing"

    branches: Mapping[str, str] = option(shapes.conditions)
    otherwise: str | None = option(shapes.name, None)

    def check(self) -> None:
        if self.otherwise in self.branches:
            raise InputError(f"route: otherwise names the branch {self.otherwise!r}, which has a condition")

    @property
    def outputs(self) -> tuple[str, ...]:
        return (*self.branches, *([self.otherwise] if self.otherwise else []))


@dataclass(frozen=True, kw_only=True)
class Target(Node):
    """Where rows end."""

    family: ClassVar[str] = "target"

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class Table(Target):
    """A table of the warehouse: `append` rows, `upsert` them by key, or merge them into an `aggregate` view.

    Columns are those that arrive, or those named; `_source`, `_sequence` and `_captured` only with `keep_system`.
    `wait: false` goes on as soon as the warehouse has the batch safe, before it is loaded.
    """

    kind: ClassVar[str] = "target"
    main: ClassVar[str] = "table"

    table: str = option(shapes.table)
    mode: str = option(shapes.one_of("append", "upsert", "aggregate"), "append")
    key: Names | None = option(shapes.columns, None)
    aggregates: Mapping[str, str] | None = option(shapes.expressions, None)
    columns: Names | None = option(shapes.columns, None)
    keep_system: bool = option(shapes.flag, False)
    wait: bool = option(shapes.flag, True)

    def check(self) -> None:
        if self.mode != "append" and self.key is None:
            raise InputError(f"target: mode {self.mode} needs a key")
        if self.mode == "append" and self.key is not None:
            raise InputError("target: key is for the modes upsert and aggregate")
        if (self.mode == "aggregate") != (self.aggregates is not None):
            raise InputError(
                "target: mode aggregate needs aggregates like {revenue: sum(amount)}; other modes have none"
            )
        if self.mode == "aggregate" and self.columns is not None:
            raise InputError("target: columns of an aggregate are its key and its aggregates; leave columns out")

    @property
    def summary(self) -> str:
        return f"{self.mode} to {self.table}"


@dataclass(frozen=True, kw_only=True)
class ParquetFiles(Target):
    """A directory of Parquet files: one folder `batch=<number>` for each micro-batch, there whole or not at all."""

    kind: ClassVar[str] = "parquet"
    main: ClassVar[str] = "path"

    path: str = option(shapes.text)
    columns: Names | None = option(shapes.columns, None)

    @property
    def summary(self) -> str:
        return f"Parquet files in {self.path}"


@dataclass(frozen=True, kw_only=True)
class Unread(Node):
    """Stands for an activity that could not be read, so that the rest of its flow can be checked all the same."""

    kind: ClassVar[str] = "unread"


SOURCES: dict[str, type[Source]] = {node.variant: node for node in (Staging, Files, Frame)}
KINDS: dict[str, type[Node]] = {
    node.kind: node
    for node in (
        Source,
        Select,
        NotNull,
        Domain,
        ForeignKey,
        Derive,
        Rename,
        Cast,
        SurrogateKey,
        Deduplicate,
        Aggregate,
        Enrich,
        Difference,
        DetectUpdates,
        Replicate,
        Route,
        Table,
        ParquetFiles,
    )
}


def options_of(kind: type[Node]) -> dict[str, Shape]:
    """The options of a kind with the shape of each."""
    return {entry.name: entry.metadata["shape"] for entry in fields(kind)}


def required_of(kind: type[Node]) -> list[str]:
    """The options that a kind cannot do without."""
    return [entry.name for entry in fields(kind) if entry.default is MISSING and entry.default_factory is MISSING]


def brief(value: Any, *, width: int = 60) -> str:
    """A value in one line of at most `width` characters."""
    if isinstance(value, Mapping):
        value = ", ".join(f"{key} = {one}" for key, one in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        value = ", ".join(map(str, value))
    line = " ".join(str(value).split())
    return line if len(line) <= width else line[: width - 3] + "..."
