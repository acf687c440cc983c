"""Join conditions beyond equality of keys, for the joins that scan R (Polyzotis et al., section 3.4).

    between("ts", lo="valid_from", hi="valid_to")        valid_from <= ts < valid_to
    compare("amount", ">=", "least_amount")              stream column, operator, master column
    predicate(lambda s, r: pc.starts_with(...))          any vectorised function over two batches of equal length
    between(...) & compare(...)                          all of them

NULL on either side never matches. Numbers compare as Spark compares them: NaN equals NaN and is above all others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from ..errors import InputError, KeyTypeMismatch, PredicateError, UnknownColumn
from ..kernels.layout import plain

Operator = Literal["<", "<=", ">", ">=", "==", "!="]
Inclusive = Literal["left", "right", "both", "neither"]
_ARROW = {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal", "==": "equal", "!=": "not_equal"}

# a range of positions among sorted stream values for each master row
Ranges = list[tuple[np.ndarray, np.ndarray]]


class Condition(ABC):
    """What a pair of a stream row and a master row must fulfil. Frozen, and travels pickled."""

    @abstractmethod
    def columns(self, stream: pa.Schema, master: pa.Schema) -> tuple[list[str], list[str]]:
        """The columns that it needs of each side; refuses those that are not there or cannot be compared."""

    @abstractmethod
    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> np.ndarray:
        """Which pairs of rows, one of each batch, fulfil it."""

    def __and__(self, other: Condition | Callable[..., Any]) -> Condition:
        return AllOf((*_parts(self), *_parts(as_condition(other))))


class Sortable(Condition):
    """A condition by which each master row matches a range of the stream rows, when these are sorted by `column`."""

    column: str

    @abstractmethod
    def number_type(self, stream: pa.Schema, master: pa.Schema) -> np.dtype | None:
        """The type of number that all its columns can be compared as, None if they are no numbers."""

    @abstractmethod
    def ranges(self, ordered: np.ndarray, master: pa.RecordBatch) -> Ranges:
        """Where the matches of each master row begin and end among sorted values."""


@dataclass(frozen=True)
class Compare(Sortable):
    """`stream.column operator master.other`."""

    column: str
    operator: Operator
    other: str

    def __post_init__(self) -> None:
        if self.operator not in get_args(Operator):
            raise InputError(f"unknown operator {self.operator!r}; choose one of {', '.join(get_args(Operator))}")

    def columns(self, stream: pa.Schema, master: pa.Schema) -> tuple[list[str], list[str]]:
        _check(self.column, stream, "stream")
        _check(self.other, master, "master")
        _check_types(stream.field(self.column), master.field(self.other))
        return [self.column], [self.other]

    def number_type(self, stream: pa.Schema, master: pa.Schema) -> np.dtype | None:
        return _number_type(stream.field(self.column).type, master.field(self.other).type)

    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> np.ndarray:
        return _compare(stream.column(self.column), self.operator, master.column(self.other))

    def ranges(self, ordered: np.ndarray, master: pa.RecordBatch) -> Ranges:
        values, there = numbers(master.column(self.other), ordered.dtype)
        size = len(ordered)
        left = np.where(there, np.searchsorted(ordered, values, side="left"), 0)
        right = np.where(there, np.searchsorted(ordered, values, side="right"), 0)
        zero, end = np.zeros_like(left), np.where(there, size, 0)
        return {
            "<": [(zero, left)],
            "<=": [(zero, right)],
            ">": [(right, end)],
            ">=": [(left, end)],
            "==": [(left, right)],
            "!=": [(zero, left), (right, end)],
        }[self.operator]


@dataclass(frozen=True)
class Between(Sortable):
    """`master.lo <= stream.column < master.hi`, with the bounds included that `inclusive` says."""

    column: str
    lo: str
    hi: str
    inclusive: Inclusive = "left"

    def __post_init__(self) -> None:
        if self.inclusive not in get_args(Inclusive):
            raise InputError(f"unknown inclusive {self.inclusive!r}; choose one of {', '.join(get_args(Inclusive))}")

    @property
    def _bounds(self) -> tuple[Compare, Compare]:
        low: Operator = ">=" if self.inclusive in ("left", "both") else ">"
        high: Operator = "<=" if self.inclusive in ("right", "both") else "<"
        return Compare(self.column, low, self.lo), Compare(self.column, high, self.hi)

    def columns(self, stream: pa.Schema, master: pa.Schema) -> tuple[list[str], list[str]]:
        low, high = self._bounds
        return low.columns(stream, master)[0], [*low.columns(stream, master)[1], *high.columns(stream, master)[1]]

    def number_type(self, stream: pa.Schema, master: pa.Schema) -> np.dtype | None:
        low, high = (bound.number_type(stream, master) for bound in self._bounds)
        return low if low == high else None

    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> np.ndarray:
        low, high = self._bounds
        return low.holds(stream, master) & high.holds(stream, master)

    def ranges(self, ordered: np.ndarray, master: pa.RecordBatch) -> Ranges:
        low, high = self._bounds
        ((begin, top),) = low.ranges(ordered, master)
        ((_, end),) = high.ranges(ordered, master)
        end = np.minimum(end, top)  # no upper end where the lower bound is NULL
        return [(np.minimum(begin, end), end)]


@dataclass(frozen=True)
class Predicate(Condition):
    """`function(stream batch, master batch)` says for each pair of rows whether they belong together."""

    function: Callable[[pa.RecordBatch, pa.RecordBatch], Any]
    stream: tuple[str, ...] | None = None
    master: tuple[str, ...] | None = None

    def columns(self, stream: pa.Schema, master: pa.Schema) -> tuple[list[str], list[str]]:
        mine = list(stream.names if self.stream is None else self.stream)
        theirs = list(master.names if self.master is None else self.master)
        for name in mine:
            _check(name, stream, "stream")
        for name in theirs:
            _check(name, master, "master")
        return mine, theirs

    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> np.ndarray:
        if self.stream is not None:
            stream = stream.select(list(self.stream))
        if self.master is not None:
            master = master.select(list(self.master))
        return self._mask(self.function(stream, master), stream.num_rows)

    def _mask(self, answer: Any, rows: int) -> np.ndarray:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        if isinstance(answer, np.ndarray) and answer.dtype == np.bool_ and answer.ndim == 1:
            mask = answer
        elif isinstance(answer, pa.Array | pa.ChunkedArray) and pt.is_boolean(answer.type):
            mask = (
                pc.fill_null(answer, False).to_numpy(zero_copy_only=False)
                if isinstance(answer, pa.Array)
                else (pc.fill_null(answer, False).to_numpy())
            )
        else:
            kind = answer.type if isinstance(answer, pa.Array | pa.ChunkedArray) else type(answer).__name__
            raise PredicateError(
                f"the predicate {name} returned {kind}; it must return a boolean Arrow or numpy array with one value "
                "for each pair of rows"
            )
        if len(mask) != rows:
            raise PredicateError(
                f"the predicate {name} returned {len(mask)} values for {rows} pairs of rows; return one for each"
            )
        return mask


@dataclass(frozen=True)
class AllOf(Condition):
    """Conditions that must all hold."""

    parts: tuple[Condition, ...]

    def columns(self, stream: pa.Schema, master: pa.Schema) -> tuple[list[str], list[str]]:
        sides = [part.columns(stream, master) for part in self.parts]
        mine, theirs = ([name for side in sides for name in side[i]] for i in (0, 1))
        return list(dict.fromkeys(mine)), list(dict.fromkeys(theirs))

    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> np.ndarray:
        mask = np.ones(stream.num_rows, dtype=np.bool_)
        for part in self.parts:
            mask &= part.holds(stream, master)
        return mask


def between(column: str, *, lo: str, hi: str, inclusive: Inclusive = "left") -> Between:
    """`lo <= column < hi` with a column of the stream and two of the master; `inclusive` moves the bounds."""
    return Between(column, lo, hi, inclusive)


def compare(column: str, operator: Operator, other: str) -> Compare:
    """A column of the stream compared with one of the master: `<`, `<=`, `>`, `>=`, `==` or `!=`."""
    return Compare(column, operator, other)


def predicate(
    function: Callable[[pa.RecordBatch, pa.RecordBatch], Any],
    *,
    stream: Sequence[str] | None = None,
    master: Sequence[str] | None = None,
) -> Predicate:
    """A vectorised function over pairs of rows; naming the columns that it needs spares it the others."""
    return Predicate(function, None if stream is None else tuple(stream), None if master is None else tuple(master))


def as_condition(value: Condition | Callable[..., Any]) -> Condition:
    """What was given as condition=, a plain function included."""
    if isinstance(value, Condition):
        return value
    if callable(value):
        return Predicate(value)
    raise InputError(f"condition must be between(...), compare(...) or a function over two batches, not {value!r}")


def split(condition: Condition, stream: pa.Schema, master: pa.Schema) -> tuple[Sortable | None, Condition | None]:
    """A part by which stream rows can be sorted and searched, if there is one, and what remains to be checked."""
    parts = _parts(condition)
    for part in parts:
        if isinstance(part, Sortable) and part.number_type(stream, master) is not None:
            rest = tuple(other for other in parts if other is not part)
            return part, AllOf(rest) if rest else None
    return None, condition


def _parts(condition: Condition) -> tuple[Condition, ...]:
    return condition.parts if isinstance(condition, AllOf) else (condition,)


def _check(name: str, schema: pa.Schema, side: str) -> None:
    if name not in schema.names:
        raise UnknownColumn(
            f"{side} column {name!r} in condition= is not there; the {side} has {', '.join(schema.names)}"
        )


def _check_types(stream: pa.Field, master: pa.Field) -> None:
    left, right = plain(stream.type), plain(master.type)
    if _number_type(left, right) is not None:
        return
    try:
        pc.less(pa.nulls(0, left), pa.nulls(0, right))
    except (pa.ArrowException, NotImplementedError) as error:
        raise KeyTypeMismatch(
            f"stream column {stream.name!r} is {stream.type} and master column {master.name!r} is {master.type}: "
            f"they cannot be compared; cast the stream column to {master.type} first"
        ) from error


def _number_type(left: pa.DataType, right: pa.DataType) -> np.dtype | None:
    """The type of number that both can be compared as without change (or as Spark does: integers with floats)."""
    integers = [pt.is_integer(type_) and not pt.is_uint64(type_) for type_ in (left, right)]
    floats = [pt.is_floating(type_) and not pt.is_float16(type_) for type_ in (left, right)]
    if all(integers):
        return np.dtype(np.int64)
    if all(one or other for one, other in zip(integers, floats, strict=True)):
        return np.dtype(np.float64)
    same = left == right or (pt.is_timestamp(left) and pt.is_timestamp(right) and left.unit == right.unit)
    zones = not pt.is_timestamp(left) or not pt.is_timestamp(right) or bool(left.tz) == bool(right.tz)
    if same and zones and (pt.is_timestamp(left) or pt.is_date(left) or pt.is_time(left) or pt.is_duration(left)):
        return np.dtype(np.int64)
    return None


def numbers(array: pa.Array, kind: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Values as numbers, and which are not NULL."""
    there = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else np.ones(len(array), np.bool_)
    if pt.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    if array.null_count:
        array = array.fill_null(0)
    return array.to_numpy(zero_copy_only=False).astype(kind, copy=False), there


def _compare(left: pa.Array, operator: Operator, right: pa.Array) -> np.ndarray:
    kind = _number_type(left.type, right.type)
    if kind is None:
        answer = pc.call_function(_ARROW[operator], [left, right])
        return pc.fill_null(answer, False).to_numpy(zero_copy_only=False)
    (a, here), (b, there) = numbers(left, kind), numbers(right, kind)
    if kind.kind == "f":
        odd_a, odd_b = np.isnan(a), np.isnan(b)
        less, equal = (a < b) | (~odd_a & odd_b), (a == b) | (odd_a & odd_b)
    else:
        less, equal = a < b, a == b
    answer = {
        "<": less,
        "<=": less | equal,
        ">": ~(less | equal),
        ">=": ~less,
        "==": equal,
        "!=": ~equal,
    }[operator]
    return answer & here & there
