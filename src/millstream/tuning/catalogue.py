"""The cost model of each algorithm, by name."""

from __future__ import annotations

from .models import CacheModel, HybridModel, Model, MoijModel, XHybridModel
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
