"""The block that is being collected, and what becomes of it in the spool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from . import packed, records
from .spool import PACKED, ROWS, TAGGED


class Pending(list[Any]):
    """A time, and the records since then; `limit` is the number of records that make a block."""

    __slots__ = ("limit",)  # asked for with each record: cheaper than where other attributes are

    def __init__(self, items: Iterable[Any] = (), *, limit: int = 0) -> None:
        super().__init__(items)
        self.limit = limit


class Closed(Pending):
    """Stands in for the pending records once nothing can be sent any more: `refuse` raises."""

    __slots__ = ("_refuse",)

    def __init__(self, refuse: Callable[[], None]) -> None:
        super().__init__()
        self._refuse = refuse

    def append(self, record: Any) -> None:
        self._refuse()


def pieces(block: list[Any], *, size: int) -> Iterator[tuple[int, int, bytes]]:
    """Kind, number of records and bytes of what goes into the spool for a block.

    `size` is that of packed records, 0 if there are none. One piece, unless packed records are mixed with others.
    """
    if not size:
        payload, tagged = records.encode(block)
        yield (TAGGED if tagged else ROWS), len(block) - 1, payload
        return
    stamp = block[0]
    for is_packed, items in groupby(block[1:], lambda item: type(item) is bytes and len(item) == size):
        part = list(items)
        if is_packed:
            yield PACKED, len(part), b"".join([stamp, *part])
        else:
            payload, tagged = records.encode([packed.moment(stamp), *part])
            yield (TAGGED if tagged else ROWS), len(part), payload
