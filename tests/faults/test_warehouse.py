"""The warehouse killed, cut off, overloaded, full: a batch and its ledger line are there together, or neither is."""

from __future__ import annotations

import random
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from millstream.errors import PartDamaged, PartsMissing, WarehouseUnavailable
from millstream.warehouse import Client, Server, TableSpec, connect, service
from millstream.warehouse.core import Settings
from millstream.warehouse.databases.duck import DuckDB
from millstream.warehouse.retry import Backoff
from postgres import Postgres
from proxy import Proxy
from warehousing import COLUMNS, ORDERS, ServerProcess, numbers, rows, sales


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "warehouse.duckdb") as server:
        yield server


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as proxy:
        yield proxy


def through(proxy: Proxy, *, timeout: float = 0.5, patience: float = 20.0) -> Client:
    return connect(f"http://127.0.0.1:{proxy.port}", timeout=timeout, patience=patience)


def same_as_ledger(client: Client) -> None:
    """The rows of the table are those of the batches in the ledger, which loaded ten rows each from their number on."""
    expected = sorted(10 * entry["batch"] + number for entry in client.ledger() for number in range(entry["rows"]))
    assert numbers(client) == expected


# -- killed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "committed"),
    [("warehouse.part-stored", False), ("warehouse.before-commit", False), ("warehouse.after-commit", True)],
)
def test_server_killed_while_it_loads(tmp_path: Path, point: str, committed: bool) -> None:
    database, parts = tmp_path / "warehouse.duckdb", tmp_path / "parts"
    with ServerProcess(database, parts=parts, fail=f"{point}=kill:2") as dying:
        client = dying.client(patience=0.2)
        client.create(ORDERS)
        client.load("orders", flow="f", batch=0, data=sales(0, 10))
        with pytest.raises(WarehouseUnavailable):
            client.load("orders", flow="f", batch=1, data=sales(10, 10))
        assert dying.wait() == -9
    with ServerProcess(database, parts=parts) as again:
        client = again.client()
        assert len(client.ledger()) == 1 + committed
        same_as_ledger(client)
        assert client.load("orders", flow="f", batch=1, data=sales(10, 10)).duplicate is committed
        assert numbers(client) == list(range(20))


def test_an_accepted_batch_survives_a_kill(tmp_path: Path) -> None:
    database, parts = tmp_path / "warehouse.duckdb", tmp_path / "parts"
    with ServerProcess(database, parts=parts, fail="warehouse.before-commit=kill:1") as dying:
        client = dying.client(patience=0.2)
        client.create(ORDERS)
        client.part("orders", flow="f", batch=0, part="a", data=sales(0, 10))
        try:
            assert client.commit("orders", flow="f", batch=0, parts=["a"], wait=False).state == "accepted"
        except WarehouseUnavailable:
            pass  # it was killed in the background before it could answer; it was accepted all the same
        assert dying.wait() == -9
    with ServerProcess(database, parts=parts) as again:
        client = again.client()
        assert client.wait("orders", flow="f", batch=0).state == "committed"
        assert client.commit("orders", flow="f", batch=0, parts=["a"]).duplicate
        assert numbers(client) == list(range(10))
        assert client.health()["staged_bytes"] == 0


def test_kills_at_any_moment(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    database, parts = tmp_path / "warehouse.duckdb", tmp_path / "parts"
    batch, sent = 0, 0
    for _ in range(2):
        with ServerProcess(database, parts=parts) as running:
            client = running.client(patience=0.2)
            client.create(ORDERS)
            same_as_ledger(client)
            killer = threading.Timer(chance.uniform(0.02, 0.6), running.kill)
            killer.start()
            try:
                while True:
                    wait = chance.random() < 0.5
                    client.load("orders", flow="f", batch=batch, data=sales(10 * batch, 10), wait=wait)
                    batch += 1
                    sent += 1
            except (WarehouseUnavailable, PartsMissing):
                killer.join()
    with ServerProcess(database, parts=parts) as running:
        client = running.client()
        client.load("orders", flow="f", batch=batch, data=sales(10 * batch, 10))
        for number in range(batch):
            client.wait("orders", flow="f", batch=number)
        assert numbers(client) == list(range(10 * (batch + 1))), f"seed {seed}"
        same_as_ledger(client)
    assert sent > 0


def test_postgres_killed_in_a_transaction(tmp_path: Path) -> None:
    delayed = "warehouse.before-commit=sleep:0.5"
    with Postgres() as postgres, ServerProcess(postgres.dsn, parts=tmp_path, fail=delayed) as server:
        client = server.client(patience=30)
        client.create(ORDERS)
        client.load("orders", flow="f", batch=0, data=sales(0, 10))
        result = []
        thread = threading.Thread(
            target=lambda: result.append(client.load("orders", flow="f", batch=1, data=sales(10, 10)))
        )
        thread.start()
        time.sleep(0.25)  # the rows are in, the commit is not
        postgres.kill()
        postgres.start()
        assert rows(client, "SELECT count(*) FROM orders") in ([(10,)], [(20,)])
        thread.join()
        assert [one.rows for one in result] == [10]
        assert numbers(client) == list(range(20))
        same_as_ledger(client)


# -- cut off -----------------------------------------------------------------------------------------------------------


def test_the_answer_to_a_commit_is_lost(server: Server, proxy: Proxy) -> None:
    client = through(proxy)
    client.create(ORDERS)
    client.part("orders", flow="f", batch=0, part="a", data=sales(0, 10))
    proxy.drop_answers()
    threading.Timer(1.0, proxy.heal).start()
    receipt = client.commit("orders", flow="f", batch=0, parts=["a"])
    assert (receipt.rows, receipt.duplicate) == (10, True)
    assert numbers(client) == list(range(10))


@pytest.mark.parametrize("fault", ["cut", "half_open", "close"])
def test_the_network_is_cut_while_parts_are_sent(server: Server, proxy: Proxy, fault: str) -> None:
    client = through(proxy)
    client.create(ORDERS)
    client.part("orders", flow="f", batch=0, part="a", data=sales(0, 10))
    getattr(proxy, fault)()
    threading.Timer(0.7, proxy.heal).start()
    client.part("orders", flow="f", batch=0, part="b", data=sales(10, 10))
    assert client.commit("orders", flow="f", batch=0, parts=["a", "b"]).rows == 20
    assert numbers(client) == list(range(20))


def test_a_bit_that_flips_on_the_way_is_noticed_and_sent_again(server: Server, proxy: Proxy) -> None:
    client = through(proxy)
    client.create(ORDERS)
    proxy.corrupt(after=2_000)  # behind the head of the request
    client.load("orders", flow="f", batch=0, data=sales(0, 100))
    assert numbers(client) == list(range(100))
    assert rows(client, "SELECT count(DISTINCT shop), sum(amount) FROM orders") == [(7, sum(range(100)) / 4)]


def test_a_bit_that_flips_on_disk_is_noticed(server: Server) -> None:
    client = connect(server.url, patience=0.1)
    client.create(ORDERS)
    client.part("orders", flow="f", batch=0, part="a", data=sales(0, 100))
    (file,) = Path(f"{server.warehouse.database.path}.parts").glob("batches/*/*.part")  # type: ignore[attr-defined]
    content = bytearray(file.read_bytes())
    content[5_000] ^= 4
    file.write_bytes(content)
    with pytest.raises(PartDamaged, match="changed on disk"):
        client.commit("orders", flow="f", batch=0, parts=["a"])
    assert numbers(client) == []
    assert client.load("orders", flow="f", batch=0, data=sales(0, 100)).rows == 100


class Moody:
    """A server that answers a few requests badly (a status, or None for a reset) before it passes all to another."""

    def __init__(self, port: int, moods: list[int | None]) -> None:
        self.moods, self.times = moods, list[float]()
        self._proxy = Proxy("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.times.append(time.monotonic())
            client.recv(65_536)
            if self.moods and (mood := self.moods.pop(0)) is not None:
                client.sendall(f"HTTP/1.1 {mood} Moody\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n".encode())
            client.close()

    def close(self) -> None:
        self._listener.close()
        self._proxy.stop()


def test_overload_is_answered_with_growing_waits(server: Server) -> None:
    moody = Moody(server.port, [429, 503, None, 503, 429])
    client = Client(moody.url, timeout=2, backoff=Backoff(first=0.05, cap=0.2, patience=1.5))
    begun = time.monotonic()
    with pytest.raises(WarehouseUnavailable):
        client.health()
    assert time.monotonic() - begun < 5
    moody.close()
    gaps = [later - sooner for sooner, later in zip(moody.times, moody.times[1:], strict=False)]
    assert len(gaps) >= 6
    assert max(gaps) < 0.5  # capped
    assert sum(gaps[:2]) < sum(sorted(gaps)[-2:])  # growing


def test_waits_are_capped_and_differ() -> None:
    waits = Backoff(first=0.1, cap=2.0, patience=1e9).waits()
    found = [next(waits) for _ in range(200)]
    assert max(found) <= 2.0
    assert max(found[:3]) <= 0.4
    assert len(set(found)) > 190  # no two clients come back at the same moment
    assert min(found[10:]) >= 0.5


def test_a_server_with_more_than_it_can_take_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(requests=2, waiting=1, parts_bytes=120_000)
    with Server(tmp_path / "warehouse.duckdb", settings=settings) as server:
        patient, hasty = connect(server.url, patience=30), connect(server.url, patience=0)
        patient.create(ORDERS)
        problems: list[BaseException] = []

        def work(flow: int) -> None:
            try:
                with connect(server.url, patience=30) as client:
                    for batch in range(4):
                        client.load("orders", flow=f"f{flow}", batch=batch, data=sales(100 * flow + 10 * batch, 10))
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=work, args=(flow,)) for flow in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert numbers(patient) == [100 * flow + number for flow in range(8) for number in range(40)]
        for part in range(10):
            patient.part("orders", flow="f", batch=0, part=str(part), data=sales(0, 100))
        monkeypatch.setattr(service, "_tell", service._Teller())
        for _ in range(2):
            with pytest.raises(WarehouseUnavailable, match="wait for their commit"):
                hasty.part("orders", flow="f", batch=0, part="more", data=sales(0, 500))
        said = [record.getMessage() for record in caplog.records if record.name == service.__name__]
        assert len([line for line in said if "parts that wait for their commit" in line]) == 1


# -- full, and several targets -----------------------------------------------------------------------------------------


def test_a_full_disk_fails_the_load_whole_and_it_goes_on_later(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: writes of the database fail in the middle."""
    database, parts = tmp_path / "warehouse.duckdb", tmp_path / "parts"
    schema = pa.schema([*COLUMNS, pa.field("filling", pa.string())])
    chance = random.Random(5)

    def data(batch: int) -> pa.Table:
        filling = [chance.randbytes(500).hex() for _ in range(2_000)]
        return sales(2_000 * batch, 2_000).append_column("filling", pa.array(filling))

    with ServerProcess(database, parts=parts) as server:
        client = server.client(patience=0.5)
        client.create(TableSpec("orders", schema))
        process = psutil.Process(server.process.pid)
        process.rlimit(resource.RLIMIT_FSIZE, (8_000_000, resource.RLIM_INFINITY))
        batch = 0
        while batch < 20 and _loads(client, batch, data(batch)):
            batch += 1
        assert 0 < batch < 20
        process.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert numbers(client) == list(range(2_000 * batch))
        assert len(client.ledger()) == batch
        client = server.client(patience=10)
        assert client.load("orders", flow="f", batch=batch, data=data(batch)).rows == 2_000
        assert numbers(client) == list(range(2_000 * (batch + 1)))


def _loads(client: Client, batch: int, data: pa.Table) -> bool:
    try:
        return client.load("orders", flow="f", batch=batch, data=data).rows > 0
    except WarehouseUnavailable:
        return False


def test_two_targets_of_which_one_is_committed(server: Server) -> None:
    client = connect(server.url, patience=5)
    client.create(ORDERS)
    client.create(TableSpec("totals", COLUMNS, mode="aggregate", aggregates={"n": "count(*)", "total": "sum(amount)"}))
    for table in ("orders", "totals"):
        client.load(table, flow="f", batch=0, data=sales(0, 10))
    client.load("orders", flow="f", batch=1, data=sales(10, 10))
    # the driver dies here, and the batch is replayed as a whole
    replayed = [client.load(table, flow="f", batch=1, data=sales(10, 10)).duplicate for table in ("orders", "totals")]
    assert replayed == [True, False]
    assert numbers(client) == list(range(20))
    assert rows(client, "SELECT n, total FROM totals") == [(20, sum(range(20)) / 4)]


def test_orphans_are_swept_and_what_waits_is_not(tmp_path: Path) -> None:
    settings = Settings(orphan_seconds=0.0)
    with Server(tmp_path / "warehouse.duckdb", settings=settings) as server:
        client = connect(server.url, patience=1)
        client.create(ORDERS)
        client.part("orders", flow="f", batch=0, part="orphan", data=sales(0, 10))
        assert client.health()["staged_bytes"] > 0
        time.sleep(0.02)
        assert server.warehouse.sweep() == 1
        assert client.health()["staged_bytes"] == 0
        with pytest.raises(PartsMissing):
            client.commit("orders", flow="f", batch=0, parts=["orphan"])
        assert numbers(client) == []


def test_the_database_comes_back_after_an_error_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An accepted batch is tried again until the database is there."""
    away = threading.Event()
    away.set()
    real = DuckDB.load

    def load(self: DuckDB, *arguments: object) -> object:
        if away.is_set():
            raise WarehouseUnavailable("the disk is full")
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(DuckDB, "load", load)
    with Server(tmp_path / "warehouse.duckdb") as server:
        client = connect(server.url, patience=0)
        client.create(ORDERS)
        assert client.load("orders", flow="f", batch=0, data=sales(0, 10), wait=False).state == "accepted"
        time.sleep(0.2)
        status = client.status("orders", flow="f", batch=0)
        assert status is not None
        assert status.state == "accepted"
        assert numbers(client) == []
        away.clear()
        assert client.wait("orders", flow="f", batch=0).rows == 10
