"""Small files that are whole or not there, whatever happens to the machine."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

from .. import failpoints
from ..errors import CorruptLog

TEMPORARY = ".new"


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def put_file(path: Path, content: bytes) -> None:
    """Give a file this content, durably: a crash leaves the old or the new one."""
    temporary = path.with_name(path.name + TEMPORARY)
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(number, view) :]
            os.fsync(number)
        finally:
            os.close(number)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    failpoints.reach("staging.before-rename")
    os.rename(temporary, path)
    sync_directory(path.parent)


def put_manifest(path: Path, content: dict[str, Any]) -> None:
    """A JSON file with a checksum, durably."""
    text = json.dumps(content, sort_keys=True)
    put_file(path, json.dumps({"checksum": zlib.crc32(text.encode()), "content": content}, indent=1).encode() + b"\n")


def read_manifest(path: Path) -> dict[str, Any]:
    """What `put_manifest` has written."""
    try:
        outer = json.loads(path.read_bytes())
        content = outer["content"]
        if zlib.crc32(json.dumps(content, sort_keys=True).encode()) == outer["checksum"]:
            return content
    except (ValueError, KeyError, TypeError):
        pass
    raise CorruptLog(f"{path} is damaged: its checksum does not fit; restore it from a copy", file=str(path), offset=0)
