"""Small random models of several shapes, and sequences for them."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.randomness import generator

B, N, T, D, H = 3, 7, 9, 12, 3
"""How many sequences, tokens, positions, dimensions and, where there are several, heads."""

SHAPES: dict[str, dict[str, Any]] = {
    "simplified": {"attention": {"kq": "joint"}},
    "joint": {"attention": {"kq": "joint", "ov": "joint", "scale": 1}},
    "full": {"norm": "layer", "attention": {"n_heads": H}, "feed_forward": {"kind": "relu"}},
    "bias": {"feed_forward": {"kind": "relu", "bias": True}},
}


def build(shape: dict[str, Any], seed: int = 0, n_outputs: int = N) -> ToyTransformer:
    config = ModelConfig.model_validate({"d_model": D, **shape})
    return ToyTransformer(config, n_tokens=N, n_positions=T, n_outputs=n_outputs, generator=generator(seed, "model"))


def small(seed: int = 0, n_outputs: int = N, **shape: Any) -> ToyTransformer:
    """In double precision, so that only a wrong equation can differ by more than 1e-10."""
    return build(shape, seed, n_outputs).double()


def some_tokens(seed: int = 0) -> torch.Tensor:
    return torch.randint(N, (B, T), generator=generator(seed, "tokens"))


def numbers(model: ToyTransformer) -> dict[str, NDArray[np.float64]]:
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
