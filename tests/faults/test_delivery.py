"""Blocks that come twice, late or in another order, a reader whose network is cut, a loader in a bad mood: each record
once, in order, and no batch in part."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from millstream.errors import RecordGap
from millstream.spark import staging as adapter
from millstream.staging import Server, connect
from millstream.warehouse import Client
from millstream.warehouse import Server as Warehouse
from millstream.warehouse.retry import Backoff
from proxy import Proxy
from staging_area import SCHEMA, expected, records, stored
from warehousing import ORDERS, numbers, sales


def test_blocks_twice_late_and_in_any_order(tmp_path: Path) -> None:
    """A network that may do anything with blocks but change them: what is due is stored, a gap waits to be filled."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    bounds = sorted({0, 400, *(chance.randrange(400) for _ in range(40))})
    blocks = [(low, high - low) for low, high in pairwise(bounds)]
    refused = 0
    with Server(tmp_path, http_port=None) as server, connect(server.url, timeout=10) as client:
        due = {"till": 0, "web": 0}
        while min(due.values()) < 400:
            source = chance.choice(list(due))
            fitting = [block for block in blocks if block[0] == due[source]]
            first, count = chance.choice(blocks if chance.random() < 0.5 or not fitting else fitting)
            with client.open("orders", source, incarnation="a", schema=SCHEMA) as session:
                assert session.next == due[source], f"seed {seed}"
                session.send(first, records(first, count))
                if first > due[source]:
                    with pytest.raises(RecordGap) as caught:
                        session.wait(first + count)
                    assert caught.value.expected == due[source]
                    refused += 1
                else:
                    session.wait(first + count)
                    due[source] = max(due[source], first + count)
        for source in due:
            assert [row for row in stored(client) if row[0] == source] == expected(400, source), f"seed {seed}"
    assert refused > 0


READING: dict[str, Callable[[Proxy], None]] = {
    "reset": Proxy.reset,
    "closed": Proxy.close,
    "cut": Proxy.cut,
    "half-open": Proxy.half_open,
    "answers lost": Proxy.drop_answers,
}


@pytest.mark.parametrize("trouble", READING)
def test_a_task_that_reads_staging_goes_on_where_it_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    rows = 50_000  # of a kilobyte: more than any buffer on the way takes
    with Server(tmp_path, http_port=None) as server:
        with connect(server.url) as client, client.open("orders", "a", incarnation="a", schema=SCHEMA) as session:
            for first in range(0, rows, 2_000):
                numbers = list(range(first, first + 2_000))
                session.send(first, pa.record_batch({"number": numbers, "text": ["x" * 1_000] * 2_000}))
            session.wait(rows)
        with Proxy("127.0.0.1", int(server.url.rpartition(":")[2])) as proxy, connect(proxy.url, timeout=0.5) as client:
            monkeypatch.setattr(adapter, "_connected", lambda *_: client)
            source = adapter.StagingSource({"url": proxy.url, "stream": "orders", "flow": "f"})
            reader = source.reader(source.schema())
            (part,) = adapter.ranges(0, rows, most=1)
            found: list[int] = []
            for number, batch in enumerate(reader.read(part)):
                found += batch.column("_sequence").to_pylist()
                if number == 0:
                    READING[trouble](proxy)
                    threading.Timer(0.7, proxy.heal).start()
            assert found == list(range(rows))
            assert proxy.connections > 1


class Moody:
    """Stands before a server, and instead of passing on answers with a status, or resets (None), while it has moods.

    A mood is for one connection: the request is swallowed, as it is when a machine in front is overloaded.
    """

    def __init__(self, port: int, moods: list[int | None]) -> None:
        self._moods, self._port = moods, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._moods:
                self._answer(client, self._moods.pop(0))
            else:
                server = socket.create_connection(("127.0.0.1", self._port))
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()

    def _answer(self, client: socket.socket, mood: int | None) -> None:
        client.recv(65_536)
        if mood is None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        else:
            head = f"HTTP/1.1 {mood} Moody\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            client.sendall(head.encode())
        client.close()

    def close(self) -> None:
        self._listener.close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
    except OSError:
        pass
    finally:
        target.close()


def test_a_loader_that_refuses_and_resets_has_each_batch_whole_or_not_at_all(tmp_path: Path) -> None:
    with Warehouse(tmp_path / "warehouse.duckdb") as server:
        direct = Client(server.url)
        direct.create(ORDERS)
        for batch, moods in enumerate(([429, 503, None], [None, 503, 429, 502, None, None], [503])):
            moody = Moody(server.port, list(moods))
            with Client(moody.url, timeout=2, backoff=Backoff(first=0.02, cap=0.1, patience=20)) as client:
                client.part("orders", flow="f", batch=batch, part="a", data=sales(20 * batch, 10))
                assert numbers(direct) == list(range(20 * batch))
                client.part("orders", flow="f", batch=batch, part="b", data=sales(20 * batch + 10, 10))
                moody._moods += moods
                client.close()  # so that the commit meets them
                assert numbers(direct) == list(range(20 * batch))
                assert client.commit("orders", flow="f", batch=batch, parts=["a", "b"]).rows == 20
            moody.close()
            assert numbers(direct) == list(range(20 * batch + 20))
        assert direct.health()["staged_bytes"] == 0
