"""The rows of a flow's source as a streaming DataFrame."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from ...errors import FlowInvalid, InputError
from ...flow import Files, Graph, Problem, Staging
from ...flow.problems import invalid
from ..staging import register
from .complaints import said
from .rows import CORRUPT


def open_source(
    spark: SparkSession, graph: Graph, *, given: DataFrame | None = None, token: str | None = None, slots: int = 2
) -> DataFrame:
    """The streaming DataFrame that a flow begins with; `given` is the one for a source of kind `frame`."""
    source = graph.source
    if isinstance(source, Staging):
        return _staging(spark, graph, source, token, slots)
    if isinstance(source, Files):
        return _files(spark, graph, source)
    if given is None:
        raise InputError(f"the source of flow {graph.name!r} is a DataFrame: give it with source=...")
    if not given.isStreaming:
        raise InputError("source must be a streaming DataFrame, made with spark.readStream")
    return given


def is_identified(graph: Graph, df: DataFrame) -> bool:
    """Whether rows carry an identity that does not change when they are read again."""
    return not isinstance(graph.source, Files) and {"_source", "_sequence"} <= set(df.columns)


def _staging(spark: SparkSession, graph: Graph, source: Staging, token: str | None, slots: int) -> DataFrame:
    register(spark)
    reader = spark.readStream.format("millstream").option("url", source.url).option("stream", source.stream)
    reader = reader.option("flow", graph.name).option("partitions", slots)
    if token is not None:
        reader = reader.option("token", token)
    if source.max_rows is not None:
        reader = reader.option("maxRowsPerTrigger", source.max_rows)
    return reader.load()


def _files(spark: SparkSession, graph: Graph, source: Files) -> DataFrame:
    path = graph.path(source.path)
    schema = _schema(spark, graph, source, path)
    reader = spark.readStream.format(source.format).schema(schema)
    if source.max_files is not None:
        reader = reader.option("maxFilesPerTrigger", source.max_files)
    if CORRUPT in schema.names:
        reader = reader.option("columnNameOfCorruptRecord", CORRUPT)
    for name, value in (source.options or {}).items():
        reader = reader.option(name, value)
    try:
        rows = reader.load(path)
    except PySparkException as problem:
        raise _wrong(graph, problem) from None
    known = {"_source": F.col("_metadata.file_name"), "_captured": F.col("_metadata.file_modification_time")}
    return rows.withColumns({name: value for name, value in known.items() if name not in rows.columns})


def _schema(spark: SparkSession, graph: Graph, source: Files, path: str) -> StructType:
    try:
        if source.columns is None:
            return spark.read.parquet(path).schema
        schema = StructType.fromDDL(source.columns)
        assert isinstance(schema, StructType)
    except PySparkException as problem:
        raise _wrong(graph, problem) from None
    if source.format in ("csv", "json") and CORRUPT not in schema.names:
        schema = StructType([*schema.fields]).add(CORRUPT, StringType())
    return schema


def _wrong(graph: Graph, problem: PySparkException) -> FlowInvalid:
    line = graph.lines.of(graph.numbers[graph.source.name], "path")
    return invalid(graph.lines.file, [Problem(line, f"{graph.source.name!r}: {said(problem)}")])
