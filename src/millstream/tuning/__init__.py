"""What a budget buys: cost models of the joins, measured cost factors, and plans.

factors = tuning.calibrate(master)                                  # once for each master and machine, under a minute
tuning.plan("moij", master, factors, memory="256MB", skew=1.0)      # parameters with the highest rate
tuning.plan("meshjoin", master, factors, rate=50_000)               # parameters with the least memory
"""

from __future__ import annotations

from .advice import BufferCurve, advice, curves
from .calibration import calibrate
from .catalogue import MODELS
from .factors import Factors, load, save
from .planning import Plan, model_of, plan
from .sample_stream import STREAM_ROW_BYTES
from .skew import estimate_skew

ALGORITHMS: tuple[str, ...] = tuple(MODELS)

__all__ = [
    "ALGORITHMS",
    "STREAM_ROW_BYTES",
    "BufferCurve",
    "Factors",
    "Plan",
    "advice",
    "calibrate",
    "curves",
    "estimate_skew",
    "load",
    "model_of",
    "plan",
    "save",
]
