"""Rows on their way through a flow: the columns that travel with them, and how a row is marked as rejected.

A rejected row is not taken out, it is marked: `__at` is the number of the activity that rejected it (NULL for a row
that is alive, `GONE` for one that is none of this branch's), `__why` says the reason, and `__row` is the row as JSON as
it came to that activity. So everything that a micro-batch becomes leaves Spark in one pass, and is counted there.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, IntegralType

from ...flow.nodes import RESERVED, SYSTEM_COLUMNS
from ..types import column

AT, WHY, ROW = "__at", "__why", "__row"
MARKS = (AT, WHY, ROW)
GONE = -1
_NEW = "__new"
_SHOWN = 200  # characters of a value in a reason


def live_columns(df: DataFrame) -> list[str]:
    """The columns of the rows: the user's, and where they come from."""
    return [name for name in df.columns if not name.startswith(RESERVED)]


def user_columns(df: DataFrame) -> list[str]:
    """The columns that the user's expressions are about."""
    return [name for name in live_columns(df) if name not in SYSTEM_COLUMNS]


def alive() -> Column:
    """Whether a row was not rejected so far."""
    return F.col(AT).isNull()


def unmarked(df: DataFrame) -> DataFrame:
    """All rows alive."""
    none = {AT: F.lit(None).cast("int"), WHY: F.lit(None).cast("string"), ROW: F.lit(None).cast("string")}
    return df.withColumns(none)


def reject(
    df: DataFrame, number: int, cases: Sequence[tuple[Column, Column]], *, keep: bool, row: Column | None = None
) -> DataFrame:
    """Mark the rows that are in one of these cases, (condition, reason), as rejected by activity `number`."""
    why = F.when(F.lit(False), F.lit(""))
    for condition, reason in cases:
        why = why.when(alive() & F.coalesce(condition, F.lit(False)), reason)
    new = F.col(_NEW).isNotNull()
    kept = as_json(df) if row is None else row
    return (
        df.withColumn(_NEW, why)
        .withColumns(
            {
                AT: F.when(new, F.lit(number)).otherwise(F.col(AT)),
                WHY: F.coalesce(F.col(WHY), F.col(_NEW)),
                ROW: F.when(new, kept).otherwise(F.col(ROW)) if keep else F.col(ROW),
            }
        )
        .drop(_NEW)
    )


def as_json(df: DataFrame) -> Column:
    """The user's columns as a JSON object."""
    fields = [column(name).alias(name) for name in user_columns(df)]
    return F.to_json(F.struct(*fields), {"ignoreNullFields": "false"})


def missing(df: DataFrame, name: str) -> Column:
    """Whether a column has no value: NULL, or NaN."""
    if isinstance(type_of(df, name), FloatType | DoubleType):
        return column(name).isNull() | F.isnan(column(name))
    return column(name).isNull()


def no_key(df: DataFrame, names: Sequence[str]) -> list[tuple[Column, Column]]:
    """The cases in which a row has no key."""
    cases = []
    for name in names:
        cases.append((column(name).isNull(), F.lit(f"key column {name} is NULL")))
        if isinstance(type_of(df, name), FloatType | DoubleType):
            cases.append((F.isnan(column(name)), F.lit(f"key column {name} is NaN")))
    return cases


def shown(value: Column) -> Column:
    """A value for a reason: as text, not too long."""
    return F.coalesce(F.substring(value.cast("string"), 1, _SHOWN), F.lit("NULL"))


def type_of(df: DataFrame, name: str) -> DataType:
    """The type of a column, found the way Spark would."""
    fields = {field.name: field.dataType for field in df.schema.fields}
    if name in fields:
        return fields[name]
    return next(kind for known, kind in fields.items() if known.lower() == name.lower())


def key_hash(df: DataFrame, names: Sequence[str], *, salt: int) -> Column:
    """64 bits of a key that depend on its values, not on the width of their types; NULL is a value of its own."""
    parts: list[Column] = [F.lit(salt)]
    for name in names:
        kind, value = type_of(df, name), column(name)
        if isinstance(kind, IntegralType):
            value = value.cast("bigint")
        elif isinstance(kind, FloatType):
            value = value.cast("double")
        parts += [column(name).isNull(), value]
    return F.xxhash64(*parts)
