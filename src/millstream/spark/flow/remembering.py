"""Activities that remember keys: tasks ask the driver, which keeps the memory and makes it durable before it answers.

```
 task: keys of a batch --> known here? --no--> driver: Numbers, Claims, Contents (log + fsync) --> answers
                              |
                              yes: surrogate keys never change, so a worker keeps those it has seen
```
One process decides for all tasks, so equal keys get equal answers wherever they come up, and a batch or a task that is
repeated gets the answers of the first time.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, ByteType, DataType, LongType, StructField, StructType

from ...errors import MillstreamError
from ...flow.memory import Claims, Contents, Numbers
from ...flow.nodes import Deduplicate, SurrogateKey
from ...kernels.key_table import KeyTable
from ..types import column, plain_names
from ..workers import settle
from .context import Address, Context
from .state import AT, alive, key_hash, live_columns, reject

M = TypeVar("M", Numbers, Claims, Contents)

HIGH, LOW, OWNER = "__high", "__low", "__owner"
_CACHED = 2_000_000  # keys that a worker keeps for an activity, some 100 MB at most
_SALTS = (11, 7919)


# -- on the driver -----------------------------------------------------------------------------------------------------


class MemoryServer(flight.FlightServerBase):
    """Answers the tasks of one flow from the memories in a directory."""

    def __init__(self, folder: Path, *, host: str) -> None:
        super().__init__(f"grpc://{host}:0")
        self.folder = folder
        self.address = Address(f"grpc://{host}:{self.port}", secrets.token_hex(16))
        self._memories: dict[str, Numbers | Claims | Contents] = {}
        self._opening = threading.Lock()

    def numbers(self, name: str) -> Numbers:
        return self._memory(f"{name}.numbers", Numbers)

    def claims(self, name: str, horizon: int) -> Claims:
        return self._memory(f"{name}.claims", lambda path: Claims(path, horizon=horizon))

    def contents(self, name: str) -> Contents:
        return self._memory(f"{name}.contents", Contents)

    def _memory(self, name: str, make: Callable[[Path], M]) -> M:
        with self._opening:  # a log has one writer
            if name not in self._memories:
                self._memories[name] = make(self.folder / name)
            return self._memories[name]  # type: ignore[return-value]

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        asked = json.loads(action.type)
        if not secrets.compare_digest(asked.pop("token", ""), self.address.token):
            raise flight.FlightUnauthenticatedError("this memory belongs to another run")
        columns = [one.to_numpy() for one in _unpack(action.body.to_pybytes()).columns]
        match asked["kind"]:
            case "numbers":
                answer = self.numbers(asked["name"]).assign(*columns)
            case "claims":
                answer = self.claims(asked["name"], asked["horizon"]).claim(*columns).astype(np.int64)
            case _:
                high, low, first, last = columns
                contents = self.contents(asked["name"])
                answer = contents.compare(asked["batch"], high, low, first=first, last=last)
        return [flight.Result(_pack([answer.astype(np.int64)]))]

    def close(self) -> None:
        """Stop answering; everything is on disk already."""
        self.shutdown()
        for memory in self._memories.values():
            memory.close()


# -- in tasks ----------------------------------------------------------------------------------------------------------

_clients: dict[str, flight.FlightClient] = {}
_known: dict[tuple[str, str], tuple[KeyTable, np.ndarray]] = {}


def ask(address: Address, columns: list[np.ndarray], **what: object) -> np.ndarray:
    """One answer for each key, from the memory on the driver."""
    client = _clients.get(address.url)
    if client is None:
        _clients.clear()  # of runs that are over
        client = _clients[address.url] = flight.connect(address.url)
    kind = json.dumps({"token": address.token, **what})
    try:
        (result,) = client.do_action(flight.Action(kind, _pack(columns)), flight.FlightCallOptions(timeout=60))
    except (pa.ArrowException, OSError) as problem:
        _clients.pop(address.url, None)
        raise MillstreamError(f"the memory of the flow does not answer: {problem}") from None
    return _unpack(result.body.to_pybytes()).column(0).to_numpy()


@dataclass(frozen=True)
class NumberTask:
    """Adds the surrogate key of each row that is alive."""

    address: Address
    name: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            rows, high, low = _asking(batch)
            numbers = np.zeros(batch.num_rows, dtype=np.int64)
            numbers[rows] = self._numbers(high, low)
            there = np.zeros(batch.num_rows, dtype=np.bool_)
            there[rows] = True
            yield _with(batch, pa.array(numbers, mask=~there))

    def _numbers(self, high: np.ndarray, low: np.ndarray) -> np.ndarray:
        where = (self.address.token, self.name)
        table, known = _known.get(where) or (KeyTable(), np.empty(0, dtype=np.int64))
        entries = table.find(high, low)
        missing = entries < 0
        if missing.any():
            if len(table) + int(missing.sum()) > _CACHED:
                table, known, missing = KeyTable(), np.empty(0, dtype=np.int64), np.ones(len(high), dtype=np.bool_)
            before = len(table)
            entries[missing] = table.add(high[missing], low[missing])
            new = slice(before, len(table))
            answers = ask(self.address, [table.high[new], table.low[new]], kind="numbers", name=self.name)
            known = np.concatenate([known, answers])
            _known[where] = table, known
        return known[entries]


@dataclass(frozen=True)
class ClaimTask:
    """Says of each row that is alive whether it has its key to itself.

    Among the rows of one task a key is claimed once, also where rows have no identity of their own.
    """

    address: Address
    name: str
    horizon: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        claimed = KeyTable()
        for batch in batches:
            rows, high, low = _asking(batch)
            owner = batch.column(batch.num_columns - 1).to_numpy()[rows]  # identities stand last
            before = len(claimed)
            entries = claimed.add(high, low)
            first = np.full(len(claimed) - before, -1, dtype=np.int64)
            fresh = np.flatnonzero(entries >= before)[::-1]
            first[entries[fresh] - before] = fresh  # the first row of each new key is noted last
            granted = np.zeros(len(rows), dtype=np.bool_)
            if len(first):
                answer = ask(
                    self.address,
                    [high[first], low[first], owner[first]],
                    kind="claims",
                    name=self.name,
                    horizon=self.horizon,
                )
                granted[first] = answer.astype(np.bool_)
            unique = np.zeros(batch.num_rows, dtype=np.bool_)
            unique[rows] = granted
            yield _with(batch, pa.array(unique))


@dataclass(frozen=True)
class CompareTask:
    """Says of the first row of each key in a batch whether it is new, changed or the same."""

    address: Address
    name: str
    batch: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            place, *columns = [one.to_numpy() for one in batch.columns[-5:]]
            first = place == 1
            state = np.zeros(batch.num_rows, dtype=np.int8)
            if first.any():
                asked = [one[first] for one in columns]
                state[first] = ask(self.address, asked, kind="contents", name=self.name, batch=self.batch)
            yield _with(batch, pa.array(state))


def _asking(batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows that are alive (the first column says so), with their keys (the next two)."""
    rows = np.flatnonzero(pc.is_null(batch.column(0)).to_numpy(zero_copy_only=False))
    return rows, batch.column(1).to_numpy()[rows], batch.column(2).to_numpy()[rows]


def _with(batch: pa.RecordBatch, new: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, new], names=[*batch.schema.names, "__answer"])


def _pack(columns: list[np.ndarray]) -> bytes:
    batch = pa.RecordBatch.from_arrays([pa.array(np.ascontiguousarray(c)) for c in columns], names=_names(len(columns)))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _unpack(body: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(body) as reader:
        return reader.read_next_batch()


def _names(count: int) -> list[str]:
    return [f"c{at}" for at in range(count)]


# -- on DataFrames -----------------------------------------------------------------------------------------------------


def with_answer(df: DataFrame, task: Callable[..., Iterator[pa.RecordBatch]], name: str, kind: DataType) -> DataFrame:
    """The DataFrame with one more column, which a task computes for each row."""
    schema = StructType([*df.schema.fields, StructField(name, kind, True)])
    return df.toDF(*plain_names(df)).mapInArrow(task, schema)


def numbered(df: DataFrame, node: SurrogateKey, context: Context) -> DataFrame:
    """The rows with their surrogate keys."""
    asked = _asked_first(df, node.key)
    if context.memory is None:
        return df.withColumn(node.column, F.lit(None).cast("bigint"))
    task = NumberTask(context.memory, node.keys or node.name)
    named = with_answer(asked, task, "__number", LongType()).drop(HIGH, LOW)
    return named.withColumn(node.column, F.col("__number")).drop("__number")


def claimed(df: DataFrame, node: Deduplicate, context: Context) -> DataFrame:
    """The rows, those whose key another row has claimed marked as rejects."""
    if context.memory is None:
        return df
    names = live_columns(df)
    if context.identified:
        owner = F.xxhash64("_source", "_sequence")
    else:
        # rows that cannot be told apart meet in one task, which lets one of each key pass
        df = df.repartition(context.slots, *[column(name) for name in node.key])
        owner = key_hash(df, [name for name in names if name not in ("_captured",)], salt=5)
    asked = _asked_first(df, node.key).withColumn(OWNER, owner)
    task = ClaimTask(context.memory, node.name, node.horizon)
    answered = with_answer(asked, task, "__unique", BooleanType()).drop(HIGH, LOW, OWNER)
    key = ", ".join(node.key)
    cases = [(alive() & ~F.col("__unique"), F.lit(f"another row with this {key} came first"))]
    return reject(answered, context.number(node), cases, keep=node.rejects == "keep").drop("__unique")


def _asked_first(df: DataFrame, key: Sequence[str]) -> DataFrame:
    """The DataFrame with the mark and the key's hash as its first three columns."""
    rest = [column(name) for name in df.columns if name != AT]
    high, low = (key_hash(df, key, salt=salt).alias(name) for salt, name in zip(_SALTS, (HIGH, LOW), strict=True))
    return df.select(AT, high, low, *rest)


def compared(df: DataFrame, address: Address, name: str, batch: int) -> DataFrame:
    """Rows that end with (place, high, low, first, last): NEW, CHANGED or SAME in `__state` where the place is 1."""
    return with_answer(df, CompareTask(address, name, batch), "__state", ByteType())
