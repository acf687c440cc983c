"""Which versions of a master stay: the newest, those that a running query may replay, and recent ones."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import time

from . import manifest as manifests
from .files import Store

PINS = "pins"
KEEP_SECONDS = 24 * 3600
PIN_SECONDS = 7 * 24 * 3600


def pinned(store: Store) -> set[int]:
    """Versions that some query has pinned for a micro-batch within the last week."""
    found = set()
    for query in store.names(PINS):
        for batch in store.names(f"{PINS}/{query}"):
            info = store.fs.get_file_info(store.full(f"{PINS}/{query}/{batch}"))
            if info.mtime is not None and time.time() - info.mtime.timestamp() > PIN_SECONDS:
                continue
            with contextlib.suppress(ValueError, FileNotFoundError):
                found.add(int(store.read(f"{PINS}/{query}/{batch}")))
    return found


def sweep(store: Store, *, keep_seconds: float = KEEP_SECONDS) -> list[int]:
    """Drop versions that were superseded longer ago than `keep_seconds` and that no query has pinned; which ones.

    Requires the builder's lock. Folders of builds that never committed go too, where that lock is real (local files).
    """
    known = manifests.versions(store)
    loaded = {version: manifests.load(store, version) for version in known}
    needed = pinned(store)
    now = datetime.datetime.now(datetime.UTC)
    dropped = []
    for version, after in itertools.pairwise(known):
        superseded = datetime.datetime.fromisoformat(loaded[after].created)
        if version not in needed and (now - superseded).total_seconds() > keep_seconds:
            store.delete(manifests.name_of(version))
            dropped.append(version)
    used = {name.rpartition("/")[0] for version in known if version not in dropped for name in loaded[version].files()}
    for folder in store.names("data") if store.local else []:
        if f"data/{folder}" not in used:
            store.delete(f"data/{folder}")
    return dropped
