"""Which version of a master a micro-batch sees: decided once by its first task, and the same when it is replayed.

The decision is a file `pins/<query>/<batch>` in the master's directory that holds the number of the version. It is
created whole or not at all, and whoever comes second reads what the first wrote. On a local filesystem (or one that
has hard links) this is exact. On an object store two first tasks that start in the same instant while a new version
appears between them can write one after the other; the later write is then what a replay sees.
"""

from __future__ import annotations

import contextlib
import errno

from ..master import Master
from ..master.files import Store

FOLDER = "pins"
KEPT = 100  # batches, as many as Spark keeps in a checkpoint by default
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


def pinned_version(path: str, query: str, batch: int, *, otherwise: int) -> int:
    """The version of the master at `path` for one micro-batch, pinned now if it was not yet.

    Where nothing can be written, `otherwise` (the version at the time of planning) serves all batches of the query.
    """
    store = Store(path)
    name = f"{FOLDER}/{query}/{batch}"
    found = _read(store, name)
    if found is not None:
        return found
    version = Master.latest_version(path)
    try:
        store.make_folder(f"{FOLDER}/{query}")
        created = store.create(name, str(version).encode())
    except OSError as error:
        if error.errno in _READ_ONLY:
            return otherwise
        raise
    if created and batch % 10 == 0:
        _forget(store, query, batch - KEPT)
    found = _read(store, name)
    if found is None:  # a torn file that a crash of the machine left behind
        store.delete(name)
        return pinned_version(path, query, batch, otherwise=otherwise)
    return found


def _read(store: Store, name: str) -> int | None:
    try:
        return int(store.read(name))
    except (FileNotFoundError, ValueError):
        return None


def _forget(store: Store, query: str, before: int) -> None:
    for name in store.names(f"{FOLDER}/{query}"):
        if name.isdigit() and int(name) < before:
            with contextlib.suppress(OSError):
                store.delete(f"{FOLDER}/{query}/{name}")
