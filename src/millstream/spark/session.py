"""A Spark session on this machine, set up for small micro-batches and for joins in Python workers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from ..errors import InputError, MillstreamError

JAVA_VERSIONS = (17, 21)
_VECTOR_MODULE = "jdk.incubator.vector"

# Checkpoints on a local disk: Spark's default manager starts some twenty processes for each micro-batch; with these two
# a micro-batch takes about half the time. Their rename is not atomic against a second writer, so never let two queries
# run on one checkpoint directory at the same time (Spark itself detects that later, and less reliably, with them).
_LOCAL_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}

# In its first minutes the JVM compiles Spark's code and ours, on cores that rows want too. Let rows go first, a bit: a
# thread of the compiler is as nice as a process of that niceness. With 15 it starves where all cores are busy, and a
# build of 20 million rows takes a tenth longer. Who is not root is warned of what is not meant here.
_POLITE_COMPILER = "-XX:ThreadPriorityPolicy=1 -XX:CompilerThreadPriority=4"


def local_session(
    app_name: str = "millstream", *, cores: int | str = 2, memory: str = "2g", **conf: Any
) -> SparkSession:
    """A session in this process with `cores` task slots ("*" for all) and `memory` for the JVM; quiet, without web UI.

    Further settings go in as `**{"spark.some.setting": value}` and win over those made here. The Python workers run
    this interpreter. Raises `MillstreamError` if there is no Java that Spark can use.
    """
    if cores != "*" and (not isinstance(cores, int) or isinstance(cores, bool) or cores < 1):
        raise InputError(f"cores must be a positive number or '*', not {cores!r}")
    os.environ["JAVA_HOME"] = find_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    java = [f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}", _POLITE_COMPILER]
    if os.geteuid() != 0:
        java.append("-XX:-PrintWarnings")
    settings = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        **_LOCAL_CHECKPOINTS,
        **conf,
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@cache
def find_java() -> str:
    """The home of a Java that Spark can use: JAVA_HOME, the one on the path, or one that the system has installed."""
    seen: list[str] = []
    for home in _java_homes():
        version, has_vector = _describe(home)
        if version in JAVA_VERSIONS and has_vector:
            return str(home)
        if version:
            seen.append(f"Java {version} at {home}" + ("" if has_vector else f" without {_VECTOR_MODULE}"))
    found = f"; found {', '.join(seen)}" if seen else ""
    raise MillstreamError(
        f"Spark needs Java 17 or 21 with the module {_VECTOR_MODULE}{found}. Install it (on Debian: "
        "apt-get install openjdk-17-jre-headless) or point JAVA_HOME at it"
    )


def _java_homes() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent
    yield from sorted(path for path in Path("/usr/lib/jvm").glob("*") if path.is_dir() and not path.is_symlink())


def _describe(home: Path) -> tuple[int, bool]:
    """Main version of the Java at `home` and whether it has the vector module; 0 if there is none."""
    try:
        listed = subprocess.run(
            [home / "bin" / "java", "--list-modules"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0, False
    version = re.search(r"^java\.base@(\d+)", listed, re.MULTILINE)
    return (int(version.group(1)) if version else 0), _VECTOR_MODULE in listed
