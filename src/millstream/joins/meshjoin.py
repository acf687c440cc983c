"""MESHJOIN (Polyzotis et al.: Meshing Streaming Updates with Persistent Data, section 3.1, Fig. 4).

R is scanned from end to end, again and again; each iteration takes in w stream rows and joins all rows of the window
with the next b pages. A row leaves after N_R / b iterations, when it has met all of R. No index, no order and no
distribution is asked for, and the cost of reading a page is shared by all rows of the window.

Worked example, R = p0 p1 p2, b = 1, w = 2:

    iteration   reads   takes in   window                    leave
    1           p0      s1 s2      s1 s2
    2           p1      s3 s4      s1 s2 s3 s4
    3           p2      s5 s6      s1 s2 s3 s4 s5 s6         s1 s2, after p0 p1 p2
    4           p0      s7 s8      s3 s4 s5 s6 s7 s8         s3 s4, after p1 p2 p0

Legend: that of `scanjoin.py`, where the loop is; w and b are fixed when the operator starts: b by the disk buffer, w as
the rows that the remaining memory holds, divided by the N_R / b iterations for which each stays.
"""

from __future__ import annotations

from typing import ClassVar

from .scanjoin import ScanJoin


class MeshJoin(ScanJoin):
    """Invariants: those of the scan joins; at most N_R / b packets are in the queue."""

    name: ClassVar[str] = "meshjoin"
    borrows: ClassVar[bool] = True
