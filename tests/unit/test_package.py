"""`import millstream` offers its names lazily, and loads Spark only for those that need it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import millstream as ms

WITHOUT_SPARK = "Master MillstreamError errors flow joins master source staging tuning warehouse workloads".split()
WITH_SPARK = ["Flow", "build_master", "join", "spark"]


def spark_loaded_by(code: str) -> bool:
    """Whether a fresh Python has loaded pyspark after running the code."""
    probe = f"import sys\n{code}\nprint('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() == "True"


def test_all_names_are_there() -> None:
    assert set(ms.__all__) == {"__version__", *WITHOUT_SPARK, *WITH_SPARK}
    for name in ms.__all__:
        assert getattr(ms, name) is not None
    assert set(ms.__all__) <= set(dir(ms))


def test_names_are_what_they_say() -> None:
    from millstream.spark.build import build_master
    from millstream.spark.join import join

    assert ms.build_master is build_master
    assert ms.join is join
    assert ms.joins.__name__ == "millstream.joins"
    assert ms.master.__name__ == "millstream.master"
    assert ms.Master is ms.master.Master


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'grind'"):
        _ = ms.grind


def test_importing_millstream_loads_no_spark() -> None:
    uses = "\n".join(f"millstream.{name}" for name in WITHOUT_SPARK)
    assert not spark_loaded_by(f"import millstream\n{uses}")


def test_the_command_line_starts_without_spark() -> None:
    assert not spark_loaded_by("from millstream.cli import build_parser\nbuild_parser()")


def test_ms_join_loads_spark() -> None:
    assert spark_loaded_by("import millstream\nmillstream.join")
