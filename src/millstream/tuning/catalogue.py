"""The cost model of each algorithm, by name."""

from __future__ import annotations

from ..master import Master
from .models import CacheModel, HotFirstModel, HybridModel, Model, MoijModel, XHybridModel
from .scan_models import (
    AdaptiveMeshModel,
    BalancedModel,
    MeshModel,
    NestedLoopModel,
    ReducedMeshModel,
    SweepModel,
)

MODELS: dict[str, type[Model]] = {
    model.operator.name: model
    for model in (
        SweepModel,
        MoijModel,
        CacheModel,
        XHybridModel,
        HybridModel,
        NestedLoopModel,
        MeshModel,
        AdaptiveMeshModel,
        ReducedMeshModel,
        BalancedModel,
    )
}


def model_class(algorithm: str, master: Master) -> type[Model]:
    """The cost model of what runs an algorithm on a master."""
    return HotFirstModel if algorithm == "auto" and master.layout == "frequency" else MODELS[algorithm]
