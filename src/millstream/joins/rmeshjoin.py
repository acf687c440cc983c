"""R-MESHJOIN, the reduced MESHJOIN (as Naeem, Dobbie, Weber describe it in X-HYBRIDJOIN, section 2).

In MESHJOIN one number ties the components together: the disk buffer of b pages fixes the N_R / b packets of the queue,
and with them w. Here the disk buffer is as large as reading needs it, and the queue has as many packets as the stream
needs them: a turn of R is cut into `partitions` logical partitions, whatever the size of a read, and w stream rows come
in before each.

    reads        [        b pages         ][        b pages         ] ...
    partitions   [   w rows   ][   w rows   ][   w rows   ] ...

Legend: that of `scanjoin.py`; l = `partitions`, b = `b` pages of a logical partition, w = rows of the window / l.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..errors import InputError
from .scanjoin import ScanJoin

PARTITIONS = 32


class ReducedMeshJoin(ScanJoin):
    """Invariants: those of the scan joins; at most `partitions` packets are in the queue."""

    name: ClassVar[str] = "rmeshjoin"
    options: ClassVar[tuple[str, ...]] = (*ScanJoin.options, "partitions")
    borrows: ClassVar[bool] = True

    def __init__(self, master: Any, *, partitions: int = PARTITIONS, **arguments: Any) -> None:
        if isinstance(partitions, bool) or not isinstance(partitions, int) or partitions < 1:
            raise InputError(f"partitions must be a number of parts of R, at least 1, not {partitions!r}")
        self.partitions = partitions
        super().__init__(master, **arguments)

    @property
    def _pages_of_buffer(self) -> int:
        return max(1, -(-self.scan.pages // self.partitions))
