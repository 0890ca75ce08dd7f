"""Which scheme q a trained matrix stores: W = Σ_z q(z) u_{f(z)} e_zᵀ + …, read back from W.

A matrix that was trained by gradients from W = 0 is W = Uᵀ Cᵀ E: every step adds a combination of outer products
u_y e_zᵀ. If the vectors are linearly independent, C can be solved for, and q(z) = C[z, f(z)]. The scores u_yᵀ W e_z
themselves would not do: they are mixed with what other inputs left along e_z (Cabannes, Dohmatob, Bietti 2024).
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from toytf.fits import Slope, log_slope
from toytf.memory.association import exact


@dataclass(frozen=True, eq=False)
class ReadOut:
    """The coefficients C of W = Uᵀ Cᵀ E, and how much they tell."""

    C: Float[Tensor, "N M"]
    """In float64. Each row sums to 0, because a gradient raises one answer by what it takes from the others."""
    residual: float
    """‖W − Uᵀ Cᵀ E‖ / ‖W‖: the part of W that is no such combination, as sign descent leaves it; 0 for W = 0."""
    unique: bool
    """Are the vectors linearly independent? If not, C is the shortest of many solutions, and q means little."""

    def scheme(self, targets: Int[Tensor, "N"]) -> Float[np.ndarray, "N"]:
        """q(z) = C[z, f(z)]."""
        q: Float[np.ndarray, "N"] = self.C.gather(1, targets.cpu()[:, None])[:, 0].numpy()
        return q


def read_out(W: Float[Tensor, "d_out d_in"], E: Float[Tensor, "N d_in"], U: Float[Tensor, "M d_out"]) -> ReadOut:
    """C = (E Eᵀ)⁻¹ E Wᵀ Uᵀ (U Uᵀ)⁻¹, by least squares where the vectors are dependent, such as N > d."""
    W, E, U = exact(W), exact(E), exact(U)
    C = torch.linalg.pinv(E).T @ W.T @ torch.linalg.pinv(U)
    norm = float(W.norm())
    residual = float((W - U.T @ C.T @ E).norm()) / norm if norm > 0 else 0.0
    unique = all(int(torch.linalg.matrix_rank(vectors)) == len(vectors) for vectors in (E, U))
    return ReadOut(C, residual, unique)


@dataclass(frozen=True)
class StorageExponent:
    """The power ρ of q ∝ frequency^ρ, and how many inputs could not take part."""

    slope: Slope | None
    """None if fewer than two different frequencies are left."""
    left_out: float
    """Fraction of the inputs with a frequency above 0 whose q is not above 0, so that it has no logarithm."""


def storage_exponent(q: Float[np.ndarray, "N"], frequency: Shaped[np.ndarray, "N"]) -> StorageExponent:
    """ρ by least squares of log q on log frequency, over the inputs where both are above 0.

    frequency: counts of a sample, or probabilities. One step from W = 0 has ρ = 1 against its counts.
    """
    there: Bool[np.ndarray, "N"] = np.asarray(frequency) > 0
    positive = there & (q > 0)
    left_out = 1 - positive.sum() / there.sum() if there.any() else 0.0
    return StorageExponent(log_slope(frequency[positive].tolist(), q[positive].tolist()), float(left_out))
