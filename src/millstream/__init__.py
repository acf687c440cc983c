"""Millstream joins a fast stream with master data that does not fit in memory, inside a budget given in bytes.

`import millstream as ms` is cheap: each name below is loaded when it is first used, so that programs which drive the
join operators themselves never load Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors, flow, joins, master, source, spark, staging, tuning, warehouse, workloads
    from .errors import MillstreamError
    from .master import Master
    from .spark.build import build_master
    from .spark.flow import Flow
    from .spark.join import join

__version__ = "0.1.0"

__all__ = [
    "Flow",
    "Master",
    "MillstreamError",
    "__version__",
    "build_master",
    "errors",
    "flow",
    "join",
    "joins",
    "master",
    "source",
    "spark",
    "staging",
    "tuning",
    "warehouse",
    "workloads",
]

# name -> module that defines it; a module that bears the name itself is the value
_HOMES = {
    "Flow": "millstream.spark.flow",
    "Master": "millstream.master",
    "MillstreamError": "millstream.errors",
    "build_master": "millstream.spark.build",
    "errors": "millstream.errors",
    "flow": "millstream.flow",
    "join": "millstream.spark.join",
    "joins": "millstream.joins",
    "master": "millstream.master",
    "source": "millstream.source",
    "spark": "millstream.spark",
    "staging": "millstream.staging",
    "tuning": "millstream.tuning",
    "warehouse": "millstream.warehouse",
    "workloads": "millstream.workloads",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(home)
    value = module if home == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
