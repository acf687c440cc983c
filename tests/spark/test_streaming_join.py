"""`millstream.join` on streaming DataFrames: results, progress, warm workers, versions, replays."""

from __future__ import annotations

import shutil
from collections import defaultdict

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import millstream as ms
from millstream.spark import join_metrics, workers


class Sink:
    """Collects each micro-batch on the driver."""

    def __init__(self):
        self.batches = defaultdict(list)

    def __call__(self, df, batch):
        self.batches[batch].append(sorted((tuple(row) for row in df.collect()), key=repr))

    def rows(self):
        return sorted(repr(row) for runs in self.batches.values() for row in runs[-1])


def run(df, checkpoint, sink=None):
    """Run a query over all that there is; the sink and the progress of its batches."""
    sink = sink or Sink()
    query = (
        df.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sink, [progress for progress in query.recentProgress if progress.numInputRows]


def numbers(spark, rows=3000, keys=800):
    return spark.range(rows).selectExpr("id as event", f"if(id % 50 = 0, null, (id * id) % {keys}) as k")


def labels(spark, label, rows=600):
    return spark.range(rows).selectExpr("id % 500 as k", f"concat('{label}', id) as name")


@pytest.mark.parametrize("how", ["inner", "left", "left_semi", "left_anti"])
def test_stream_equals_batch_and_progress_shows_counters(spark, tmp_path, stream_of, how):
    rows = labels(spark, "n")
    master = ms.build_master(rows, tmp_path / "labels", "k")
    batches = [numbers(spark, 3000), numbers(spark, 10, 5), numbers(spark, 2000)]
    sink, progress = run(ms.join(stream_of(batches), master, on="k", how=how, memory="4MB"), tmp_path / "checkpoint")
    columns = ["event", "k", "name"] if how in ("inner", "left") else ["event", "k"]
    expected = [tuple(row) for df in batches for row in df.join(rows, "k", how).select(*columns).collect()]
    assert sink.rows() == sorted(map(repr, expected))
    assert len(progress) == 3
    for seen, batch, size in zip(progress, range(3), (3000, 10, 2000), strict=True):
        ((name, counters),) = join_metrics(seen).items()
        assert name.startswith("millstream.labels")
        assert counters["rows_in"] == size == counters["matched"] + counters["unmatched"]
        assert counters["rows_out"] == len(sink.batches[batch][0])
        assert counters["memory_peak"] <= counters["memory_budget"] == 4_000_000


def test_workers_stay_warm(spark, tmp_path, stream_of, monkeypatch):
    monkeypatch.setattr(workers, "POOL", "WARM")  # workers that nobody has used yet, so that the same one comes again
    master = ms.build_master(labels(spark, "n", 500), tmp_path / "m", "k")
    same = numbers(spark, 2000, 500)
    _, progress = run(ms.join(stream_of([same] * 4), master, on="k", memory="4MB"), tmp_path / "checkpoint")
    counters = [join_metrics(seen).popitem()[1] for seen in progress]
    assert counters[0]["disk_reads"] > 0
    assert counters[-1]["disk_reads"] == 0
    assert counters[-1]["cache_hits"] == counters[-1]["matched"] > 0


def test_replay_sees_the_version_it_saw_first(spark, tmp_path, stream_of):
    path, checkpoint = tmp_path / "m", tmp_path / "checkpoint"
    master = ms.build_master(labels(spark, "old"), path, "k")
    stream = stream_of([numbers(spark, 500)])
    joined = ms.join(stream, master, on="k", memory="4MB")
    first, _ = run(joined, checkpoint)
    ms.build_master(labels(spark, "new"), path, "k")
    (checkpoint / "commits" / "0").unlink()  # as after a crash before the batch was committed
    stream_of([numbers(spark, 700)])
    again, progress = run(ms.join(stream, ms.Master.open(path), on="k", memory="4MB"), checkpoint)
    assert again.batches[0] == first.batches[0]
    assert all(row[2].startswith("old") for row in again.batches[0][0])
    assert all(row[2].startswith("new") for row in again.batches[1][0])
    assert [join_metrics(seen).popitem()[1]["version"] for seen in progress] == [1, 2]


def test_a_running_query_follows_the_master(spark, tmp_path, stream_of):
    path = tmp_path / "m"
    ms.build_master(labels(spark, "v1-"), path, "k")

    class Rebuild(Sink):
        def __call__(self, df, batch):
            super().__call__(df, batch)
            wider = labels(spark, f"v{batch + 2}-").withColumn("more", F.lit(1))
            ms.build_master(wider, path, "k")

    sink, _ = run(ms.join(stream_of([numbers(spark, 100)] * 3), path, on="k", memory="4MB"), tmp_path / "c", Rebuild())
    for batch in range(3):
        assert {row[2][:3] for row in sink.batches[batch][0]} == {f"v{batch + 1}-"}


def test_a_changed_type_stops_the_query_with_a_clear_error(spark, tmp_path, stream_of):
    path = tmp_path / "m"
    master = ms.build_master(labels(spark, "n"), path, "k")
    joined = ms.join(stream_of([numbers(spark, 100)]), master, on="k", memory="4MB")
    ms.build_master(labels(spark, "n").withColumn("name", F.length("name")), path, "k")
    with pytest.raises(
        StreamingQueryException, match=r"column 'name' .* int32 in version 2.*planned with string.*restart"
    ):
        run(joined, tmp_path / "checkpoint")
    ms.build_master(labels(spark, "n").withColumnRenamed("name", "label"), path, "k")
    joined = ms.join(stream_of([numbers(spark, 100)], "source2"), ms.Master.open(path, version=1), on="k", memory="4MB")
    with pytest.raises(StreamingQueryException, match="'name' in columns= is not in the master"):
        run(joined, tmp_path / "checkpoint2")


def test_two_joins_in_one_query(spark, tmp_path, stream_of):
    one = ms.build_master(labels(spark, "a"), tmp_path / "one", "k")
    two = ms.build_master(labels(spark, "b", 300), tmp_path / "two", "k")
    batches = [numbers(spark, 400)] * 3
    joined = ms.join(stream_of(batches), one, on="k", how="left", memory="4MB")
    joined = ms.join(joined.withColumnRenamed("name", "first"), two, on="k", how="left", memory="4MB", metrics="second")
    joined = ms.join(joined.withColumnRenamed("name", "then"), one, on="k", how="left", memory="4MB")
    sink, progress = run(joined, tmp_path / "checkpoint")
    right = [
        labels(spark, label, rows).withColumnRenamed("name", name)
        for label, rows, name in (("a", 600, "first"), ("b", 300, "then"), ("a", 600, "name"))
    ]
    expected = batches[0]
    for side in right:
        expected = expected.join(side, "k", "left")
    assert sink.rows() == sorted(map(repr, 3 * [tuple(row) for row in expected.select(*joined.columns).collect()]))
    names = set(join_metrics(progress[-1]))
    assert len(names) == 3
    assert "second" in names


def test_join_inside_foreach_batch_is_pinned_too(spark, tmp_path, stream_of):
    path, checkpoint = str(tmp_path / "m"), tmp_path / "checkpoint"
    ms.build_master(labels(spark, "old"), path, "k")

    class Join(Sink):
        def __call__(self, df, batch):
            super().__call__(ms.join(df, path, on="k", memory="4MB"), batch)

    stream = stream_of([numbers(spark, 200)])
    first, _ = run(stream, checkpoint, Join())
    ms.build_master(labels(spark, "new"), path, "k")
    (checkpoint / "commits" / "0").unlink()
    again, _ = run(stream, checkpoint, Join())
    assert again.batches == first.batches


def test_watermarks_pass_through(spark, tmp_path, stream_of):
    master = ms.build_master(labels(spark, "n"), tmp_path / "m", "k")
    hours = [
        numbers(spark, 100).withColumn("at", F.lit(f"2024-01-01 {hour:02d}:00:00").cast("timestamp"))
        for hour in (1, 2, 4, 6)
    ]
    stream = stream_of(hours).withWatermark("at", "1 minute")
    joined = ms.join(stream, master, on="k", how="left", memory="4MB")
    counts = joined.groupBy(F.window("at", "1 hour")).count()
    query = (
        counts.writeStream.outputMode("append")
        .format("memory")
        .queryName("windows")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    closed = [row["count"] for row in spark.table("windows").collect()]
    assert len(closed) >= 2
    assert set(closed) == {joined_rows(spark, hours[0])}


def joined_rows(spark, batch):
    return batch.join(labels(spark, "n"), "k", "left").count()


def test_a_lost_pin_directory_costs_nothing_but_the_pins(spark, tmp_path, stream_of):
    path, checkpoint = tmp_path / "m", tmp_path / "checkpoint"
    master = ms.build_master(labels(spark, "n"), path, "k")
    stream = stream_of([numbers(spark, 100)])
    run(ms.join(stream, master, on="k", memory="4MB"), checkpoint)
    shutil.rmtree(path / "pins")
    stream_of([numbers(spark, 100)])
    sink, _ = run(ms.join(stream, master, on="k", memory="4MB"), checkpoint)
    assert len(sink.batches[1][0]) > 0
    assert [pin.read_text() for pin in (path / "pins").glob("*/*")] == ["1"]
