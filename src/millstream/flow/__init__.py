"""Flows: the activities between a source and the warehouse, as data; their files, their checks, their picture.

Knows no Spark: `millstream.Flow` runs what is described here.
"""

from .drawing import draw
from .graph import Graph
from .nodes import (
    Aggregate,
    Cast,
    Deduplicate,
    Derive,
    DetectUpdates,
    Difference,
    Domain,
    Enrich,
    Files,
    ForeignKey,
    Frame,
    Node,
    NotNull,
    ParquetFiles,
    Rename,
    Replicate,
    Route,
    Select,
    Staging,
    SurrogateKey,
    Table,
)
from .problems import Problem

__all__ = [
    "Aggregate",
    "Cast",
    "Deduplicate",
    "Derive",
    "DetectUpdates",
    "Difference",
    "Domain",
    "Enrich",
    "Files",
    "ForeignKey",
    "Frame",
    "Graph",
    "Node",
    "NotNull",
    "ParquetFiles",
    "Problem",
    "Rename",
    "Replicate",
    "Route",
    "Select",
    "Staging",
    "SurrogateKey",
    "Table",
    "draw",
]
