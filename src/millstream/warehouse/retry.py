"""How long to wait before trying again: twice as long each time, up to a cap, and never all at the same moment."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Waits between attempts: a random time up to `first`, 2 `first`, 4 `first` ... but never above `cap`, for
    `patience` seconds in all."""

    first: float = 0.05
    cap: float = 5.0
    patience: float = 120.0

    def waits(self) -> Iterator[float]:
        """How long to wait after each failed attempt; ends when the patience does."""
        until = time.monotonic() + self.patience
        longest = self.first
        while (left := until - time.monotonic()) > 0:
            yield min(left, random.uniform(longest / 4, longest))
            longest = min(self.cap, 2 * longest)
