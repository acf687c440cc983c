"""Staging over HTTP: records as text, errors as JSON, limits before anything is expanded."""

from __future__ import annotations

import datetime
import gzip
import json
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from millstream import failpoints
from millstream.staging import Limits, Server, connect

COLUMNS = {"id": "bigint", "amount": "decimal(10,2)", "at": "timestamp", "note": "string"}
JSON_LINES = {"Content-Type": "application/x-ndjson"}
CSV = {"Content-Type": "text/csv; charset=utf-8"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = Limits(payload=100_000, expanded=1_000_000, ratio=50, free=10_000)
    with Server(tmp_path_factory.mktemp("staging"), limits=limits) as server:
        yield server


@pytest.fixture
def http(server: Server, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http_url) as client:
        client.put(f"/streams/{stream_of(request.node.name)}", json=COLUMNS).raise_for_status()
        yield client


def stream_of(name: str) -> str:
    return f"s{zlib.crc32(name.encode())}"


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    return stream_of(request.node.name)


def post(http: httpx.Client, stream: str, body: str | bytes, first: int = 0, **headers: str) -> httpx.Response:
    return http.post(
        f"/streams/{stream}/records", content=body, headers={"X-Source": "web", "X-First": str(first), **headers}
    )


def rows(server: Server, stream: str) -> list[dict[str, Any]]:
    with connect(server.url) as client:
        end = client.stream(stream).end
        return [row for batch in client.read(stream, 0, end=end) for row in batch.to_pylist()]


LINES = '{"id": 1, "amount": "12.50", "at": "2026-01-01T10:00:00Z", "note": "für\\n"}\n{"id": 2}\n'
TABLE = 'id,amount,at,note\n1,12.50,2026-01-01T10:00:00Z,"für\n"\n2,,,\n'


@pytest.mark.parametrize(("body", "kind"), [(LINES, JSON_LINES), (TABLE, CSV)], ids=["json", "csv"])
def test_records_as_text(server: Server, http: httpx.Client, stream: str, body: str, kind: dict[str, str]) -> None:
    assert post(http, stream, body, **kind).json() == {"next": 2, "stored": 2, "repeated": 0}
    first, second = rows(server, stream)
    assert (first["id"], str(first["amount"]), first["note"]) == (1, "12.50", "für\n")
    assert first["at"] == datetime.datetime(2026, 1, 1, 10, tzinfo=datetime.UTC)
    assert (second["id"], second["amount"], second["at"], second["note"]) == (2, None, None, None)
    assert (second["_source"], second["_sequence"]) == ("web", 1)
    assert abs(second["_captured"].timestamp() - time.time()) < 60


def test_a_post_can_be_repeated(server: Server, http: httpx.Client, stream: str) -> None:
    for _ in range(2):
        post(http, stream, LINES, **JSON_LINES).raise_for_status()
    assert post(http, stream, '{"id": 2}\n{"id": 3}', 1, **JSON_LINES).json() == {"next": 3, "stored": 1, "repeated": 1}
    gap = post(http, stream, LINES, 7, **JSON_LINES)
    assert (gap.status_code, gap.json()["error"], gap.json()["expected"]) == (409, "RecordGap", 3)
    assert http.get(f"/streams/{stream}/sources/web").json() == {"next": 3}
    assert [row["id"] for row in rows(server, stream)] == [1, 2, 3]
    assert post(http, stream, "", 3, **JSON_LINES).json() == {"next": 3, "stored": 0, "repeated": 0}


def test_a_time_of_capture_of_its_own(server: Server, http: httpx.Client, stream: str) -> None:
    post(http, stream, '{"id": 1, "_captured": "2026-01-01T00:00:00Z"}', **JSON_LINES).raise_for_status()
    assert rows(server, stream)[0]["_captured"] == datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    mixed = '{"id": 2, "_captured": "2026-01-01T00:00:00Z"}\n{"id": 3}'
    assert post(http, stream, mixed, 1, **JSON_LINES).status_code == 400


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("{", JSON_LINES),
        ("nonsense", JSON_LINES),
        ("[1, 2]", JSON_LINES),
        ('{"id": "x"}', JSON_LINES),
        ('{"other": 1}', JSON_LINES),
        ('{"id": 1, "id": 2}\n{"id":', JSON_LINES),
        ('{"note": ' + "[" * 50_000, JSON_LINES),
        ('{"note": ' + '{"a":' * 15_000, JSON_LINES),
        (b'{"note": "\xff\xfe"}', JSON_LINES),
        ("id,other\n1,2\n", CSV),
        ("id\nx\n", CSV),
        ("id,note\n1\n", CSV),
        (b"note\n\xff\xfe\n", CSV),
        ("id,id\n1,2\n", CSV),
        (LINES, {"Content-Type": "application/octet-stream"}),
        (LINES, {}),
        (LINES, {**JSON_LINES, "Content-Encoding": "gzip"}),
        (LINES, {**JSON_LINES, "Content-Encoding": "br"}),
        (gzip.compress(LINES.encode(), mtime=0)[:-4], {**JSON_LINES, "Content-Encoding": "gzip"}),
    ],
)  # fmt: skip
def test_bodies_that_are_refused(
    server: Server, http: httpx.Client, stream: str, body: str | bytes, kind: dict[str, str]
) -> None:
    answer = post(http, stream, body, **kind)
    assert answer.status_code == 400, answer.text
    assert not answer.json()["retryable"]
    assert len(answer.text) < 1500
    assert rows(server, stream) == []
    assert http.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    "headers", [{"X-First": "-1"}, {"X-First": "x"}, {"X-First": str(1 << 70)}, {"X-Source": "a/b"}]
)
def test_headers_that_are_refused(http: httpx.Client, stream: str, headers: dict[str, str]) -> None:
    answer = http.post(
        f"/streams/{stream}/records",
        content=LINES,
        headers={"X-Source": "web", "X-First": "0", **JSON_LINES, **headers},
    )
    assert answer.status_code in (400, 422)
    missing = http.post(f"/streams/{stream}/records", content=LINES, headers=JSON_LINES)
    assert missing.status_code == 422
    nowhere = http.get("/streams/a%2Fb")
    assert nowhere.status_code == 404
    for refused in (answer, missing, nowhere):
        assert refused.json().keys() >= {"error", "message", "retryable"}


def test_a_field_that_the_stream_does_not_have_is_named(http: httpx.Client, stream: str) -> None:
    headers = {"X-Source": "web", "X-First": "0", **JSON_LINES}
    answer = http.post(f"/streams/{stream}/records", content='{"colour": 1}', headers=headers)
    assert answer.status_code == 400
    assert "field 'colour' is not in the stream, which has " in answer.json()["message"]


def test_gzip(server: Server, http: httpx.Client, stream: str) -> None:
    body = gzip.compress(LINES.encode())
    assert post(http, stream, body, **JSON_LINES, **{"Content-Encoding": "gzip"}).json()["next"] == 2


def test_bombs_and_bodies_that_are_too_large(server: Server, http: httpx.Client, stream: str) -> None:
    line = b'{"id": 1, "note": "' + b"x" * 2000 + b'"}\n'
    packed = {**JSON_LINES, "Content-Encoding": "gzip"}
    for body, headers in (
        (line * 60, JSON_LINES),  # above the payload
        (gzip.compress(line * 100), packed),  # above the ratio
        (gzip.compress(bytes(50_000_000)), packed),  # above everything
        (zlib.compress(bytes(50_000_000), wbits=31), packed),
    ):
        answer = post(http, stream, body, **headers)
        assert (answer.status_code, answer.json()["error"]) == (413, "BlockTooLarge")

    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield line

    answer = http.post(
        f"/streams/{stream}/records", content=endless(), headers={"X-Source": "w", "X-First": "0", **JSON_LINES}
    )
    assert answer.status_code == 413
    assert rows(server, stream) == []


def test_streams_are_made_and_widened(http: httpx.Client, stream: str) -> None:
    assert http.put(f"/streams/{stream}", json={"id": "bigint", "new": "list<string>"}).json()["columns"][-1] == [
        "new",
        "list<string>",
    ]
    refused = http.put(f"/streams/{stream}", json={"id": "string"})
    assert (refused.status_code, refused.json()["error"]) == (422, "SchemaRefused")
    assert http.put(f"/streams/{stream}", json={"x y": "string"}).status_code == 400
    assert http.put(f"/streams/{stream}", json={"x": "blob"}).status_code == 422
    assert http.put("/streams/a%00b", json=COLUMNS).status_code == 400
    assert stream in [one["name"] for one in http.get("/streams").json()]
    assert http.get(f"/streams/{stream}").json()["end"] == 0
    assert http.get("/streams/nothing").status_code == 404
    unknown = post(http, "nothing", LINES, **JSON_LINES)
    assert (unknown.status_code, unknown.json()["error"]) == (404, "UnknownStream")


def test_flows_can_be_forgotten(server: Server, http: httpx.Client, stream: str) -> None:
    with connect(server.url) as client:
        client.register(stream, "sales")
    assert http.get(f"/streams/{stream}").json()["flows"] == {"sales": 0}
    assert http.delete(f"/streams/{stream}/flows/sales").json()["flows"] == {}


def test_metrics(http: httpx.Client, stream: str) -> None:
    post(http, stream, LINES, **JSON_LINES).raise_for_status()
    post(http, stream, LINES, 9, **JSON_LINES)
    text = http.get("/metrics").text
    assert f'millstream_staging_records_total{{stream="{stream}"}} 2.0' in text
    assert f'millstream_staging_end{{stream="{stream}"}} 2.0' in text
    assert 'millstream_staging_refused_total{error="RecordGap"}' in text


def test_a_full_disk_is_503_and_passes(http: httpx.Client, stream: str) -> None:
    failpoints.arm("staging.before-write=enospc")
    try:
        answer = post(http, stream, LINES, **JSON_LINES)
    finally:
        failpoints.arm("")
    assert (answer.status_code, answer.json()["error"], answer.json()["retryable"]) == (503, "StagingFull", True)
    assert answer.headers["Retry-After"]
    assert post(http, stream, LINES, **JSON_LINES).json()["next"] == 2


def test_the_description_of_the_interface(http: httpx.Client) -> None:
    assert "/streams/{stream}/records" in http.get("/openapi.json").json()["paths"]


def test_a_failed_disk_shows_in_health(tmp_path: Path) -> None:
    with Server(tmp_path) as server, httpx.Client(base_url=server.http_url) as http:
        http.put("/streams/s", json=COLUMNS).raise_for_status()
        failpoints.arm("staging.before-fsync=error:1")
        try:
            assert post(http, "s", LINES, **JSON_LINES).status_code == 500
        finally:
            failpoints.arm("")
        assert http.get("/health").status_code == 503
        assert post(http, "s", LINES, **JSON_LINES).status_code == 500
        assert server.wait(1)
        assert server.failure is not None


def test_tokens(tmp_path: Path) -> None:
    tokens = {"web": "token-of-web", "till": "token-of-till"}
    with (
        Server(tmp_path, token="token-of-all", tokens=tokens) as server,
        httpx.Client(base_url=server.http_url) as http,
    ):
        every, web, wrong = ({"Authorization": f"Bearer {one}"} for one in ("token-of-all", "token-of-web", "nonsense"))
        assert http.get("/health").status_code == 200
        for path in ("/metrics", "/streams"):
            assert http.get(path).status_code == 401
            assert http.get(path, headers=wrong).status_code == 403
            assert http.get(path, headers=web).status_code == 403
            assert http.get(path, headers=every).status_code == 200
        assert http.put("/streams/s", json=COLUMNS).status_code == 401
        assert http.put("/streams/s", json=COLUMNS, headers=web).status_code == 200
        assert post(http, "s", LINES, **JSON_LINES).status_code == 401
        assert post(http, "s", LINES, **JSON_LINES, **wrong).status_code == 403
        assert post(http, "s", LINES, **JSON_LINES, **web).status_code == 200
        other = {**JSON_LINES, **web, "X-Source": "till", "X-First": "0"}
        assert http.post("/streams/s/records", content=LINES, headers=other).status_code == 403


def test_a_slow_client_is_sent_away(
    server: Server, monkeypatch: pytest.MonkeyPatch, http: httpx.Client, stream: str
) -> None:
    monkeypatch.setattr("millstream.staging.http._BODY_SECONDS", 0.2)
    host, port = server.http_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as link:
        head = [f"POST /streams/{stream}/records HTTP/1.1", "Host: x", "X-Source: a", "X-First: 0"]
        link.sendall("\r\n".join([*head, "Connection: close", "Content-Length: 100", "", "{"]).encode())
        link.settimeout(10)
        answer = b"".join(iter(lambda: link.recv(10_000), b"")).decode()
    assert "503" in answer.splitlines()[0]
    assert json.loads(answer.partition("\r\n\r\n")[2])["retryable"]


def test_values_survive(server: Server, http: httpx.Client, stream: str) -> None:
    http.put(f"/streams/{stream}", json={"l": "list<int>", "s": "struct<a:int,b:string>", "d": "date", "f": "double"})
    post(
        http, stream, '{"l": [1, null], "s": {"a": 1, "b": "x"}, "d": "2026-02-28", "f": 0.1}', **JSON_LINES
    ).raise_for_status()
    (row,) = rows(server, stream)
    assert (row["l"], row["s"], row["d"], row["f"]) == ([1, None], {"a": 1, "b": "x"}, datetime.date(2026, 2, 28), 0.1)
