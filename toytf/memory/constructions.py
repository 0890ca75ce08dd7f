"""The rules that build a matrix from an Association."""

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association, exact


def hebbian(association: Association) -> Float[Tensor, "d_out d_in"]:
    """Store every pair as an outer product.

    W = Σ_z u_{f(z)} e_zᵀ

    Every pair counts once, whatever its weight: the weights say how often a key is asked for, not how strongly it is
    stored (Bietti et al. 2023, §4).
    """
    association.require_finite()
    return association.values[association.targets].T @ association.keys


def pseudo_inverse(association: Association) -> Float[Tensor, "d_out d_in"]:
    """Map every key as near as possible to its value: least squares, the smallest W of several.

    W = Σ_z u_{f(z)} ẽ_zᵀ = U_fᵀ (X⁺)ᵀ,   ẽ_z = (XᵀX)⁺ e_z

    X [n d_in] has the keys as rows, U_f [n d_out] the value of each. W e_z = u_{f(z)} exactly if the keys are
    independent, so for n ≤ d_in in general position; for n ≫ d_in random keys it tends to `hebbian`, up to scale.
    """
    association.require_finite()
    W = exact(association.values[association.targets]).T @ _pinv(association.keys).T
    return W.to(association.keys)


def ridge(association: Association, strength: float = 1e-3) -> Float[Tensor, "d_out d_in"]:
    """Map every key near its value, with a price on the size of W.

    W = U_fᵀ X (XᵀX + λI)⁻¹,   λ = strength · tr(XᵀX) / d_in

    X [n d_in] has the keys as rows, U_f [n d_out] the value of each. λ is relative to the mean eigenvalue of XᵀX, so
    the scale of the keys does not matter. `pseudo_inverse` is the limit strength → 0, `hebbian` (up to scale) that of
    strength → ∞.
    """
    association.require_finite()
    X, Y = association.keys, association.values[association.targets]
    return ridge_regression(X, Y, strength, directions=X.shape[1]).T


def bi_whitened(association: Association) -> Float[Tensor, "d_out d_in"]:
    """Bring all scores as near as possible to one-hot: least squares, with keys and values whitened.

    W = (UᵀU)⁺ U_fᵀ X (XᵀX)⁺ = argmin_W Σ_z Σ_y (u_yᵀ W e_z − 1{y = f(z)})²

    X [n d_in] has the keys as rows, U [m d_out] all values, U_f [n d_out] the value of each key; of several minima the
    smallest. It removes the overlaps of the values as well as those of the keys: of n random pairs on the sphere at
    d = 32 all are recalled in half of the draws at n ≈ 68, with `ridge` 59, with `hebbian` 33. As for the optimum of
    Giorlandino, Goldt, Maillard 2026, linear maps of the keys or of the values change nothing.
    """
    association.require_finite()
    W = _pinv(association.values)[:, association.targets.cpu()] @ _pinv(association.keys).T
    return W.to(association.keys)


def low_rank(association: Association, rank: int, generator: torch.Generator) -> Float[Tensor, "d_out d_in"]:
    """Store every pair through a random bottleneck, as one gradient step on its second factor does.

    W = W_1ᵀ W_2,   W_1 [rank d_out] ~ N(0, 1/rank),   W_2 = Σ_z (W_1 u_{f(z)}) e_zᵀ  [rank d_in]

    The overlaps u_yᵀ W_1ᵀ W_1 u_{f(z)} have variance 1/rank however few pairs there are, so the rank must exceed a
    multiple of log n; beyond that about rank · d pairs fit (Nichani, Lee, Bietti 2024).
    """
    keys, d_out, d_in = association.keys, association.values.shape[1], association.keys.shape[1]
    from toytf.theory import rank_fits  # the theory brings scipy, which training can do without

    rank_fits(rank, d_in, d_out)
    W_1 = torch.randn(rank, d_out, generator=generator, dtype=keys.dtype).to(keys.device) / rank**0.5
    W_2 = W_1 @ hebbian(association)
    W: Tensor = W_1.T @ W_2
    return W


def ridge_regression(
    X: Float[Tensor, "n d_in"], Y: Float[Tensor, "n d_out"], strength: float, *, directions: int
) -> Float[Tensor, "d_in d_out"]:
    """The B that minimises |XB − Y|² + λ|B|², from the smaller of its two linear systems, solved in float64.

    B = (XᵀX + λI)⁻¹ XᵀY = Xᵀ (XXᵀ + λI)⁻¹ Y,   λ = strength · |X|² / directions

    |X|² = tr(XᵀX) = tr(XXᵀ), so λ is relative to the mean eigenvalue of the matrix with that many directions.
    """
    if not strength > 0:
        raise ValueError(f"ridge strength = {strength:g} should be a number above 0, such as 0.001")
    x, y = exact(X), exact(Y)
    level = (strength * x.square().sum() / directions).clamp_min(torch.finfo(x.dtype).tiny)  # X = 0 has B = 0
    penalty = level * torch.eye(min(x.shape), dtype=x.dtype)
    wide = x.shape[0] < x.shape[1]
    B: Tensor = (
        x.T @ torch.linalg.solve(x @ x.T + penalty, y) if wide else torch.linalg.solve(x.T @ x + penalty, x.T @ y)
    )
    return B.to(X)


def _pinv(X: Float[Tensor, "n d"]) -> Float[Tensor, "d n"]:
    """X⁺ in float64; a direction that is only rounding error in the dtype of X counts as absent."""
    inverse: Tensor = torch.linalg.pinv(exact(X), rtol=10 * torch.finfo(X.dtype).eps)
    return inverse
