"""Build, batch join and streaming join in a session of any kind; prints what happened as JSON.

Runs in a process of its own, for a classic and a Spark Connect session cannot live in one:
    everything.py FOLDER connect
    everything.py FOLDER spark://host:port
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import Observation, SparkSession

import millstream as ms
from millstream.spark import join_metrics, workers


def session(where: str) -> SparkSession:
    if where == "connect":
        return SparkSession.builder.remote("local[2]").getOrCreate()
    builder = SparkSession.builder.master(where).appName("everything")
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "600m",
        "spark.executor.cores": "1",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def pids(batches):
    """The pid and parent's parent (the executor) of the Python process that a task runs in."""
    import os

    import psutil
    import pyarrow as pa

    for _ in batches:
        pass
    executor = psutil.Process(os.getppid()).ppid()
    yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "executor": [executor]})


def main(folder: Path, where: str) -> None:
    workers.POOLS = 1  # starting Python workers takes most of the time
    spark = session(where)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    found: dict[str, object] = {"kind": type(spark).__module__}
    found["executors"] = sorted(
        {row.executor for row in spark.range(0, 8, 1, 8).mapInArrow(pids, "pid long, executor long").collect()}
    )

    rows = spark.range(4000).selectExpr("concat('k', id % 3000) as k", "id as row", "timestamp_micros(id) as at")
    stream = spark.range(0, 5000, 1, 4).selectExpr("id as event", "concat('k', (id * id) % 4000) as k")
    master = ms.build_master(rows, folder / "m", "k")
    found["master"] = [master.rows, master.version]
    for how in ("left", "left_semi"):
        seen = Observation(how)
        ours = ms.join(stream, master, on="k", how=how, memory="8MB", metrics=seen)
        theirs = stream.join(rows, "k", how).select(*ours.columns)
        left, right = (sorted(repr(tuple(row)) for row in df.collect()) for df in (ours, theirs))
        found[how] = {"same": left == right, "rows": len(left), "metrics": join_metrics(seen)[how]}

    for number in range(3):
        stream.coalesce(1).write.parquet(str(folder / "source" / f"{number}.parquet"))
    source = (
        spark.readStream.schema(stream.schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "source" / "*"))
    )
    joined = ms.join(source, master, on="k", how="left", memory="8MB")
    query = (
        joined.writeStream.format("parquet")
        .option("path", str(folder / "result"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    found["stream"] = {
        "rows": spark.read.parquet(str(folder / "result")).count(),
        "expected": 3 * stream.join(rows, "k", "left").count(),
        "metrics": [join_metrics(progress) for progress in batches],
    }
    found["pins"] = sorted(int(pin.name) for pin in (folder / "m" / "pins").glob("*/*"))
    print("RESULT " + json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
