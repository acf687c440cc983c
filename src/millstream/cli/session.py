"""A Spark session for a command that a person watches: nothing on the terminal but what we write."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark import java_gateway
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from millstream.errors import MillstreamError
from millstream.spark.session import local_session


def quiet_session(app_name: str, **conf: Any) -> SparkSession:
    """A local session whose JVM writes its warnings to a file that nobody reads, unless it does not start."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):  # what it tells us, we tell in our words
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    with tempfile.TemporaryFile() as log, _deaf_to_the_end():
        sys.stderr.flush()
        terminal = os.dup(2)
        os.dup2(log.fileno(), 2)  # the JVM inherits it
        try:
            return local_session(app_name, **{"spark.log.level": "OFF", **conf})
        except (PySparkException, Py4JError, ConnectionError) as problem:
            log.seek(0)
            said = log.read().decode(errors="replace").strip() or str(problem)
            raise MillstreamError(f"Spark does not start: {said.splitlines()[-1]}") from problem
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


@contextlib.contextmanager
def _deaf_to_the_end() -> Iterator[None]:
    """A JVM that is started inside does not hear SIGTERM: whoever ends a service sends it to all of its processes, and
    we need Spark to finish the micro-batch that runs. The JVM ends when our end of its input closes, however we end."""

    real: Any = subprocess.Popen

    def popen(*args: Any, preexec_fn: Any = None, **options: Any) -> Any:
        def prepare() -> None:
            if preexec_fn is not None:
                preexec_fn()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

        return real(*args, preexec_fn=prepare, **options)

    setattr(java_gateway, "Popen", popen)  # noqa: B010
    try:
        yield
    finally:
        setattr(java_gateway, "Popen", real)  # noqa: B010


@contextlib.contextmanager
def ending(spark: SparkSession) -> Iterator[None]:
    """Stops the session afterwards; says so if its JVM has gone away."""
    try:
        yield
    except (Py4JError, ConnectionError) as problem:
        raise MillstreamError("the JVM of Spark has ended; was it killed? Run the same command again") from problem
    finally:
        with contextlib.suppress(Py4JError, ConnectionError):
            spark.stop()
