"""A Spark session for a command that a person watches: nothing on the terminal but what we write."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from typing import Any

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from millstream.errors import MillstreamError
from millstream.spark.session import local_session


def quiet_session(app_name: str, **conf: Any) -> SparkSession:
    """A local session whose JVM writes its warnings to a file that nobody reads, unless it does not start."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):  # what it tells us, we tell in our words
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    with tempfile.TemporaryFile() as log:
        sys.stderr.flush()
        terminal = os.dup(2)
        os.dup2(log.fileno(), 2)  # the JVM inherits it
        try:
            return local_session(app_name, **{"spark.log.level": "OFF", **conf})
        except PySparkException as problem:
            log.seek(0)
            said = log.read().decode(errors="replace").strip() or str(problem)
            raise MillstreamError(f"Spark does not start: {said.splitlines()[-1]}") from problem
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
