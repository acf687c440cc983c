"""Where an operator spends its time: the functions that do the work, timed by kind, each second counted once."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isfunction
from typing import Any

from ..joins import cache, locate, policy, sweep, waiting
from ..kernels import cache_table, collector, flat, keys, membership, pages, segments, stream_table
from ..master import reader, row_buffer

_DISK, _LOOKUP = "disk", "look-up"  # what is read is checked and mapped in the same call
_GATHER, _WAITING, _CACHE, _REST = "gather and output", "waiting rows", "cache upkeep", "rest"
KINDS = (_DISK, _LOOKUP, _GATHER, _WAITING, _CACHE, _REST)


def _methods(owner: type, *, but: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The public methods of a class."""
    return tuple(
        name for name, value in vars(owner).items() if isfunction(value) and name[0] != "_" and name not in but
    )


# kind of work, module or class, functions in it
TARGETS: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    (_DISK, reader.DiskBuffer, ("start", "finish")),
    (_DISK, reader.SegmentReader, ("read",)),
    (_DISK, segments, ("map_segments",)),
    (_DISK, row_buffer.RowBuffer, ("start", "finish")),
    (_LOOKUP, segments, ("find_keys", "group_pages")),
    (_LOOKUP, cache_table.CacheTable, ("probe", "probe_rows")),
    (_LOOKUP, stream_table.StreamTable, ("count", "remove", "oldest")),
    (_LOOKUP, locate.SparseLocator, ("segments",)),
    (_LOOKUP, membership, ("test_keys",)),
    (_LOOKUP, keys.KeyCodec, ("codes",)),
    (_GATHER, pages.NestedGathering, ("__init__", "columns")),
    (_GATHER, flat.FlatGathering, ("__init__", "columns")),
    (_GATHER, collector.Collector, _methods(collector.Collector)),
    (_WAITING, waiting.WaitingRows, _methods(waiting.WaitingRows)),
    (_WAITING, sweep.SweptRows, _methods(sweep.SweptRows)),
    (_CACHE, cache.MasterCache, _methods(cache.MasterCache, but=("probe",))),
    (_CACHE, policy.CachePolicy, _methods(policy.CachePolicy)),
)
# inside these everything counts as theirs, so that rows copied into the cache are not taken for output
_CLOSED = (_WAITING, _CACHE)


class Clock:
    """Seconds by kind. Nested calls are taken out of the call around them."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self._stack: list[str] = []
        self._since = time.perf_counter()

    def enter(self, kind: str) -> None:
        """From now on time is of this kind."""
        self._charge()
        around = self._stack[-1] if self._stack else _REST
        self._stack.append(around if around in _CLOSED else kind)

    def leave(self) -> None:
        """Time is again of the kind that it was before."""
        self._charge()
        self._stack.pop()

    def _charge(self) -> None:
        now = time.perf_counter()
        self.seconds[self._stack[-1] if self._stack else _REST] += now - self._since
        self._since = now

    def shares(self) -> dict[str, float]:
        """Share of each kind."""
        total = sum(self.seconds.values()) or 1.0
        return {kind: seconds / total for kind, seconds in self.seconds.items()}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts the block; time outside such blocks is not counted."""
        self._since = time.perf_counter()
        yield
        self._charge()


@contextmanager
def instrumented(clock: Clock) -> Iterator[None]:
    """Has the functions of `TARGETS` report to a clock while the block runs."""
    originals = [(owner, name, getattr(owner, name)) for _, owner, names in TARGETS for name in names]
    for kind, owner, names in TARGETS:
        for name in names:
            setattr(owner, name, _timed(getattr(owner, name), kind, clock))
    try:
        yield
    finally:
        for owner, name, function in originals:
            setattr(owner, name, function)


def _timed(function: Callable[..., Any], kind: str, clock: Clock) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        clock.enter(kind)
        try:
            return function(*args, **options)
        finally:
            clock.leave()

    return call
