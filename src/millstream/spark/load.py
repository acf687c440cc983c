"""Loading a batch into the warehouse: tasks send parts, the driver commits those that Spark counted.

```
 task 1 --- part 3f... ---+                        a task that is tried again sends parts under new ids; only the ids
 task 2 --- part 9b... ---+--> warehouse           that came back with the job's result are committed, so what a failed
 task 2 (died) part 7c... +     (invisible)        or speculative attempt has sent never shows
        ids |
            v
 driver --- commit [3f, 9b] --> once for each (flow, batch, table)
```
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from ..errors import InputError, PartsMissing, UnknownColumn, UnknownTable
from ..warehouse import Client, Receipt, TableSpec, connect
from ..warehouse.spec import check_batch, check_label
from .task import QUERY_ID
from .types import column, conform
from .workers import settle

_PART_BYTES = 16 << 20
_SENT = "part string, rows long, origin string"
_clients: dict[tuple[str, str | None], Client] = {}
_created: set[tuple[str, TableSpec]] = set()


def load(
    df: DataFrame,
    url: str,
    spec: TableSpec,
    *,
    flow: str,
    batch: int,
    token: str | None = None,
    wait: bool = True,
    counts: Mapping[str, int] | None = None,
) -> Receipt:
    """Load a batch DataFrame, such as that of `foreachBatch`, into a table of the warehouse at `url`; the receipt.

    The table is made, or widened, the first time. Loading the same (flow, batch, table) again does nothing and gives
    the first receipt as `duplicate`; if another streaming query (another checkpoint) has loaded it, that is a
    `BatchConflict`. `wait=False` returns as soon as the batch is durable. `counts` goes into the ledger.

    df: has the columns of `spec.schema`, by name; further ones are left out.
    """
    if df.isStreaming:
        raise InputError("load takes the DataFrame of one batch; call it in foreachBatch of a streaming query")
    check_label(flow, "flow")
    check_batch(batch)
    missing = [name for name in spec.schema.names if name not in df.columns]
    if missing:
        raise UnknownColumn(f"table {spec.name!r} wants columns that the rows do not have: {', '.join(missing)}")
    client = client_of(url, token)
    if (url, spec) not in _created:
        client.create(spec)
        _created.add((url, spec))
    rows = df.select(*[column(name) for name in spec.schema.names])
    send = SendParts(url, token, spec, flow, batch)
    try:
        return _send_and_commit(rows, client, send, wait=wait, counts=counts)
    except (PartsMissing, UnknownTable, PySparkException) as problem:
        # the warehouse was replaced, or its parts were swept because the batch took very long: once more from the start
        if isinstance(problem, PySparkException) and UnknownTable.__name__ not in str(problem):
            raise
        client.create(spec)
        return _send_and_commit(rows, client, send, wait=wait, counts=counts)


def _send_and_commit(
    rows: DataFrame, client: Client, send: SendParts, *, wait: bool, counts: Mapping[str, int] | None
) -> Receipt:
    sent = rows.mapInArrow(send, _SENT).collect()
    origin = next((row.origin for row in sent if row.origin), None)
    return client.commit(
        send.spec.name,
        flow=send.flow,
        batch=send.batch,
        parts=[row.part for row in sent],
        wait=wait,
        counts=counts,
        origin=origin,
    )


def client_of(url: str, token: str | None) -> Client:
    """The client of this process for a warehouse; sockets stay open from batch to batch."""
    client = _clients.get((url, token))
    if client is None:
        client = _clients[url, token] = connect(url, token=token)
    return client


@dataclass(frozen=True)
class SendParts:
    """A task that sends its rows as parts and yields their ids; each attempt has ids of its own."""

    url: str
    token: str | None
    spec: TableSpec
    flow: str
    batch: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        attempt = uuid.uuid4().hex
        sent: list[str] = []
        rows: list[int] = []
        for part in self._gathered(batches):
            sent.append(f"{attempt}-{len(sent)}")
            rows.append(sum(batch.num_rows for batch in part))
            client = client_of(self.url, self.token)
            client.part(self.spec.name, flow=self.flow, batch=self.batch, part=sent[-1], data=part)
        if sent:
            context = TaskContext.get()
            origin = context.getLocalProperty(QUERY_ID) if context is not None else None
            yield pa.RecordBatch.from_pydict(
                {"part": sent, "rows": rows, "origin": [origin] * len(sent)}, schema=_REPORT
            )

    def _gathered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
        """The rows in lists of about the size of a part."""
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if batch.num_rows == 0:
                continue
            held.append(conform(batch, self.spec.schema))
            size += batch.nbytes
            if size >= _PART_BYTES:
                yield held
                held, size = [], 0
        if held:
            yield held


_REPORT = pa.schema([("part", pa.string()), ("rows", pa.int64()), ("origin", pa.string())])
