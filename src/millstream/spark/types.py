"""Columns of Spark as columns of Arrow and back."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from ..errors import UnsupportedType

ZONE = "UTC"


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of a DataFrame; timestamps with a zone are in UTC, whatever the session's zone is."""
    fields = []
    for entry in schema.fields:
        if _holds(entry.dataType, YearMonthIntervalType):
            raise UnsupportedType(
                f"column {entry.name!r} has type {entry.dataType.simpleString()}, which Spark cannot hand to Python; "
                "cast it to a number of months or to a string first"
            )
        try:
            fields.append(to_arrow_schema(StructType([entry]), timezone=ZONE).field(0))
        except PySparkException as error:
            raise UnsupportedType(
                f"column {entry.name!r} has type {entry.dataType.simpleString()}, which cannot be passed to Python; "
                "cast or drop it first"
            ) from error
    return pa.schema(fields)


def spark_fields(schema: pa.Schema) -> list[StructField]:
    """Arrow columns as columns of a DataFrame, all nullable."""
    return [StructField(entry.name, entry.dataType, True, entry.metadata) for entry in from_arrow_schema(schema).fields]


def check_collation(schema: StructType, names: Iterable[str]) -> None:
    """Refuse key columns whose text is not compared byte by byte."""
    for name in names:
        type_ = schema[name].dataType
        if isinstance(type_, StringType) and not type_.isUTF8BinaryCollation():
            raise UnsupportedType(
                f"key column {name!r} is {type_.simpleString()}; keys are compared byte by byte, so give "
                f"collate({name}, 'UTF8_BINARY'), or lower({name}) on both sides, as key"
            )


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the types of `schema`, column by column; copies nothing where only a time zone differs."""
    columns = [
        column if column.type == entry.type else column.cast(entry.type)
        for column, entry in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def column(name: str) -> Column:
    """A column by its exact name, dots and backticks included."""
    return F.col("`" + name.replace("`", "``") + "`")


def plain_names(df: DataFrame) -> list[str]:
    """Stand-ins for a DataFrame's column names, because mapInArrow cannot find columns that have dots in theirs."""
    return [f"c{number}" for number in range(len(df.columns))]


def _holds(type_: DataType, kind: type[DataType]) -> bool:
    if isinstance(type_, kind):
        return True
    if isinstance(type_, ArrayType):
        return _holds(type_.elementType, kind)
    if isinstance(type_, MapType):
        return _holds(type_.keyType, kind) or _holds(type_.valueType, kind)
    return isinstance(type_, StructType) and any(_holds(entry.dataType, kind) for entry in type_.fields)
