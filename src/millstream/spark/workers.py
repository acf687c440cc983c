"""Python workers that a join does not share with other joins."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

POOL = "MILLSTREAM_POOL"
POOLS = 8  # a pool costs a daemon process of about 45 MB for as long as the session lives

_pool_of: dict[Hashable, int] = {}


@contextmanager
def own_workers(spark: SparkSession, join: Hashable) -> Iterator[None]:
    """Give the functions made inside a pool of Python workers of their own, the same for the same join.

    Spark shares idle Python workers among all functions with the same environment and hands them out in turn, so with
    two joins in a query each worker would come to hold an operator of both: twice the memory that was asked for. A
    variable in the environment keeps the pools apart. Spark Connect has no such environment, and after `POOLS` joins
    pools are shared again; there a worker stays warm for `warm.KEPT` joins.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        yield
        return
    pool = _pool_of.setdefault(join, len(_pool_of) % POOLS)
    context.environment[POOL] = str(pool)
    try:
        yield
    finally:
        context.environment.pop(POOL, None)
