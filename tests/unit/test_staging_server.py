"""Sources and flows against a server: sessions, acknowledgements, tokens, limits, TLS."""

from __future__ import annotations

import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from millstream.errors import (
    AccessDenied,
    BlockRefused,
    BlockTooLarge,
    InputError,
    NameRefused,
    PositionGone,
    RecordGap,
    SchemaRefused,
    StagingBusy,
    StagingFull,
    StagingUnavailable,
    UnknownStream,
)
from millstream.staging import Client, Limits, Retention, Server, Session, connect
from staging_area import SCHEMA, expected, free_port, records, send_all, stored

TOKEN = "a-token-for-all"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "staging", http_port=None) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(server.url, timeout=10) as client:
        yield client


def open_session(client: Client, source: str = "till", **options: object) -> Session:
    return client.open("orders", source, **{"incarnation": "a", "schema": SCHEMA, **options})  # type: ignore[arg-type]


def send_many(session: Session, count: int) -> None:
    for first in range(0, count, 1000):
        session.send(first, records(first, 1000))
    session.wait(count)


def test_what_is_acknowledged_can_be_read(server: Server, client: Client) -> None:
    with open_session(client) as session:
        assert (session.next, session.acknowledged) == (0, 0)
        for first in range(0, 1000, 10):
            session.send(first, records(first, 10))
        session.wait(1000)
        assert session.acknowledged == 1000
    assert stored(client) == expected(1000)
    info = client.stream("orders")
    assert (info.records, info.schema.names) == (1000, ["number", "text", "_captured"])
    assert [one.name for one in client.streams()] == ["orders"]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_blocks(server: Server, compression: str) -> None:
    with connect(server.url, compression=compression) as client, open_session(client) as session:  # type: ignore[arg-type]
        session.send(0, records(0, 5000))
        session.wait(5000)
        assert stored(client) == expected(5000)
        assert client.stream("orders").bytes < 5000 * 20


def test_any_range_of_positions(client: Client) -> None:
    with open_session(client) as session:
        for first in range(0, 100, 7):
            session.send(first, records(first, 7))
        session.wait(105)
    for start, end in ((0, 0), (0, 1), (3, 12), (6, 7), (7, 14), (50, 105)):
        rows = [row["number"] for batch in client.read("orders", start, end=end) for row in batch.to_pylist()]
        assert rows == list(range(start, end))


def test_a_reader_that_is_slower_than_the_timeout_goes_on(server: Server, client: Client) -> None:
    count = 60_000
    with open_session(client) as session:
        for first in range(0, count, 1000):
            session.send(first, records(first, 1000))
        session.wait(count)
    with connect(server.url, timeout=0.5) as hasty:
        found = []
        for batch in hasty.read("orders", 0, end=count):
            found += batch.column("number").to_pylist()
            time.sleep(0.25)
    assert found == list(range(count))


def test_a_repeat_is_stored_once_and_a_gap_is_refused(client: Client) -> None:
    with open_session(client) as session:
        session.send(0, records(0, 10))
        session.send(0, records(0, 10))
        session.send(5, records(5, 10))
        session.wait(15)
        session.send(20, records(20, 1))
        with pytest.raises(RecordGap) as caught:
            session.wait(21)
        assert caught.value.expected == 15
    assert stored(client) == expected(15)
    with open_session(client) as session:
        assert session.next == 15
    with open_session(client, incarnation="b") as session:
        assert session.next == 0


def test_the_window_bounds_what_is_on_the_way(client: Client) -> None:
    with open_session(client, window=10_000) as session:
        largest = 0
        for first in range(0, 20_000, 100):
            session.send(first, records(first, 100))
            largest = max(largest, session._flying_bytes)
        session.wait(20_000)
        assert 0 < largest <= 10_000
        assert session._flying_bytes == 0


def test_a_new_session_ends_the_old_one(client: Client) -> None:
    old, new = open_session(client), open_session(client)
    new.send(0, records(0, 5))
    new.wait(5)
    old.send(5, records(5, 5))
    with pytest.raises(StagingUnavailable, match="taken over"):
        old.wait(10)
    new.send(5, records(5, 5))
    new.wait(10)
    assert stored(client) == expected(10)


def test_columns_that_are_added_flow(client: Client) -> None:
    known = client.open("orders", "old", incarnation="a", schema=SCHEMA)
    known.send(0, records(0, 2))
    known.wait(2)
    before = client.stream("orders").schema
    wider = records(0, 2).append_column("extra", pa.array([1.5, 2.5]))
    with client.open("orders", "new", incarnation="a", schema=wider.schema) as session:
        session.send(0, wider)
        session.wait(2)
    known.send(2, records(2, 2))  # goes on as it began
    known.wait(4)
    rows = [row for batch in client.read("orders", 0, end=6) for row in batch.to_pylist()]
    assert [row["extra"] for row in rows] == [None, None, 1.5, 2.5, None, None]
    assert list(rows[0]) == ["number", "text", "extra", "_source", "_sequence", "_captured"]
    for batch in client.read("orders", 0, end=6, schema=before):
        assert batch.schema.names == ["number", "text", "_source", "_sequence", "_captured"]
    with pytest.raises(SchemaRefused) as caught:
        client.open("orders", "bad", incarnation="a", schema=pa.schema([("number", pa.string())]))
    assert caught.value.difference == ["number: the stream has int64, offered is string"]


def test_flows_and_their_backlog(client: Client) -> None:
    with open_session(client) as session:
        session.send(0, records(0, 100))
        session.wait(100)
    assert client.backlog("orders", "sales").records == 100
    assert client.register("orders", "sales").flows == {"sales": 0}
    client.consumed("orders", "sales", position=60)
    assert client.backlog("orders", "sales").records == 40
    with pytest.raises(PositionGone):
        client.consumed("orders", "sales", position=101)
    client.forget("orders", "sales")
    assert client.stream("orders").flows == {}


def test_what_is_not_there(client: Client) -> None:
    with pytest.raises(UnknownStream):
        client.stream("nothing")
    with open_session(client) as session:
        session.send(0, records(0, 1))
        session.wait(1)
    with pytest.raises(PositionGone):
        list(client.read("orders", 0, end=2))
    with pytest.raises(InputError, match="no question"):
        client.call("explode", stream="orders", flow="f")
    with pytest.raises(InputError, match="whole number"):
        client.call("consumed", stream="orders", flow="f", position="1")
    with pytest.raises(NameRefused):
        client.open("a/b", "till", incarnation="a", schema=SCHEMA)
    with pytest.raises(NameRefused):
        client.register("orders", "x" * 500)


def test_a_server_that_is_away() -> None:
    url = f"grpc://127.0.0.1:{free_port()}"
    with connect(url, timeout=2) as client:
        with pytest.raises(StagingUnavailable) as caught:
            client.streams()
        assert caught.value.retryable
        with pytest.raises(StagingUnavailable):
            open_session(client)
    with pytest.raises(InputError, match="grpc://"):
        connect("http://127.0.0.1:1")


def test_a_server_that_ends_and_comes_back(tmp_path: Path) -> None:
    port = free_port()
    with Server(tmp_path, port=port, http_port=None) as server:
        client = connect(server.url, timeout=5)
        session = open_session(client)
        session.send(0, records(0, 5))
        session.wait(5)
        begun = time.monotonic()
    assert time.monotonic() - begun < 3
    with pytest.raises(StagingUnavailable):
        session.wait(10)
    with pytest.raises(StagingUnavailable):
        session.send(5, records(5, 5))
    session.close()
    with Server(tmp_path, port=port, http_port=None):
        with open_session(client) as session:
            assert session.next == 5
        assert stored(client) == expected(5)
    client.close()


def test_many_sources_at_once(server: Server, client: Client) -> None:
    threads = [
        threading.Thread(target=send_all, args=(server.url, 700), kwargs={"source": f"s{number}"})
        for number in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = stored(client)
    for number in range(6):
        assert [row for row in rows if row[0] == f"s{number}"] == expected(700, f"s{number}")


def test_too_many_sessions(tmp_path: Path) -> None:
    with Server(tmp_path, http_port=None, most_sessions=2) as server, connect(server.url) as client:
        first, second = open_session(client, "a"), open_session(client, "b")
        with pytest.raises(StagingBusy) as caught:
            open_session(client, "c")
        assert caught.value.retryable
        first.close()
        for _ in range(100):
            try:
                open_session(client, "c").close()
                break
            except StagingBusy:
                time.sleep(0.02)
        else:
            raise AssertionError("the place was not given back")
        second.close()


def test_limits_are_told_and_kept(tmp_path: Path) -> None:
    with Server(tmp_path, http_port=None, limits=Limits(payload=5000)) as server, connect(server.url) as client:
        session = open_session(client)
        with pytest.raises(BlockTooLarge, match="5,000"):
            session.send(0, records(0, 1000))
        session.limits = Limits()  # a client that does not care
        session.send(0, records(0, 1000))
        with pytest.raises(BlockTooLarge, match="5,000"):
            session.wait(1000)


def test_a_full_stream_is_a_retryable_error(tmp_path: Path) -> None:
    with Server(tmp_path, http_port=None, retention=Retention(limit=1 << 20)) as server, connect(server.url) as client:
        open_session(client).close()
        client.register("orders", "sales")
        with pytest.raises(StagingFull) as caught:
            send_many(open_session(client), 100_000)
        assert caught.value.retryable
        end = client.stream("orders").end
        client.consumed("orders", "sales", position=end)
        with open_session(client) as session:
            assert session.next == end
            session.send(end, records(end, 1000))
            session.wait(end + 1000)


def test_tokens(tmp_path: Path) -> None:
    tokens = {"till": "token-of-till", "web": "token-of-web"}
    with Server(tmp_path, http_port=None, token=TOKEN, tokens=tokens) as server:
        for wrong in (None, "", "nonsense", TOKEN + "x", "Bearer"):
            with connect(server.url, wrong) as client, pytest.raises(AccessDenied):
                client.streams()
            with connect(server.url, wrong) as client, pytest.raises(AccessDenied):
                open_session(client)
        with pytest.raises(InputError, match="ASCII"):
            connect(server.url, "größe")
        with connect(server.url, "token-of-till") as client:
            with open_session(client, "till") as session:
                session.send(0, records(0, 1))
                session.wait(1)
            with pytest.raises(AccessDenied, match="not of web"):
                open_session(client, "web")
            with pytest.raises(AccessDenied, match="for sending"):
                client.streams()
            with pytest.raises(AccessDenied, match="for sending"):
                list(client.read("orders", 0, end=1, schema=SCHEMA))
        with connect(server.url, TOKEN) as client:
            assert stored(client) == expected(1)


def test_the_token_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_TOKEN", TOKEN)
    with Server(tmp_path, http_port=None, token=TOKEN) as server, connect(server.url) as client:
        assert client.streams() == []


def test_beyond_loopback_token_and_tls_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="token"):
        Server(tmp_path, host="0.0.0.0")
    with pytest.raises(InputError, match="TLS"):
        Server(tmp_path, host="0.0.0.0", token=TOKEN)
    Server(tmp_path, host="0.0.0.0", insecure=True)
    with pytest.raises(InputError, match="both"):
        Server(tmp_path, certificate="x.pem")
    with pytest.raises(InputError, match="no file"):
        Server(tmp_path, certificate="x.pem", key="y.pem")
    with pytest.raises(InputError, match="token"):
        Server(tmp_path, token="short")
    with pytest.raises(InputError, match="beside"):
        Server(tmp_path, tokens={"till": "token-of-till"})


def test_tls(tmp_path: Path) -> None:
    import httpx

    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    with Server(tmp_path / "s", host="localhost", token=TOKEN, certificate=certificate, key=key) as server:
        assert server.url.startswith("grpc+tls://localhost:")
        with connect(server.url, TOKEN, tls_roots=certificate.read_bytes()) as client:
            with open_session(client) as session:
                session.send(0, records(0, 3))
                session.wait(3)
            assert stored(client) == expected(3)
        with connect(server.url, TOKEN, timeout=3) as client, pytest.raises(StagingUnavailable):
            client.streams()
        assert httpx.get(f"{server.http_url}/health", verify=ssl.create_default_context(cafile=certificate)).json() == {
            "status": "ok"
        }


def test_a_port_in_use(server: Server, tmp_path: Path) -> None:
    port = int(server.url.rpartition(":")[2])
    for ports in ({"port": port, "http_port": None}, {"http_port": port}):
        with pytest.raises(InputError, match="already"):
            Server(tmp_path / "other", **ports).start()  # type: ignore[arg-type]
    Server(tmp_path / "other", http_port=None).start()


def test_arrow_data_instead_of_blocks_is_refused(server: Server) -> None:
    client = flight.connect(server.url)
    who = b'"stream": "orders", "source": "till", "incarnation": "a"'
    command = b'{%s, "columns": [["number", "int64"], ["text", "string"]]}' % who
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(command))
    assert b'"next":0' in reader.read_chunk().app_metadata.to_pybytes()
    writer.begin(SCHEMA)
    writer.write_batch(records(0, 3))
    with pytest.raises(pa.ArrowException, match="as metadata"):
        reader.read_chunk()
    for nonsense in (b"", b"x", b"[]", b"{}", b'{"stream": 1}', b"\xff" * 100):
        _, reader = client.do_exchange(flight.FlightDescriptor.for_command(nonsense))
        with pytest.raises(pa.ArrowException):
            reader.read_chunk()
        with pytest.raises(pa.ArrowException):
            client.do_get(flight.Ticket(nonsense)).read_all()
    client.close()
    assert server.failure is None


def test_a_block_of_another_source_is_refused(client: Client) -> None:
    from staging_area import raw

    session = open_session(client)
    session._writer.write_metadata(raw(0, 5, source="web"))
    with pytest.raises(BlockRefused, match="orders/web"):
        session.wait(5)
