"""`spark.readStream.format("millstream")`: the rows of a stream in staging, read over the network by position.

    register(spark)
    rows = (spark.readStream.format("millstream")
        .option("url", "grpc://127.0.0.1:7411").option("stream", "orders").option("flow", "sales")
        .load())

Options: `url`, `stream` and `flow` (which names the reader: staging keeps what it has not consumed) are needed. `token`
is by default that of MILLSTREAM_TOKEN where driver and workers run. `maxRowsPerTrigger` bounds a micro-batch,
`partitions` (default: the cores of the driver) how many tasks read it, `start` is `earliest` (default) or `latest` for
a new checkpoint, `patience` (seconds, default 60) how long staging may be away before the query fails, `tlsRoots` a
file of certificates to trust.

An offset is a position in the log of the stream, so a micro-batch that is replayed has the same rows. Spark's
checkpoint says what was read; staging hears of it afterwards, to let go of what is consumed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ..errors import InputError, MillstreamError, PositionGone
from ..staging import columns
from ..staging.client import Client, StreamInfo, connect
from .workers import settle

NAME = "millstream"
_LEAST_ROWS = 4096  # of a partition: a task costs more than reading so few
_KNOWN = ("url", "stream", "flow", "token", "maxrowspertrigger", "partitions", "start", "patience", "tlsroots", "path")
_SYSTEM = ("_source", "_sequence", "_captured")

T = TypeVar("T")


def register(spark: SparkSession) -> None:
    """Make the format known to a session."""
    spark.dataSource.register(StagingSource)


@dataclass(frozen=True)
class Options:
    """What a reader was told."""

    url: str
    stream: str
    flow: str
    token: str | None
    rows: int | None
    partitions: int
    start: str
    patience: float
    tls_roots: str | None

    @classmethod
    def parse(cls, given: Any) -> Options:
        options = {str(name).lower(): value for name, value in given.items()}
        unknown = sorted(set(options) - set(_KNOWN))
        if unknown:
            raise InputError(f"format {NAME} has no option {', '.join(unknown)}; known are {', '.join(_KNOWN[:-1])}")
        missing = [name for name in ("url", "stream", "flow") if not options.get(name)]
        if missing:
            raise InputError(f"format {NAME} needs the option {', '.join(missing)}")
        start = options.get("start", "earliest")
        if start not in ("earliest", "latest"):
            raise InputError(f"start is earliest or latest, not {start!r}")
        return cls(
            url=options["url"],
            stream=options["stream"],
            flow=options["flow"],
            token=options.get("token"),
            rows=_number(options, "maxrowspertrigger") if "maxrowspertrigger" in options else None,
            partitions=_number(options, "partitions") if "partitions" in options else os.cpu_count() or 1,
            start=start,
            patience=float(_number(options, "patience")) if "patience" in options else 60.0,
            tls_roots=options.get("tlsroots"),
        )

    def client(self) -> Client:
        """The connection of this process; workers that live on keep it for the next micro-batch."""
        return _connected(self.url, self.token, self.tls_roots)

    def ask(self, question: Callable[[Client], T]) -> T:
        """An answer from staging; waits while it is away, at most as long as the patience lasts."""
        trouble = _Trouble(self.patience)
        while True:
            try:
                return question(self.client())
            except MillstreamError as problem:
                trouble.wait(problem)


class _Trouble:
    """Waits after an error that may pass, a little longer each time; raises it when the patience is over."""

    def __init__(self, patience: float) -> None:
        self._until = time.monotonic() + patience
        self._pause = 0.05

    def wait(self, problem: MillstreamError) -> None:
        if not problem.retryable or time.monotonic() > self._until:
            raise problem
        time.sleep(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(2.0, self._pause * 2)


@lru_cache(maxsize=8)
def _connected(url: str, token: str | None, tls_roots: str | None) -> Client:
    return connect(url, token, tls_roots=Path(tls_roots).read_bytes() if tls_roots else None)


def _number(options: dict[str, str], name: str) -> int:
    try:
        value = int(options[name])
    except ValueError:
        value = 0
    if value <= 0:
        raise InputError(f"option {name} must be a whole number above zero, not {options[name]!r}")
    return value


@dataclass
class Range(InputPartition):
    """Positions of the log that one task reads."""

    start: int
    end: int


def ranges(start: int, end: int, *, most: int) -> list[Range]:
    """Positions from `start` up to `end` in at most so many ranges of about the same size."""
    count = max(1, min(most, (end - start) // _LEAST_ROWS))
    bounds = [start + (end - start) * number // count for number in range(count + 1)]
    return [Range(low, high) for low, high in pairwise(bounds) if low < high]


class StagingSource(DataSource):
    """The data source as Spark knows it."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = Options.parse(self.options)
        stream = options.ask(lambda client: client.stream(options.stream))
        return from_arrow_schema(columns.read_schema(stream.schema), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        return StagingReader(Options.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StagingStreamReader(Options.parse(self.options), schema)


def _read(options: Options, schema: StructType, part: Range) -> Iterator[pa.RecordBatch]:
    """The rows of some positions with the columns of a Spark schema; goes on where it was if staging was away."""
    settle()
    target = to_arrow_schema(schema, timezone="UTC")
    wanted = pa.schema([field for field in target if field.name not in _SYSTEM])
    position, trouble = part.start, _Trouble(options.patience)
    while position < part.end:
        try:
            for batch in options.client().read(options.stream, position, end=part.end, schema=wanted):
                position += batch.num_rows
                trouble = _Trouble(options.patience)
                batch = batch.select(target.names)
                yield batch if batch.schema.equals(target) else batch.cast(target)
        except MillstreamError as problem:
            trouble.wait(problem)


class StagingReader(DataSourceReader):
    """All that is in a stream now, as a batch; takes nothing from the flow of the same name."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> list[Range]:
        stream = self._options.ask(lambda client: client.stream(self._options.stream))
        return ranges(stream.start, stream.end, most=self._options.partitions) or [Range(stream.end, stream.end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return _read(self._options, self._schema, partition)


class StagingStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream, micro-batch by micro-batch."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._target: int | None = None  # where a query that reads what is available now ends

    def initialOffset(self) -> dict[str, Any]:
        stream = self._options.ask(lambda client: client.register(self._options.stream, self._options.flow))
        return _offset(stream, stream.start if self._options.start == "earliest" else stream.end)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._options.rows is None else ReadMaxRows(self._options.rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._stream().end

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        stream = self._stream()
        begin = _position(start, stream)
        end = stream.end if self._target is None else min(stream.end, self._target)
        if isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        return _offset(stream, max(begin, end))

    def reportLatestOffset(self) -> dict[str, Any]:
        stream = self._stream()
        return _offset(stream, stream.end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
        stream = self._stream()
        return ranges(_position(start, stream), _position(end, stream), most=self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return _read(self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        options = self._options
        options.ask(lambda client: client.consumed(options.stream, options.flow, position=int(end["position"])))

    def _stream(self) -> StreamInfo:
        return self._options.ask(lambda client: client.stream(self._options.stream))


def _offset(stream: StreamInfo, position: int) -> dict[str, Any]:
    return {"log": stream.log, "position": position}


def _position(offset: dict[str, Any], stream: StreamInfo) -> int:
    """The position of an offset, if it is one of this log and still there."""
    position = int(offset["position"])
    if offset["log"] != stream.log:
        raise PositionGone(
            f"the checkpoint is of another log of stream {stream.name}: the staging directory was replaced. Begin with "
            "a new checkpoint, or bring the old directory back"
        )
    if not stream.start <= position <= stream.end:
        raise PositionGone(
            f"position {position} of stream {stream.name} is gone: staging has {stream.start} to {stream.end}. Begin "
            "with a new checkpoint, and let staging keep more (see --limit)"
        )
    return position
