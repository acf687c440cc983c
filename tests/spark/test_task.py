"""The parts of the adapter that need no session: a task, its warm operator, pins, metrics, names of columns."""

from __future__ import annotations

import errno
import pickle
import threading

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField

from millstream import joins
from millstream.bench import adapter
from millstream.master import Master, build_local
from millstream.master.files import Store
from millstream.spark import join_metrics, pins, warm
from millstream.spark.metrics import CARRIER, NAMES, Carriers, observation_name
from millstream.spark.task import JoinTask

STREAM = pa.schema([pa.field("event", pa.int64(), nullable=False), pa.field("k", pa.int64())])


@pytest.fixture
def master(tmp_path):
    return build_local(
        pa.table({"k": list(range(1000)), "name": [f"n{i}" for i in range(1000)]}), tmp_path / "m", key="k"
    )


@pytest.fixture(autouse=True)
def cold():
    warm._kept.clear()
    yield
    warm._kept.clear()


def task_for(master, **changes):
    planned = {
        "path": master.path,
        "version": master.version,
        "follows": True,
        "algorithm": "auto",
        "on": (("k", "k"),),
        "how": "left",
        "memory": 4_000_000,
        "columns": ("name",),
        "direct": False,
        "stream": STREAM,
        "output": joins.output_schema(STREAM, master, on="k", how="left"),
        "carriers": Carriers(),
    }
    return pickle.loads(pickle.dumps(JoinTask(**{**planned, **changes})))


def batch(start, rows=100):
    return pa.RecordBatch.from_pydict(
        {"event": list(range(start, start + rows)), "k": [i % 700 for i in range(start, start + rows)]}, schema=STREAM
    )


def test_a_task_drains_and_ends_with_one_carrier(master):
    out = pa.Table.from_batches(task_for(master)(iter([batch(0), batch(100), batch(200, 0), batch(950)])))
    carriers = out.filter(out.column(CARRIER).is_valid())
    assert carriers.num_rows == 1
    counters = dict(zip(NAMES, carriers.column(CARRIER)[0].as_py(), strict=True))
    assert counters["rows_in"] == counters["rows_out"] == counters["matched"] == 300
    assert carriers.column("event").null_count == 0
    assert carriers.column("name").null_count == 1
    assert out.num_rows == 301


def test_counters_travel_in_a_text_of_the_results(master):
    carriers = Carriers.among([StructField("event", LongType()), StructField("name", StringType())])
    out = pa.Table.from_batches(task_for(master, carriers=carriers)(iter([batch(0)])))
    assert out.schema.names == ["event", "k", "name"]
    last = out.column("name")[-1].as_py()
    assert last.startswith(carriers.token)
    assert carriers.guard == "event"
    assert out.column("event").is_null().to_pylist() == [False] * 100 + [True]
    counters = dict(zip(NAMES, map(int, last.removeprefix(carriers.token).split(",")), strict=True))
    assert counters["rows_in"] == 100
    assert out.num_rows == 101


@pytest.mark.parametrize("fields", [[StructField("a", LongType())], [StructField("a", StringType("UTF8_LCASE"))]])
def test_counters_have_a_column_where_no_text_can_carry_them(fields):
    assert Carriers.among(fields) == Carriers()
    assert [entry.name for entry in Carriers.among(fields).fields] == [CARRIER]


def test_counters_are_those_of_the_task_alone(master):
    task = task_for(master)
    for _ in range(2):
        last = list(task(iter([batch(0)])))[-1]
        assert dict(zip(NAMES, last.column(CARRIER)[0].as_py(), strict=True))["rows_in"] == 100
    assert len(warm._kept) == 1


def test_an_empty_partition_opens_nothing(master):
    assert list(task_for(master, path="/nowhere")(iter([batch(0, 0)]))) == []


def test_an_operator_whose_task_fails_is_not_used_again(master):
    task = task_for(master)
    list(task(iter([batch(0)])))

    def broken():
        yield batch(100)
        raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        list(task(broken()))
    assert not warm._kept
    out = pa.Table.from_batches(task(iter([batch(500)])))
    assert sorted(out.column("event").to_pylist())[1:] == list(range(500, 600))


def test_an_operator_whose_results_are_not_wanted_to_the_end_is_not_used_again(master):
    results = task_for(master)(iter([batch(0), batch(100)]))
    next(results)
    results.close()
    assert not warm._kept


def test_a_new_version_replaces_the_old_operator(master):
    task = task_for(master)
    list(task(iter([batch(0)])))
    ((_, old),) = warm._kept.values()
    build_local(pa.table({"k": [1], "name": ["one"]}), master.path, key="k")
    list(task_for(master, version=2)(iter([batch(0)])))
    ((version, new),) = warm._kept.values()
    assert version == 2
    assert new is not old


def test_a_worker_stays_warm_for_few_joins_only(master):
    for memory in (4_000_000, 4_000_001, 4_000_002, 4_000_003):
        list(task_for(master, memory=memory)(iter([batch(0)])))
    assert len(warm._kept) == warm.KEPT


def test_a_pin_is_decided_once(master):
    assert pins.pinned_version(master.path, "q", 0, otherwise=1) == 1
    build_local(pa.table({"k": [1], "name": ["one"]}), master.path, key="k")
    assert Master.latest_version(master.path) == 2
    assert pins.pinned_version(master.path, "q", 0, otherwise=1) == 1
    assert pins.pinned_version(master.path, "q", 1, otherwise=1) == 2
    assert pins.pinned_version(master.path, "other", 0, otherwise=1) == 2


def test_tasks_that_start_together_agree(master, monkeypatch):
    turn = iter(range(1, 100))
    monkeypatch.setattr(Master, "latest_version", staticmethod(lambda path: next(turn)))
    seen, start = [], threading.Barrier(8)

    def one():
        start.wait()
        seen.append(pins.pinned_version(master.path, "q", 5, otherwise=1))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1


def test_old_pins_are_forgotten(master):
    for number in range(131):
        pins.pinned_version(master.path, "q", number, otherwise=1)
    assert sorted(map(int, Store(master.path).names("pins/q"))) == list(range(30, 131))


def test_a_torn_pin_is_written_again(master):
    store = Store(master.path)
    store.make_folder("pins/q")
    with store.open_output("pins/q/7"):
        pass
    assert pins.pinned_version(master.path, "q", 7, otherwise=9) == 1
    assert store.read("pins/q/7") == b"1"


def test_a_directory_that_cannot_be_written_keeps_to_the_planned_version(master, monkeypatch):
    def refuse(self, name, *content):
        raise PermissionError(errno.EACCES, "Permission denied", name)

    monkeypatch.setattr(Store, "create", refuse)
    assert pins.pinned_version(master.path, "q", 0, otherwise=41) == 41


def test_names_of_observations_never_clash():
    names = [observation_name("/data/some-master/") for _ in range(3)]
    assert names == ["millstream.some-master", "millstream.some-master.2", "millstream.some-master.3"]


def test_metrics_are_read_whichever_way_they_are_wrapped():
    counters = {name: number for number, name in enumerate(NAMES)}
    fields = [{"name": name} for name in counters]
    inner = {"values": list(counters.values()), "schema": {"fields": fields}}
    connect = {"values": [inner], "schema": {"fields": [{"name": "join"}]}}
    progress = {"observedMetrics": {"a": {"join": counters}, "b": connect, "c": {"mine": 3}, "d": {"join": None}}}
    assert join_metrics(progress) == {"a": counters, "b": counters}


def test_the_identity_function_is_compared_before_and_behind() -> None:
    rates = adapter.Rates(
        budget=0.1,
        rows=10,
        batch_rows=5,
        identity=[[100.0, 100.0], [200.0, 200.0], [100.0, 100.0]],  # the machine was faster in the middle
        ours=[[75.0, 75.0], [90.0, 90.0]],
        counters={},
    )
    assert adapter.ratios(rates) == [0.5, 0.6]
    (check,) = adapter.checks([rates])
    assert (check.found, check.passed) == ("55%", False)
