"""Small tasks of associations, and models for them."""

from typing import Any

import torch

from tasks.association.config import AssociationConfig
from tasks.association.task import AssociationTask
from toytf.build import build_model
from toytf.config.plugins import load_config
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig

CPU = torch.device("cpu")


def make(**fields: Any) -> AssociationTask:
    return AssociationTask(AssociationConfig.model_validate({"kind": "association", **fields}), CPU)


def memory_model(task: AssociationTask, d: int = 16, seed: int = 0, **changes: Any) -> ToyTransformer:
    """The model of configs/models/memory.yaml; changes by dotted key, below `model`."""
    overrides = {f"model.{key}": value for key, value in {"d_model": d, **changes}.items()}
    config: Any = load_config("association/memory", overrides)
    assert isinstance(config.model, ModelConfig)
    return build_model(config.model, task, seed)


def write(model: ToyTransformer, W: torch.Tensor) -> None:
    """Make W the memory: logits u_yᵀ W e_z."""
    with torch.no_grad():
        model.attention(0).W_O[0] = W.T
