"""Records that cannot be sent: counted, and kept with the reason in a side file of JSON lines."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)
_TAIL = 1 << 20


class Rejects:
    """Appends to `rejects.jsonl` of a spool: number, reason and text of each record that could not be sent.

    Records come in the order of their numbers, so that those met again after a restart are known and not written twice.
    Beyond `most` bytes records are counted and no longer kept.
    """

    def __init__(self, path: Path, *, most: int = 100_000_000) -> None:
        self._path, self._most = path, most
        self._warned = False
        self.through = self._last()

    def _last(self) -> int:
        """The highest number in the file."""
        try:
            with open(self._path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                lines = file.read().splitlines()
        except FileNotFoundError:
            return -1
        for line in reversed(lines):
            try:
                number = json.loads(line)["record"]
            except (ValueError, KeyError, TypeError):
                continue  # the torn last line of somebody who was killed
            if isinstance(number, int):
                return number
        return -1

    def add(self, found: Iterable[tuple[int | None, str, Any]]) -> int:
        """Keep records that are new, as (number, reason, record); how many these are."""
        lines, last = [], self.through
        for number, reason, record in found:
            if number is not None:
                if number <= self.through:
                    continue
                last = max(last, number)
            lines.append(json.dumps({"record": number, "reason": reason, "value": _text(record)}))
        self.through = last
        if lines:
            self._write("".join(f"{line}\n" for line in lines).encode())
        return len(lines)

    def _write(self, content: bytes) -> None:
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(file).st_size
                if size + len(content) <= self._most:
                    # a torn last line of somebody who was killed must not swallow the first of ours
                    torn = size and os.pread(file, 1, size - 1) != b"\n"
                    os.write(file, (b"\n" if torn else b"") + content)
                    return
            finally:
                os.close(file)
            problem = f"it has {self._most:,} bytes"
        except OSError as error:
            problem = str(error)
        if not self._warned:
            self._warned = True
            _log.warning("rejected records are counted but no longer kept in %s: %s", self._path, problem)


def _text(record: Any) -> Any:
    try:
        json.dumps(record)
        return record
    except (TypeError, ValueError):
        return repr(record)[:2000]
