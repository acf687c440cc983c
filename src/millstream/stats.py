"""Counters that every join operator keeps."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields


@dataclass
class JoinStats:
    """What an operator has done since it was made.

    `rows_in = matched + unmatched` once everything held has been flushed; `unmatched` counts the rows with a
    NULL key and those turned away by the membership filter too.
    """

    rows_in: int = 0
    rows_out: int = 0
    matched: int = 0
    unmatched: int = 0
    null_keys: int = 0
    filtered: int = 0
    cache_hits: int = 0
    disk_reads: int = 0
    segments_read: int = 0
    bytes_read: int = 0
    index_reads: int = 0
    index_bytes_read: int = 0
    iterations: int = 0
    cached_rows: int = 0
    evicted_rows: int = 0
    memory_used: int = 0
    memory_peak: int = 0
    memory_budget: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def names(cls) -> list[str]:
        return [field.name for field in fields(cls)]
