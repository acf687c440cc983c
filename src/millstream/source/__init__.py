"""The source side: applications hand over records and go on, and every record reaches staging once.

with FlowRegulator("grpc://staging:7411", "orders", source="till-7", spool="/var/spool/till") as regulator:
    regulator.send((17, "C0042", 3, 12.5))
"""

from .regulator import FlowRegulator
from .stats import SourceStats

__all__ = ["FlowRegulator", "SourceStats"]
