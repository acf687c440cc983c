"""A small library for keyed record files, as applications had them before there were databases.

A file `orders` is several files: `orders.dat` has records of one length in the order of arrival, `orders.ix0` the keys
in order with the place of each record, in pages, and `orders.ix1` and so on the same for further keys. Every write goes
through to the operating system before it returns, the record first, so a crash of the program leaves at worst a record
without a key. Several programs may use the same file: each takes a lock for a write, and looks whether another one has
written in between.

    with isam.open("orders", layout="<qqid", keys=(0, 1)) as file:      # fields 0 (unique) and 1 are keys
        file.write((4711, 815, 3, 9.99))
        file.read(4711)
        for record in file.scan(815, key=1): ...                        # in the order of that key
"""

from __future__ import annotations

import fcntl
import os
import struct
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

_ENTRY = struct.Struct("<qq")  # key, number of the record
_COUNT = struct.Struct("<q")
_PAGE = 4096
_FULL = (_PAGE - _COUNT.size) // _ENTRY.size
_KEPT = 1_000  # pages of an index in memory
_LOWEST = -(2**63)

Record = tuple[Any, ...]


class DuplicateKey(ValueError):
    """A record with this key is there already."""


class _Index:
    """Keys in order, in pages of a file; a page is written when an entry comes to it.

    In memory are the first entry of each page, and the pages that were used last.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.load()

    def load(self) -> None:
        """Read what there is, and keep the first entry of each page."""
        self._pages: OrderedDict[int, bytearray] = OrderedDict()
        self._count, found = 0, []
        for home in range(os.fstat(self._file).st_size // _PAGE):
            packed = self._get(home)
            self._count += len(packed) // _ENTRY.size
            found.append((_ENTRY.unpack_from(packed) if packed else (_LOWEST, 0), home))
        found.sort()
        self._first = [first for first, _ in found] or [(_LOWEST, 0)]
        self._homes = [home for _, home in found] or [0]

    def scan(self, key: int) -> Iterator[tuple[int, int]]:
        """Keys from this one on, each with the number of its record."""
        start = (key, -1)
        for number in range(max(0, bisect_right(self._first, start) - 1), len(self._homes)):
            packed = self._page(number)
            yield from _ENTRY.iter_unpack(bytes(packed[_place(packed, start) * _ENTRY.size :]))

    def insert(self, key: int, row: int) -> None:
        entry = (key, row)
        number = max(0, bisect_right(self._first, entry) - 1)
        packed = self._page(number)
        place = _place(packed, entry)
        packed[place * _ENTRY.size : place * _ENTRY.size] = _ENTRY.pack(key, row)
        self._count += 1
        if place == 0:
            self._first[number] = entry
        entries = len(packed) // _ENTRY.size
        if entries >= _FULL:
            # keys that only grow leave full pages behind, others share
            half = (entries - 1 if place == entries - 1 else entries // 2) * _ENTRY.size
            home, second = len(self._homes), packed[half:]
            del packed[half:]
            self._homes.insert(number + 1, home)
            self._first.insert(number + 1, _ENTRY.unpack_from(second))
            self._put(home, second)
        self._put(self._homes[number], packed)

    def _page(self, number: int) -> bytearray:
        """The entries of a page, packed; it is read if it was not used for a while."""
        home = self._homes[number]
        packed = self._pages.get(home)
        if packed is None:
            packed = self._pages[home] = self._get(home)
            if len(self._pages) > _KEPT:
                self._pages.popitem(last=False)
        else:
            self._pages.move_to_end(home)
        return packed

    def _get(self, home: int) -> bytearray:
        page = os.pread(self._file, _PAGE, home * _PAGE)
        return bytearray(page[_COUNT.size : _COUNT.size + _COUNT.unpack_from(page)[0] * _ENTRY.size] if page else b"")

    def _put(self, home: int, packed: bytearray) -> None:
        page = _COUNT.pack(len(packed) // _ENTRY.size) + packed
        os.pwrite(self._file, page.ljust(_PAGE, b"\0"), home * _PAGE)

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        os.close(self._file)


def _place(packed: bytearray, entry: tuple[int, int]) -> int:
    """Where an entry is, or would be, in a page."""
    return bisect_left(
        range(len(packed) // _ENTRY.size), entry, key=lambda place: _ENTRY.unpack_from(packed, place * _ENTRY.size)
    )


class IsamFile:
    """A keyed record file that is open; made by `open`."""

    def __init__(self, path: str | os.PathLike[str], layout: str, keys: Sequence[int] = (0,)) -> None:
        self.path = os.fspath(path)
        self._layout, self._fields = struct.Struct(layout), tuple(keys)
        self._data = os.open(f"{self.path}.dat", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._indexes = [_Index(f"{self.path}.ix{number}") for number in range(len(keys))]
        self._rows = os.fstat(self._data).st_size // self._layout.size

    def write(self, record: Record) -> bytes:
        """Insert a record, and return it as it is stored."""
        fcntl.lockf(self._data, fcntl.LOCK_EX)
        try:
            if os.fstat(self._data).st_size != self._rows * self._layout.size:
                self._reload()
            key = record[self._fields[0]]
            for found, _ in self._indexes[0].scan(key):
                if found == key:
                    raise DuplicateKey(f"{self.path} has a record with key {key} already")
                break
            row = self._rows
            packed = self._layout.pack(*record)
            os.pwrite(self._data, packed, row * self._layout.size)
            for index, field in zip(self._indexes, self._fields, strict=True):
                index.insert(record[field], row)
            self._rows = row + 1
        finally:
            fcntl.lockf(self._data, fcntl.LOCK_UN)
        return packed

    def _reload(self) -> None:
        """See what another program has written."""
        self._rows = os.fstat(self._data).st_size // self._layout.size
        for index in self._indexes:
            index.load()

    def read(self, value: int, *, key: int = 0) -> Record | None:
        """The first record with this value of a key."""
        for record in self.scan(value, key=key):
            return record if record[self._fields[key]] == value else None
        return None

    def scan(self, start: int = _LOWEST, *, key: int = 0) -> Iterator[Record]:
        """Records from this value on, in the order of a key."""
        for _, row in self._indexes[key].scan(start):
            yield self._layout.unpack(os.pread(self._data, self._layout.size, row * self._layout.size))

    def __len__(self) -> int:
        return len(self._indexes[0])

    def close(self) -> None:
        for index in self._indexes:
            index.close()
        os.close(self._data)

    def __enter__(self) -> IsamFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open(path: str | os.PathLike[str], layout: str, keys: Sequence[int] = (0,)) -> IsamFile:  # noqa: A001
    """Open a keyed record file, or make a new one; `layout` is that of `struct`, keys are whole numbers."""
    return IsamFile(path, layout, keys)
