"""Loading through the web service, on each database: modes against plain SQL over all rows, once, ledger, schema."""

from __future__ import annotations

import datetime
import decimal
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
import pytest

from millstream.errors import BatchConflict, PartRefused, PartsMissing, TableMismatch, UnknownTable
from millstream.warehouse import Client, Server, TableSpec, connect
from postgres import Postgres
from warehousing import COLUMNS, ORDERS, numbers, rows, sales


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(params=["duckdb", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "duckdb":
        return str(tmp_path / "warehouse.duckdb")
    server: Postgres = request.getfixturevalue("postgres")
    name = f"test_{random.getrandbits(48)}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.dsn.replace("/postgres", f"/{name}").replace(f"//{name}@", "//postgres@")


@pytest.fixture
def start(database: str, tmp_path: Path) -> Iterator[Callable[[], Client]]:
    """Starts a server on the database, stopping the one before; a client of it."""
    running: list[Server] = []

    def again() -> Client:
        while running:
            running.pop().close()
        running.append(Server(database, parts=tmp_path / "parts"))
        return connect(running[-1].url, patience=5)

    yield again
    while running:
        running.pop().close()


@pytest.fixture
def client(start: Callable[[], Client]) -> Client:
    return start()


def test_a_batch_shows_after_its_commit_and_once(client: Client) -> None:
    client.create(ORDERS)
    client.part("orders", flow="f", batch=0, part="a", data=sales(0, 5, age=0.5))
    client.part("orders", flow="f", batch=0, part="orphan", data=sales(1000, 5))
    client.part("orders", flow="f", batch=0, part="b", data=sales(5, 5, age=0.5))
    assert numbers(client) == []
    first = client.commit("orders", flow="f", batch=0, parts=["a", "b"], counts={"in": 12, "rejected": 2})
    assert (first.rows, first.duplicate, first.state) == (10, False, "committed")
    assert first.p50 == pytest.approx(0.5, abs=0.4)
    assert numbers(client) == list(range(10))

    again = client.commit("orders", flow="f", batch=0, parts=["a", "b"])
    assert (again.rows, again.duplicate, again.committed_at) == (10, True, first.committed_at)
    assert client.load("orders", flow="f", batch=0, data=sales(50, 5)).duplicate
    assert client.load("orders", flow="g", batch=0, data=sales(10, 1)).duplicate is False
    assert numbers(client) == list(range(11))

    (entry, *_) = client.ledger("f")
    assert (entry["rows"], entry["parts"], entry["counts"]) == (10, 2, {"in": 12, "rejected": 2})
    assert rows(client, "SELECT rows_in, loaded, rejected, balanced FROM millstream.balance") == [(12, 10, 2, True)]
    (fresh, _) = client.freshness(bound=0.1)
    assert (fresh.flow, fresh.rows, fresh.above) == ("f", 10, 1.0)


def test_the_same_after_a_restart(start: Callable[[], Client]) -> None:
    client = start()
    client.create(ORDERS)
    client.load("orders", flow="f", batch=3, data=sales(0, 3))
    client.part("orders", flow="f", batch=4, part="a", data=sales(3, 3))
    client = start()
    assert client.tables() == {"orders": ORDERS}
    assert client.load("orders", flow="f", batch=3, data=sales(0, 3)).duplicate
    assert client.commit("orders", flow="f", batch=4, parts=["a"]).rows == 3
    assert numbers(client) == list(range(6))


def test_without_waiting(client: Client) -> None:
    client.create(ORDERS)
    assert client.status("orders", flow="f", batch=0) is None
    for batch in range(5):
        accepted = client.load("orders", flow="f", batch=batch, data=sales(10 * batch, 10), wait=False)
        assert accepted.state in ("accepted", "committed")
    receipts = [client.wait("orders", flow="f", batch=batch) for batch in range(5)]
    assert [(receipt.state, receipt.rows) for receipt in receipts] == [("committed", 10)] * 5
    times = [receipt.committed_at for receipt in receipts]
    assert times == sorted(times, key=lambda at: at or datetime.datetime.min)
    assert numbers(client) == list(range(50))
    assert client.health()["staged_bytes"] == 0


def test_an_empty_batch_is_recorded(client: Client) -> None:
    client.create(ORDERS)
    assert client.commit("orders", flow="f", batch=0, parts=[]).rows == 0
    assert client.load("orders", flow="f", batch=1, data=sales(0, 0)).rows == 0
    assert client.commit("orders", flow="f", batch=0, parts=[]).duplicate
    assert [entry["rows"] for entry in client.ledger()] == [0, 0]


def test_upserts_end_as_the_last_row_of_each_key(client: Client) -> None:
    schema = pa.schema([*COLUMNS, pa.field("_deleted", pa.bool_())])
    client.create(TableSpec("stock", schema, mode="upsert", key=["id", "shop"]))
    chance = random.Random(20260301)
    model: dict[tuple[object, object], float] = {}
    sequence = 0
    for batch in range(6):
        found = []
        for _ in range(200):
            key = (chance.choice([None, *range(20)]), chance.choice(["a", "b", None]))
            gone = chance.random() < 0.2
            found.append((*key, float(sequence), "s", sequence, None, gone))
            model.pop(key, None)
            if not gone:
                model[key] = float(sequence)
            sequence += 1
        chance.shuffle(found)  # the number of a row counts, not its place
        table = pa.Table.from_arrays(
            [pa.array(column, entry.type) for column, entry in zip(zip(*found, strict=True), schema, strict=True)],
            schema=schema,
        )
        client.load("stock", flow="f", batch=batch, data=table)
        there = {(row[0], row[1]): row[2] for row in rows(client, "SELECT id, shop, amount FROM stock")}
        assert there == model
    assert rows(client, "SELECT count(*) FROM stock") == [(len(model),)]


def test_an_operation_column_deletes_too_and_order_decides_without_numbers(client: Client) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("_op", pa.string())])
    client.create(TableSpec("names", schema, mode="upsert", key="id"))
    client.load(
        "names",
        flow="f",
        batch=0,
        data=pa.table([[1, 1, 2, 3], list("abcd"), [None, "U", "I", "insert"]], schema=schema),
    )
    client.load(
        "names",
        flow="f",
        batch=1,
        data=pa.table([[2, 3, 3, 9], list("xyzw"), ["D", "delete", "I", "d"]], schema=schema),
    )
    assert sorted(rows(client, "SELECT id, name FROM names")) == [(1, "b"), (3, "z")]


AGGREGATES = {
    "n": "count(*)",
    "given": "count(amount)",
    "total": "sum(amount)",
    "least": "min(amount)",
    "most": "max(amount)",
    "mean": "avg(amount)",
    "pieces": "sum(quantity)",
    "cost": "sum(price)",
    "mean_cost": "avg(price)",
    "last": "max(shop)",
    "latest": "max(day)",
}


@pytest.mark.parametrize("key", [["shop"], ["shop", "id"], []], ids=["one", "two", "none"])
def test_aggregates_merge_to_what_sql_says_over_all_rows(client: Client, key: list[str]) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("shop", pa.string()),
            ("amount", pa.float64()),
            ("quantity", pa.int32()),
            ("price", pa.decimal128(9, 2)),
            ("day", pa.date32()),
        ]
    )
    client.create(TableSpec("view", schema, mode="aggregate", key=key, aggregates=AGGREGATES))
    chance = random.Random(11)
    whole = []
    for batch in range(5):
        count = 300 if batch != 2 else 1

        def some(make: Callable[[], object], count: int = count) -> list[object]:
            return [None if chance.random() < 0.2 else make() for _ in range(count)]

        columns = [
            some(lambda: chance.randrange(4)),
            some(lambda: chance.choice(["a", "b", "é", ""])),
            some(lambda: chance.randrange(-1000, 1000) / 8),
            some(lambda: chance.randrange(100)),
            some(lambda: decimal.Decimal(chance.randrange(-10_000, 10_000)).scaleb(-2)),
            some(lambda: datetime.date(2026, 1, 1 + chance.randrange(28))),
        ]
        table = pa.table(
            [pa.array(column, entry.type) for column, entry in zip(columns, schema, strict=True)], schema=schema
        )
        whole.append(table)
        client.load("view", flow="f", batch=batch, data=table)
    everything = pa.concat_tables(whole)
    chosen = ", ".join([*key, *(f"{text} AS {name}" for name, text in AGGREGATES.items())])
    grouped = f" GROUP BY {', '.join(key)}" if key else ""
    with duckdb.connect() as oracle:
        oracle.register("everything", everything)
        expected = oracle.execute(f"SELECT {chosen} FROM everything{grouped}").fetchall()
    found = rows(client, f"SELECT {', '.join([*key, *AGGREGATES])} FROM view")

    def plain(line: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(round(float(one), 9) if isinstance(one, float | int | decimal.Decimal) else one for one in line)

    assert sorted(map(repr, map(plain, found))) == sorted(map(repr, map(plain, expected)))


def test_values_survive(client: Client) -> None:
    schema = pa.schema(
        [
            ("id", pa.int32()),
            ("flag", pa.bool_()),
            ("text", pa.string()),
            ("raw", pa.binary()),
            ("small", pa.float32()),
            ("real", pa.float64()),
            ("price", pa.decimal128(38, 9)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("tiny", pa.int8()),
        ]
    )
    at = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.UTC)
    lines = [
        [1, True, 'quote " comma , \\ line\nend\r', b"\0\xff\\", 0.5, 0.1,
         decimal.Decimal("-12345678901234567890123456789.000000001"),
         datetime.date(1, 1, 1), at, at.replace(tzinfo=None), -128],
        [2, False, "", b"", float("-inf"), float("nan"), decimal.Decimal(0), datetime.date(9999, 12, 31),
         at.replace(year=9999), at.replace(year=9999, tzinfo=None), 127],
        [3, *[None] * 10],
        [4, None, "\\N", None, None, 5e-324, None, None, None, None, None],
        [5, None, "NULL", None, None, 1.7976931348623157e308, None, None, None, None, None],
    ]  # fmt: skip
    table = pa.table(
        [pa.array(column, entry.type) for column, entry in zip(zip(*lines, strict=True), schema, strict=True)],
        schema=schema,
    )
    client.create(TableSpec("kinds", schema))
    client.load("kinds", flow="f", batch=0, data=table)
    found = client.query("SELECT * FROM kinds ORDER BY id")
    for name in schema.names:
        left, right = found.column(name).to_pylist(), table.column(name).to_pylist()
        assert repr(left) == repr(right), name


def test_nested_columns(client: Client) -> None:
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string())), ("place", pa.struct([("x", pa.int64())]))])
    client.create(TableSpec("nested", schema))
    table = pa.table([[1, 2], [["a", None], None], [{"x": 1}, {"x": None}]], schema=schema)
    client.load("nested", flow="f", batch=0, data=table)
    found = rows(client, "SELECT * FROM nested ORDER BY id")
    assert found[0] in [(1, ["a", None], {"x": 1}), (1, '["a", null]', '{"x": 1}')]
    assert found[1][1] is None


def test_new_columns_are_added_and_others_refused(client: Client) -> None:
    narrow = TableSpec("t", pa.schema([("id", pa.int64())]))
    client.create(narrow)
    client.load("t", flow="f", batch=0, data=pa.table({"id": [1]}))
    wide = TableSpec("t", pa.schema([("id", pa.int64()), ("note", pa.string())]))
    assert client.create(wide).schema.names == ["id", "note"]
    assert client.create(narrow).schema.names == ["id", "note"]
    client.load("t", flow="f", batch=1, data=pa.table({"id": [2], "note": ["x"]}))
    client.load("t", flow="old", batch=1, data=pa.table({"id": [3]}))
    assert sorted(rows(client, "SELECT * FROM t")) == [(1, None), (2, "x"), (3, None)]
    with pytest.raises(TableMismatch, match="id int64, the flow sends string"):
        client.create(TableSpec("t", pa.schema([("id", pa.string())])))
    with pytest.raises(TableMismatch, match="the table has int64, the part float64"):
        client.load("t", flow="f", batch=2, data=pa.table({"id": [1.5]}))
    with pytest.raises(TableMismatch, match="price"):
        client.load("t", flow="f", batch=2, data=pa.table({"id": [1], "price": [2]}))
    with pytest.raises(TableMismatch, match="case"):
        client.create(TableSpec("T", pa.schema([("id", pa.int64())])))
    assert rows(client, "SELECT count(*) FROM t") == [(3,)]


def test_a_table_that_somebody_else_made(start: Callable[[], Client], database: str) -> None:
    if "://" in database:
        with psycopg.connect(database) as connection:
            connection.execute("CREATE TABLE stock (id BIGINT, amount DOUBLE PRECISION)")
            connection.execute("INSERT INTO stock VALUES (1, 1), (1, 2)")
    else:
        with duckdb.connect(database) as connection:
            connection.execute("CREATE TABLE stock (id BIGINT, amount DOUBLE)")
            connection.execute("INSERT INTO stock VALUES (1, 1)")
    client = start()
    with pytest.raises(TableMismatch, match="amount"):
        client.create(TableSpec("stock", pa.schema([("id", pa.int64()), ("amount", pa.string())])))
    client.create(TableSpec("stock", pa.schema([("id", pa.int64()), ("shop", pa.string())])))
    client.load("stock", flow="f", batch=0, data=pa.table({"id": [2], "shop": ["b"]}))
    assert rows(client, "SELECT id, amount, shop FROM stock WHERE id = 2") == [(2, None, "b")]


def test_missing_parts_and_tables(client: Client) -> None:
    with pytest.raises(UnknownTable, match="there are: none"):
        client.part("orders", flow="f", batch=0, part="a", data=sales(0, 1))
    client.create(ORDERS)
    with pytest.raises(PartsMissing) as caught:
        client.commit("orders", flow="f", batch=0, parts=["a", "b"])
    assert caught.value.details["parts"] == ["a", "b"]
    assert client.status("orders", flow="f", batch=0) is None


def test_a_batch_of_another_query_is_no_duplicate(client: Client) -> None:
    client.create(ORDERS)
    assert not client.load("orders", flow="f", batch=0, data=sales(0, 2), origin="one").duplicate
    assert client.load("orders", flow="f", batch=0, data=sales(0, 2), origin="one").duplicate
    assert client.load("orders", flow="f", batch=0, data=sales(0, 2)).duplicate
    with pytest.raises(BatchConflict, match="checkpoint"):
        client.load("orders", flow="f", batch=0, data=sales(2, 2), origin="two")
    assert numbers(client) == [0, 1]


def test_many_at_once(client: Client) -> None:
    client.create(ORDERS)
    client.create(TableSpec("totals", COLUMNS, mode="aggregate", aggregates={"n": "count(*)"}))
    problems: list[BaseException] = []

    def work(flow: int) -> None:
        try:
            for batch in range(5):
                for _ in range(2):  # each batch twice
                    data = sales(1000 * flow + 10 * batch, 10)
                    client.load("orders", flow=f"f{flow}", batch=batch, data=data)
                    client.load("totals", flow=f"f{flow}", batch=batch, data=data)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(flow,)) for flow in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert numbers(client) == [1000 * flow + number for flow in range(6) for number in range(50)]
    assert rows(client, "SELECT n FROM totals") == [(300,)]


def test_a_sum_that_does_not_fit_fails_whole(client: Client) -> None:
    schema = pa.schema([("id", pa.int64())])
    client.create(TableSpec("sums", schema, mode="aggregate", aggregates={"total": "sum(id)"}))
    client.load("sums", flow="f", batch=0, data=pa.table({"id": [1 << 62]}))
    with pytest.raises(PartRefused):
        client.load("sums", flow="f", batch=1, data=pa.table({"id": [1 << 62]}))
    assert rows(client, "SELECT total FROM sums") == [(1 << 62,)]
    assert len(client.ledger()) == 1


def test_text_that_postgres_cannot_hold_is_named(start: Callable[[], Client], database: str) -> None:
    client = start()
    client.create(TableSpec("texts", pa.schema([("word", pa.string())])))
    data = pa.table({"word": ["fine", "a\0b"]})
    if "://" in database:
        with pytest.raises(PartRefused, match="'word'"):
            client.load("texts", flow="f", batch=0, data=data)
        assert rows(client, "SELECT count(*) FROM texts") == [(0,)]
    else:
        client.load("texts", flow="f", batch=0, data=data)
        assert rows(client, "SELECT word FROM texts") == [("fine",), ("a\0b",)]
