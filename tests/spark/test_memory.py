"""What a worker's process takes, measured from outside, against the budget it was given."""

from __future__ import annotations

import threading

import psutil
import pytest

import millstream as ms
from millstream.spark import join_metrics, workers

BUDGET = 48_000_000
ALLOWED = BUDGET + 64_000_000


def python_workers() -> dict[int, int]:
    """Resident bytes of each Python worker of our Spark, by pid; a worker's parent is a Python daemon."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name().startswith("python") and process.parent().name().startswith("python"):
                found[process.pid] = process.memory_info().rss
        except (psutil.Error, AttributeError):
            continue
    return found


class Watch:
    """Samples the workers' resident sets until it is left; `peak` by pid."""

    def __enter__(self):
        self.peak: dict[int, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def _sample(self):
        while not self._stop.wait(0.02):
            for pid, rss in python_workers().items():
                self.peak[pid] = max(self.peak.get(pid, 0), rss)

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join()


@pytest.fixture(scope="module")
def large(spark, tmp_path_factory):
    rows = spark.range(1_500_000).selectExpr(
        "id as k", "sha2(cast(id as string), 256) as text", "id * 1.5 as price", "concat('name of ', id) as name"
    )
    master = ms.build_master(rows, tmp_path_factory.mktemp("large") / "m", "k")
    assert master.statistics.bytes > 3 * BUDGET
    return master


@pytest.mark.parametrize("algorithm", ["auto", "moij", pytest.param("meshjoin", marks=pytest.mark.slow)])
def test_growth_of_the_resident_set_stays_below_the_budget(spark, tmp_path, monkeypatch, large, algorithm):
    monkeypatch.setattr(workers, "POOL", f"POOL_OF_{algorithm}")  # workers that nobody has used yet
    others = set(python_workers())
    small = ms.build_master(spark.range(100).selectExpr("id as k", "'x' as name"), tmp_path / "small", "k")
    warm_up = spark.range(0, 1000, 1, 2).selectExpr("id as k")
    ms.join(warm_up, small, on="k", memory="2MB", algorithm=algorithm).write.format("noop").mode("overwrite").save()
    before = {pid: rss for pid, rss in python_workers().items() if pid not in others}
    stream = spark.range(0, 400_000, 1, 2).selectExpr(
        "pmod(hash(id), 1600000) as k", "id as event", "'some text' as note"
    )
    seen = ms.spark.metrics.Observation()
    with Watch() as watch:
        ms.join(stream, large, on="k", how="left", memory=BUDGET, algorithm=algorithm, metrics=seen).write.format(
            "noop"
        ).mode("overwrite").save()
    (counters,) = join_metrics(seen).values()
    assert counters["rows_in"] == 400_000
    assert counters["memory_peak"] <= BUDGET
    assert counters["memory_peak"] > BUDGET // 3, "the test should fill the budget"
    usual = min(before.values())
    growth = {pid: peak - before.get(pid, usual) for pid, peak in watch.peak.items() if pid not in others}
    assert max(growth.values()) > BUDGET // 4
    assert max(growth.values()) < ALLOWED, f"{growth} with {counters}"
