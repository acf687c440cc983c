"""Millstream on Spark: `millstream.join` and `millstream.build_master`, their metrics, and a local session.

The only package that imports pyspark. Works on classic and on Spark Connect DataFrames, streaming and batch.
"""

from .metrics import join_metrics
from .session import local_session

__all__ = ["join_metrics", "local_session"]
