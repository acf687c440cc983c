"""Master data on disk: built once, versioned, read by segment inside a budget."""

from .build import Build, build_local
from .master import Master
from .parts import BuildSpec, write_part
from .scan import ParquetScan

__all__ = ["Build", "BuildSpec", "Master", "ParquetScan", "build_local", "write_part"]
