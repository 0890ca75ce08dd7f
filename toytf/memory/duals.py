"""Memories that are read out of a sum of vectors: duals, which see their own vector and nothing beside it."""

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.constructions import ridge_regression

RIDGE = 1e-3
"""The price λ on the size of a dual, relative to the mean |x|² of the vectors that it reads."""


def dual_vectors(X: Float[Tensor, "n d"], beside: Float[Tensor, "m d"] | None = None) -> Float[Tensor, "n d"]:
    """Vectors δ_z that see x_z and, as little as possible, any other of the X or of those beside them.

    δ_z = argmin_δ Σ_z' (δ·x_z' − 1{z = z'})² + Σ_b (δ·b)² + λ|δ|²,   λ = 10⁻³ ⟨|x|²⟩

    With no more vectors than dimensions they are exact up to λ. With more of them, long vectors are kept out more
    strictly than short ones, and δ_z·x_z < 1.
    """
    everything = X if beside is None else torch.cat([X, beside])
    own = torch.eye(len(everything), len(X), dtype=X.dtype, device=X.device)
    return ridge_regression(everything, own, RIDGE, directions=len(everything)).T


def dual_matrix(
    association: Association,
    beside_keys: Float[Tensor, "k d_in"] | None = None,
    beside_values: Float[Tensor, "v d_out"] | None = None,
) -> Float[Tensor, "d_out d_in"]:
    """Store every pair so that neither other keys and values nor what is beside them in the stream is taken for it.

    W = Σ_z ũ_{f(z)} ẽ_zᵀ,   ẽ_z, ũ_y = `dual_vectors` of the keys and of the values

    Scores are near 1 for the pairs and near 0 for all others. With nothing beside them, and without the ridge, this is
    `bi_whitened`.
    """
    association.require_finite()
    values = dual_vectors(association.values, beside_values)
    return values[association.targets].T @ dual_vectors(association.keys, beside_keys)
