"""Python workers: which joins share them, and what they need not do between two tasks."""

from __future__ import annotations

import gc
import os
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

POOL = "MILLSTREAM_POOL"
POOLS = 8  # a pool costs a daemon process of about 45 MB for as long as the session lives

# A cache is looked up at random, and with pages of 4 KB the processor spends much of its time on finding where they
# lie: a third of it with gigabytes. The C library asks for huge pages if it is told so when a process starts.
TUNABLES = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb=1"

_pool_of: dict[Hashable, int] = {}
_tasks = 0  # that this worker has begun


def settle() -> None:
    """Called in a worker as a task begins: its modules and caches are there to stay, so Python need not search them.

    Spark lets a worker collect garbage after each task. With all that we import that takes 50 ms and more, as long as
    the work on ten thousand rows. What is there at tasks 2, 4, 8, ... is therefore set aside: right after a collection
    there is no garbage among it, and the few objects of the tasks themselves are a handful in the life of a worker.
    """
    global _tasks
    _tasks += 1
    if _tasks > 1 and _tasks & (_tasks - 1) == 0:
        gc.freeze()


def stir() -> None:
    """Called in a worker when something goes that was to stay: the next collection looks everywhere again."""
    global _tasks
    _tasks = 0
    gc.unfreeze()


@contextmanager
def own_workers(spark: SparkSession, join: Hashable) -> Iterator[None]:
    """Give the functions made inside a pool of Python workers of their own, the same for a join, with huge pages.

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
    variables = {POOL: str(pool)}
    if TUNABLES not in context.environment and TUNABLES not in os.environ:  # what the user has set stays
        variables[TUNABLES] = HUGE_PAGES
    context.environment.update(variables)
    try:
        yield
    finally:
        for name in variables:
            context.environment.pop(name, None)
