"""A process that has everything loaded and forks builders, each of which goes wrong in the way it is told to.

Commands on stdin, one answer each: `start <path> <rows> <where>` gives the pid of a new builder, `wait <pid>` its exit
code. A builder that holds or races says so by a file `ready.<pid>` beside the master and goes on when `go` is there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.errors import BuildConflict
from millstream.master import Build, build, build_local, files, parts, write_part

SEGMENT_BYTES = 1_024


def table(rows: int, version: int) -> pa.Table:
    texts = [f"{i} of {version}" for i in range(rows)]
    return pa.table({"k": np.arange(rows), "version": np.full(rows, version), "text": texts})


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_before(owner: Any, name: str, *, call: int = 1) -> None:
    """End this process when the function is called for that time."""
    real, calls = getattr(owner, name), []

    def replaced(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        if len(calls) == call:
            die()
        return real(*args, **kwargs)

    setattr(owner, name, replaced)


def die_after(owner: Any, name: str) -> None:
    real = getattr(owner, name)

    def replaced(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        die()

    setattr(owner, name, replaced)


def half_a_manifest() -> None:
    def create(store: files.Store, name: str, content: bytes) -> bool:
        with open(f"{store.full(name)}.0123.tmp", "wb") as file:
            file.write(content[: len(content) // 2])
            file.flush()
            die()
        return False

    files.Store.create = create  # type: ignore[method-assign]


def sweep_at_once() -> None:
    real = build.sweep
    build.sweep = partial(real, keep_seconds=0)  # type: ignore[assignment]
    die_after(files.Store, "delete")


# name -> what makes a builder die there; those after the manifest has its name have made a version
BEFORE_COMMIT: dict[str, Callable[[], None]] = {
    "after begin": lambda: die_after(build.BuilderLock, "__init__"),
    "in a part": lambda: die_before(parts._SegmentFile, "write", call=5),
    "before the index": lambda: die_before(parts._SegmentFile, "_write_table"),
    "before the filter": lambda: die_before(parts._SegmentFile, "_write_table", call=2),
    "after the parts": lambda: die_before(Build, "commit"),
    "half of the manifest": half_a_manifest,
    "before the manifest has its name": lambda: die_before(os, "link"),
}
AFTER_COMMIT: dict[str, Callable[[], None]] = {
    "after the manifest has its name": lambda: die_after(os, "link"),
    "before the sweep": lambda: die_before(build, "sweep"),
    "in the sweep": sweep_at_once,
}


def ready(path: Path) -> None:
    (path.parent / f"ready.{os.getpid()}").touch()


def await_go(path: Path) -> None:
    ready(path)
    while not (path.parent / "go").exists():
        time.sleep(0.002)


def hold(path: Path, rows: int) -> None:
    """Hold the lock until told to go on."""
    with Build.begin(path, table(rows, 7).schema, key="k", segment_bytes=SEGMENT_BYTES) as mine:
        summary = write_part(mine.spec, table(rows, 7).to_batches(), 0)
        await_go(path)
        mine.commit([summary])


def race(path: Path, rows: int) -> None:
    """Try to build a dozen times; which versions were made goes to a file."""
    mine = table(rows, 0)
    await_go(path)
    won = []
    for _ in range(12):
        try:
            won.append(build_local(mine, path, key="k", segment_bytes=SEGMENT_BYTES).version)
        except BuildConflict:
            time.sleep(0.001)
    (path.parent / f"won.{os.getpid()}").write_text(" ".join(map(str, won)))


def build_for_ever(path: Path, rows: int) -> None:
    mine = table(rows, 1)
    ready(path)
    while True:
        build_local(mine, path, key="k", segment_bytes=SEGMENT_BYTES)


def run(path: Path, rows: int, where: str) -> None:
    known = {"hold": hold, "race": race, "for ever": build_for_ever}
    if where in known:
        known[where](path, rows)
        return
    {**BEFORE_COMMIT, **AFTER_COMMIT}[where]()
    build_local(table(rows, 2), path, key="k", segment_bytes=SEGMENT_BYTES)


def main() -> None:
    build_local(table(2_000, 0), sys.argv[1], key="k", segment_bytes=SEGMENT_BYTES)  # compiles the kernels
    for line in sys.stdin:
        command, *arguments = line.rstrip("\n").split("\t")
        if command == "wait":
            _, status = os.waitpid(int(arguments[0]), 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if not pid:
            try:
                run(Path(arguments[0]), int(arguments[1]), arguments[2])
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
