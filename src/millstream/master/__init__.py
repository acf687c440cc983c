"""Master data on disk: built once, versioned, read by segment inside a budget."""

from .build import Build, build_local
from .master import Master
from .parts import BuildSpec, write_part

__all__ = ["Build", "BuildSpec", "Master", "build_local", "write_part"]
