"""What a cost model works on: the relation, the stream, the factors, and how the memory is split.

The splits are those that the operators make; a test holds both against each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import BudgetTooSmall
from ..joins.base import WORK_BYTES, Operator
from ..joins.hybridjoin import stream_row_bytes
from ..joins.plan import check_how, master_columns
from ..master import Master
from ..units import format_bytes
from .curves import Step
from .factors import SKEWED, Factors
from .popularity import Floats, Popularity, popularity
from .sample_stream import stream_schema

PAGE = 4096


@dataclass(frozen=True)
class Setting:
    """A master, the factors measured with it, and what is known of the stream."""

    master: Master
    factors: Factors
    skew: float
    how: str = "inner"

    def __post_init__(self) -> None:
        check_how(self.how)
        self.popularity  # noqa: B018 - checks the skew

    @cached_property
    def popularity(self) -> Popularity:
        return popularity(max(1, self.master.statistics.distinct_keys), float(self.skew))

    @cached_property
    def brought(self) -> Sequence[str]:
        columns = None if self.factors.columns is None else list(self.factors.columns)
        return master_columns(self.master, columns) if self.how in ("inner", "left") else []

    @property
    def brings(self) -> bool:
        """Whether columns of R are in the result."""
        return bool(self.brought)

    @cached_property
    def stream_bytes(self) -> float:
        """v_S: bytes of a stream tuple as it waits."""
        return stream_row_bytes(stream_schema(self.master, self.factors.row_bytes))

    @cached_property
    def kept(self) -> list[int]:
        """The columns of a tuple of R in a cache: those that are brought, and what is compared."""
        columns = {*self.brought, *(self.master.key if self.master.codec.hashed else [])}
        return sorted(self.master.stored_schema.get_field_index(name) for name in columns)

    @cached_property
    def kept_bytes(self) -> float:
        """v_R: bytes of a tuple of R in a cache."""
        share = len(self.kept) / max(1, len(self.master.stored_schema))
        return max(8.0, self.master.statistics.average_row_bytes * share)

    @property
    def segment_bytes(self) -> float:
        statistics = self.master.statistics
        return statistics.bytes / max(1, statistics.segments)

    def steps(self, rows: float, distinct: float) -> dict[str, Step]:
        """The steps when so many rows wait, with so many different keys: those of a flat stream, or of one that follows
        Zipf's law, or between them.
        """
        known, keys = self.factors.steps, self.popularity.keys
        flat = -keys * math.expm1(-rows / keys)
        skewed = float(np.interp(math.log(max(1.0, rows)), *self._distinct_by_zipf))
        share = min(1.0, max(0.0, (flat - distinct) / max(1e-9, flat - skewed)))
        return {name: step.towards(known.get(name + SKEWED, step), share) for name, step in known.items()}

    @cached_property
    def _distinct_by_zipf(self) -> tuple[Floats, Floats]:
        """How many keys rows have that follow Zipf's law, over the logarithm of their number."""
        rows = np.geomspace(1, 1e10, 128)
        zipf = popularity(self.popularity.keys, 1.0)
        return np.log(rows), np.array([zipf.distinct(float(number)) for number in rows])


@dataclass
class Split:
    """The bytes of each component. `free` is what is left."""

    memory: int
    components: dict[str, int]
    slice_rows: int

    @property
    def free(self) -> int:
        return self.memory - sum(self.components.values())

    def book(self, component: str, size: float) -> None:
        self.components[component] = self.components.get(component, 0) + int(size)

    @classmethod
    def of(cls, operator: type[Operator], setting: Setting, memory: int) -> Split:
        """What every operator sets aside; refused if the memory is too small."""
        master = setting.master
        least = operator.least_memory(master, setting.brought)
        if memory < least:
            raise BudgetTooSmall(
                f"memory of {format_bytes(memory)} is too small for {operator.name} on {master.path}: "
                f"give at least {format_bytes(least)} ({least} bytes)",
                least=least,
            )
        spare = memory - least
        output, slice_rows = operator.output_and_slice(master, spare)
        index = operator._index_bytes(master)
        split = cls(memory, {"index": index, "output": output, "work": slice_rows * WORK_BYTES}, slice_rows)
        if operator._least_index(master):
            size = master.statistics.max_segment_bytes + 3 * PAGE + min(spare // 64, 1 << 20)
            split.book("index buffer", buffer_bytes(size))
        return split


def buffer_bytes(size: int) -> int:
    """Memory of a disk buffer for so many bytes, with its alignment."""
    return -(-size // PAGE) * PAGE + PAGE
