"""The web services as strangers see them: description, formats, tokens, and hostile names, SQL and bodies."""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millstream import cli
from millstream.errors import AccessDenied, InputError, NameRefused, PartRefused, QueryRefused
from millstream.warehouse import Client, Server, TableSpec, connect
from millstream.warehouse.core import Settings
from millstream.warehouse.databases import Limits as QueryLimits
from millstream.warehouse.wire import CHECKSUM, ROWS, Limits, checksum, encode
from warehousing import COLUMNS, ORDERS, numbers, rows, sales

PLACE = "/tables/orders/flows/f/batches/0"
SETTINGS = Settings(
    part=Limits(part_bytes=1_000_000, rows=100_000), query=QueryLimits(rows=1000, seconds=0.5), body_seconds=1.0
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("warehouse")
    with Server(folder / "w.duckdb", token="write", reader_token="read", settings=SETTINGS) as server:
        client = connect(server.url, token="write")
        client.create(ORDERS)
        client.load("orders", flow="f", batch=100, data=sales(0, 3))
        yield server


@pytest.fixture
def client(server: Server) -> Client:
    return connect(server.url, token="write", patience=0)


def ask(
    server: Server, method: str, path: str, body: bytes | None = None, *, token: str | None = "write", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """A plain request, as any client can send it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        given["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def put(server: Server, body: bytes, *, part: str = "p", count: int = 3, **headers: str) -> tuple[int, dict[str, Any]]:
    given = {CHECKSUM: checksum(body), ROWS: str(count), **headers}
    status, answer, _ = ask(server, "PUT", f"{PLACE}/parts/{part}", body, **given)
    return status, json.loads(answer)


# -- description and formats -------------------------------------------------------------------------------------------


def test_each_table_is_described(server: Server) -> None:
    status, answer, _ = ask(server, "GET", "/openapi.json")
    described = json.loads(answer)
    assert status == 200
    assert described["openapi"].startswith("3.")
    for path in ("/tables/orders", f"{PLACE}/parts/x", f"{PLACE}/commit", PLACE):
        shape = path.replace("/f/", "/{flow}/").replace("/0", "/{batch}").replace("/x", "/{part}")
        assert shape in described["paths"], shape
    row = described["components"]["schemas"]["Row_orders"]["properties"]
    assert row["id"] == {"type": "integer", "format": "int64", "x-arrow-type": "int64"}
    assert row["_captured"]["format"] == "date-time"
    ids = [operation["operationId"] for methods in described["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))
    status, answer, _ = ask(server, "GET", "/tables/orders/openapi.json")
    assert set(json.loads(answer)["paths"]) <= set(described["paths"])


def test_queries_in_each_format(server: Server) -> None:
    sql = (
        "SELECT id, shop, [1, NULL] AS list, 'a\"b' AS text, 1.5::DECIMAL(4,2) AS price, 'nan'::DOUBLE AS odd "
        "FROM orders ORDER BY id LIMIT 1"
    )
    body = json.dumps({"sql": sql}).encode()
    as_csv = json.dumps({"sql": sql, "format": "csv"}).encode()
    status, answer, headers = ask(server, "POST", "/query", body, Content_Type="application/json")
    assert (status, headers["millstream-truncated"]) == (200, "false")
    assert json.loads(answer)["rows"] == [[0, "shop 0", [1, None], 'a"b', "1.50", "nan"]]
    status, answer, headers = ask(server, "POST", "/query", as_csv, Content_Type="application/json")
    assert answer.decode() == '"id","shop","list","text","price","odd"\n0,"shop 0","[1, null]","a""b",1.50,nan\n'
    assert headers["content-type"].startswith("text/csv")
    status, answer, _ = ask(server, "GET", "/query?sql=SELECT%20count(*)%20FROM%20orders&format=arrow")
    assert pa.ipc.open_stream(answer).read_all().to_pylist() == [{"count_star()": 3}]


def test_results_are_limited(client: Client) -> None:
    assert client.query("SELECT * FROM range(5000)", limit=5).num_rows == 5
    assert client.query("SELECT * FROM range(1000)").num_rows == 1000
    with pytest.raises(QueryRefused, match="more rows"):
        client.query("SELECT * FROM range(1001)")
    begun = time.monotonic()
    with pytest.raises(QueryRefused, match=r"0\.5 s"):
        client.query("SELECT count(*) FROM range(100000) a, range(100000) b WHERE (a.range * b.range) % 7 = 3")
    assert time.monotonic() - begun < 5
    assert client.query("SELECT 1").num_rows == 1


@pytest.mark.parametrize(
    "sql",
    [
        "",
        ";",
        "hello",
        "SELECT 1; SELECT 2",
        "DROP TABLE orders",
        "DELETE FROM orders",
        "INSERT INTO orders (id) VALUES (1)",
        "WITH gone AS (DELETE FROM orders RETURNING *) SELECT * FROM gone",
        "CREATE TABLE t AS SELECT 1",
        "COPY orders TO '/tmp/millstream-escape.csv'",
        "COPY (SELECT 1) TO '/tmp/millstream-escape.csv'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM read_parquet('https://example.com/a.parquet')",
        "ATTACH '/tmp/millstream-escape.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "PRAGMA enable_profiling",
        "CALL pragma_version()",
        "EXPORT DATABASE '/tmp/millstream-escape'",
        "SELECT * FROM sales",  # a function of this process, not a table
        "EXPLAIN ANALYZE DELETE FROM orders",
        "SELECT * FROM arrow_scan(1, 2, 3)",
        "BEGIN",
        "SELECT '\0'",
        "SELECT " + "(" * 5_000 + "1" + ")" * 5_000,
        "x" * 500_000,
    ],
    ids=lambda sql: sql[:30],
)
def test_sql_that_does_more_than_read_is_refused(client: Client, sql: str) -> None:
    if sql.startswith("SELECT '"):
        assert client.query(sql).num_rows == 1  # harmless
    else:
        with pytest.raises(QueryRefused):
            client.query(sql)
    assert numbers(client) == [0, 1, 2]
    assert not list(Path("/tmp").glob("millstream-escape*"))


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "", "wrong", "writ", "write x", "writeé", "x" * 10_000])
def test_without_the_token_nothing_but_health_is_answered(server: Server, token: str | None) -> None:
    header = {} if token is None else {"Authorization": f"Bearer {token}".encode().decode("latin-1")}
    gets = [("GET", path) for path in ("/tables", "/metrics", "/openapi.json", "/ledger", "/freshness")]
    for method, path in (*gets, ("POST", "/query"), ("PUT", f"{PLACE}/parts/p")):
        status, answer, _ = ask(server, method, path, b"{}" if method != "GET" else None, token=None, **header)
        assert status == 401, (method, path)
        assert json.loads(answer)["error"] == "AccessDenied"
    assert ask(server, "GET", "/health", token=None)[0] == 200


def test_the_readers_token_reads(server: Server) -> None:
    reader = connect(server.url, token="read", patience=0)
    assert numbers(reader) == [0, 1, 2]
    assert reader.freshness()
    assert reader.tables()
    with pytest.raises(AccessDenied, match="only read"):
        reader.create(ORDERS)
    with pytest.raises(AccessDenied):
        reader.load("orders", flow="f", batch=0, data=sales(0, 1))
    assert ask(server, "POST", f"{PLACE}/commit", b'{"parts": []}', token="read")[0] == 403
    assert ask(server, "GET", "/health/../tables", token=None)[0] in (401, 404)


def test_another_machine_needs_a_token_and_tls(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="token"):
        Server(tmp_path / "w.duckdb", host="0.0.0.0")
    with pytest.raises(InputError, match="TLS"):
        Server(tmp_path / "w.duckdb", host="0.0.0.0", token="t")
    assert list(tmp_path.iterdir()) == []


def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("no certificate")
    for file in (tmp_path / "none.pem", tmp_path / "nowhere.pem"):
        with pytest.raises(InputError, match=r"\.pem"):
            Server(tmp_path / "w.duckdb", certificate=file, key=file)


def test_a_port_that_is_taken(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", str(tmp_path / "w.duckdb"), "--port", str(server.port)]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"127.0.0.1:{server.port}" in told
    assert "--port" in told


def test_report(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", server.url, "--token", "read"]) == 0
    told = capsys.readouterr().out
    assert "orders" in told
    assert "p99" in told
    assert cli.main(["report", server.url, "--token", "read", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["rows"] == 3
    assert cli.main(["report", server.url, "--token", "wrong"]) == 1
    assert "token" in capsys.readouterr().err


# -- bodies ------------------------------------------------------------------------------------------------------------


def test_names_from_outside(server: Server, client: Client) -> None:
    for path in (
        "/tables/a%22b/flows/f/batches/0",
        "/tables/..%2f..%2fetc/flows/f/batches/0",
        "/tables/orders/flows/%2e%2e/batches/0",
        "/tables/orders/flows/f%00/batches/0",
        "/tables/orders/flows/f/batches/-1",
        "/tables/orders/flows/f/batches/99999999999999999999",
        f"/tables/{'x' * 70}/flows/f/batches/0",
        "/tables/ord%D0%B5rs/flows/f/batches/0",
        "/tables/orders;drop/flows/f/batches/0",
    ):
        assert ask(server, "GET", path)[0] in (400, 404), path
    for part in ("..", "a%2fb", "%00", "x" * 200, "a%0a"):
        body = encode(sales(0, 1)).body.to_pybytes()
        status, _, _ = ask(server, "PUT", f"{PLACE}/parts/{part}", body, **{CHECKSUM: checksum(body), ROWS: "1"})
        assert status in (400, 404), part
    for name in ('orders"; DROP TABLE orders; --', "x" * 65_536, "a\0b", "a/b"):
        described = {"name": name, "columns": [["id", "int64"]]}
        assert (
            ask(server, "PUT", "/tables/evil", json.dumps(described).encode(), Content_Type="application/json")[0]
            == 400
        )
        with pytest.raises(NameRefused):
            client.commit(name, flow="f", batch=0, parts=[])
    described = {"name": "evil", "columns": [['a" int); drop table orders; --', "int64"]]}
    evil = json.dumps(described).encode()
    status, answer, _ = ask(server, "PUT", "/tables/evil", evil, Content_Type="application/json")
    assert (status, json.loads(answer)["error"]) == (400, "NameRefused")
    assert set(client.tables()) == {"orders"}


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b"[" * 100_000, b'{"parts": [1]}', b'{"parts": ["a", "a"]}',
     b'{"parts": [], "counts": {"in": 1e400}}', b'{"parts": [], "counts": {"a b": 1}}', b'{"parts": [], "more": 1}',
     b'{"parts": ["../x"]}', b'{"parts": [], "origin": "a b"}', b'{"parts": [], "wait": "yes"}'],
)  # fmt: skip
def test_commits_that_are_none(server: Server, body: bytes) -> None:
    status, answer, _ = ask(server, "POST", f"{PLACE}/commit", body, Content_Type="application/json")
    assert status == 400, answer
    assert json.loads(answer)["message"]


def test_too_large_is_refused_before_it_is_read(server: Server, client: Client) -> None:
    with pytest.raises(PartRefused, match="above"):
        client.part("orders", flow="f", batch=0, part="p", data=sales(0, 60_000))
    with pytest.raises(PartRefused, match="rows"):
        client.part("orders", flow="f", batch=0, part="p", data=pa.table({"id": pa.nulls(100_001, pa.int64())}))
    # the head alone is enough for a refusal
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        raw.sendall(
            f"PUT {PLACE}/parts/p HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer write\r\n"
            f"Content-Length: {1 << 40}\r\n\r\n".encode()
        )
        assert b" 413 " in raw.recv(1000).split(b"\r\n")[0]
    # and a body without a length is cut off where the limit is
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        raw.sendall(
            f"PUT {PLACE}/parts/p HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer write\r\n{CHECKSUM}: x\r\n{ROWS}: 1\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        chunk = b"%x\r\n" % 100_000 + b"x" * 100_000 + b"\r\n"
        answer = b""
        try:
            for _ in range(30):
                raw.sendall(chunk)
        except OSError:
            pass
        try:
            answer = raw.recv(1000)
        except OSError:
            answer = b"HTTP/1.1 413 reset"
        assert b" 413 " in answer.split(b"\r\n")[0]
    body = encode(sales(0, 3)).body.to_pybytes()
    assert put(server, body, Content_Encoding="gzip")[0] == 415


def test_a_slow_body_is_given_up(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        raw.sendall(
            f"PUT {PLACE}/parts/p HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer write\r\n{CHECKSUM}: x\r\n{ROWS}: 1\r\n"
            "Content-Length: 1000\r\n\r\nabc".encode()
        )
        assert b" 408 " in raw.recv(1000).split(b"\r\n")[0]


def compressed(codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, COLUMNS, options=options) as writer:
        writer.write_table(sales(0, 3))
    return sink.getvalue().to_pybytes()


def test_parts_that_are_not_what_they_say(server: Server) -> None:
    body = encode(sales(0, 3)).body.to_pybytes()
    assert put(server, body)[0] == 200
    assert put(server, body, count=4)[1]["error"] == "PartRefused"
    assert put(server, body, **{CHECKSUM: "crc32:00000000"})[1]["error"] == "PartDamaged"
    assert put(server, b"")[0] == 400
    assert put(server, b"not arrow at all")[0] == 400
    assert put(server, json.dumps({"id": 1}).encode())[0] == 400
    for codec in ("lz4", "zstd"):
        assert put(server, compressed(codec))[0] == 415


@pytest.mark.parametrize(
    ("column", "count"),
    [
        (pa.array(["a"]).dictionary_encode(), 1),
        (pa.nulls(1), 1),
        (pa.array(["a"], pa.string_view()), 1),
        (pa.RunEndEncodedArray.from_arrays([1], [1]), 1),
        (pa.array([b"0" * 16], pa.uuid()), 1),
        (pa.array(["{}"], pa.json_()), 1),
        (pa.array([{}], pa.struct([])), 1),
        (pa.array([1]), 1),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_columns_that_expand_or_mean_something_else(server: Server, column: pa.Array, count: int) -> None:
    body = encode(pa.RecordBatch.from_arrays([column], names=["shop"])).body.to_pybytes()
    status, answer = put(server, body, count=count)
    assert (status, answer["error"]) == (409, "TableMismatch"), answer


def test_damaged_arrow_never_does_harm(server: Server, client: Client) -> None:
    """Bytes changed with a checksum that fits: refused, or rows that are rows."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    sound = encode(sales(0, 20)).body.to_pybytes()
    refused = 0
    for number in range(400):
        body = bytearray(sound)
        for _ in range(chance.choice([1, 1, 2, 8])):
            body[chance.randrange(len(body))] = chance.randrange(256)
        if chance.random() < 0.2:
            del body[chance.randrange(len(body)) :]
        status, answer = put(server, bytes(body), part=f"fuzz-{number}", count=20)
        assert status in (200, 400, 409, 413, 415), (seed, number, answer)
        refused += status != 200
    assert refused > 50, seed
    assert client.health()["status"] == "ok"
    assert rows(client, "SELECT count(*) FROM orders") == [(3,)]


def test_what_prometheus_reads(server: Server, client: Client) -> None:
    _, answer, headers = ask(server, "GET", "/metrics")
    text = answer.decode()
    assert headers["content-type"].startswith("text/plain")
    assert 'millstream_rows_total{flow="f",table="orders"} 3.0' in text
    assert 'millstream_freshness_seconds{flow="f",quantile="0.99",table="orders"}' in text
    assert "millstream_commit_seconds_bucket" in text
    assert "millstream_waiting_commits 0.0" in text


def test_an_address_that_is_none() -> None:
    for url in ("", "warehouse", "ftp://host", "http://", "http://host:port", "http://host/?a=b"):
        with pytest.raises(InputError):
            connect(url)


def test_a_table_of_another_shape_than_its_address(server: Server) -> None:
    body = json.dumps(TableSpec("other", COLUMNS).to_json()).encode()
    status, answer, _ = ask(server, "PUT", "/tables/orders", body, Content_Type="application/json")
    assert status == 400
    assert "address" in json.loads(answer)["message"]
