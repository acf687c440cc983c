"""A staging area in memory that follows a script: for tests of what sends to staging.

staging = ScriptedStaging()
monkeypatch.setattr(sender, "connect", staging.connect)
staging.away = True            # connections fail from now on
staging.ends_after = 3         # the session is lost after so many more blocks, before they are acknowledged
staging.stored["orders"]       # rows as a list of dicts, each record once, in the order of arrival
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pyarrow as pa

from millstream.errors import RecordGap, SchemaRefused, StagingUnavailable


class ScriptedStaging:
    """Stores blocks by the rules of staging: repeats are dropped, overlaps trimmed, gaps refused."""

    def __init__(self) -> None:
        self.away = False
        self.silent = False  # takes blocks and acknowledges nothing
        self.refuses: list[str] = []  # columns of a schema that is refused
        self.ends_after: int | None = None
        self.loses_answer = False  # the session that ends has stored its last block
        self.sessions = 0
        self.blocks: list[tuple[str, int, int]] = []  # incarnation, first, rows: all that was received
        self.next: dict[tuple[str, str, str], int] = defaultdict(int)
        self.stored: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.schemas: list[pa.Schema] = []
        self._lock = threading.Lock()

    def connect(self, url: str, token: str | None = None, **options: Any) -> ScriptedStaging:
        return self

    def close(self) -> None: ...

    def open(self, stream: str, source: str, *, incarnation: str, schema: pa.Schema) -> ScriptedSession:
        if self.away:
            raise StagingUnavailable("staging is away, says the script")
        bad = [name for name in schema.names if name in self.refuses]
        if bad:
            raise SchemaRefused("refused by the script", difference=bad)
        self.sessions += 1
        self.schemas.append(schema)
        return ScriptedSession(self, (stream, source, incarnation))

    def store(self, key: tuple[str, str, str], first: int, batch: pa.RecordBatch) -> None:
        with self._lock:
            self.blocks.append((key[2], first, batch.num_rows))
            due = self.next[key]
            if first > due:
                raise RecordGap(f"record {first}, where {due} is due", expected=due)
            new = batch.slice(max(0, due - first)).to_pylist()
            for number, row in enumerate(new):
                self.stored[key[0]].append({**row, "_sequence": due + number, "_incarnation": key[2]})
            self.next[key] = max(due, first + batch.num_rows)


class ScriptedSession:
    """One session; ends as the script says."""

    def __init__(self, staging: ScriptedStaging, key: tuple[str, str, str]) -> None:
        self._staging, self._key = staging, key
        self.next = self.acknowledged = staging.next[key]
        self._lost = False

    def send(self, first: int, batch: pa.RecordBatch) -> None:
        staging = self._staging
        if self._lost or staging.away:
            raise StagingUnavailable("the session is lost")
        if not batch.num_rows:
            return
        if staging.ends_after is not None:
            staging.ends_after -= 1
            if staging.ends_after < 0:
                staging.ends_after = None
                self._lost = True
                if staging.loses_answer:
                    staging.store(self._key, first, batch)
                raise StagingUnavailable("the session is lost, says the script")
        if staging.silent:
            return
        staging.store(self._key, first, batch)
        self.acknowledged = staging.next[self._key]

    def wait(self, number: int, *, timeout: float | None = None) -> None:
        if self.acknowledged < number:
            threading.Event().wait(timeout)
            raise StagingUnavailable("not acknowledged in time")

    def close(self) -> None: ...

    def cancel(self) -> None:
        self._lost = True
