"""Which versions of a master stay: the newest, those that a running query may replay, and recent ones."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import time

import pyarrow.fs as pafs

from ..errors import MillstreamError
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


def _forget_queries(store: Store) -> None:
    """Remove the pins of queries that have not pinned anything for a week."""
    for query in store.names(PINS):
        selector = pafs.FileSelector(store.full(f"{PINS}/{query}"), allow_not_found=True)
        times = [info.mtime.timestamp() for info in store.fs.get_file_info(selector) if info.mtime is not None]
        if times and time.time() - max(times) > PIN_SECONDS:
            store.delete(f"{PINS}/{query}")


def sweep(store: Store, *, keep_seconds: float = KEEP_SECONDS) -> list[int]:
    """Drop versions that were superseded longer ago than `keep_seconds` and that no query has pinned; which ones.

    Requires the builder's lock. Folders of builds that never committed go too, where that lock is real (local files).
    """
    known = manifests.versions(store)
    loaded: dict[int, manifests.Manifest] = {}
    readable = True
    for version in known:
        try:
            loaded[version] = manifests.load(store, version)
        except MillstreamError:
            readable = False  # nobody knows what it needs: it stays, and all data with it
    for name in store.names(manifests.FOLDER) if store.local else []:
        if name.endswith(".tmp"):
            store.delete(f"{manifests.FOLDER}/{name}")
    needed = pinned(store)
    now = datetime.datetime.now(datetime.UTC)
    dropped = []
    for version, after in itertools.pairwise(known) if readable else ():
        superseded = datetime.datetime.fromisoformat(loaded[after].created)
        if version not in needed and (now - superseded).total_seconds() > keep_seconds:
            store.delete(manifests.name_of(version))
            dropped.append(version)
    if not readable:
        return dropped
    used = {name.rpartition("/")[0] for version in known if version not in dropped for name in loaded[version].files()}
    dropped_folders = {name.rpartition("/")[0] for version in dropped for name in loaded[version].files()}
    folders = {f"data/{folder}" for folder in store.names("data")} if store.local else dropped_folders
    for folder in folders - used:
        store.delete(folder)
    _forget_queries(store)
    return dropped
