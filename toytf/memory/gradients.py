"""What one gradient step on the cross-entropy writes into a matrix."""

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association


def gradient_step(
    association: Association,
    W: Float[Tensor, "d_out d_in"] | None = None,
    *,
    lr: float = 1.0,
    conditional: Float[Tensor, "n m"] | None = None,
) -> Float[Tensor, "d_out d_in"]:
    """One step of gradient descent on the cross-entropy of p̂_W(y|z) = softmax_y(u_yᵀ W e_z).

    W_1 = W − η ∇L(W),   ∇L(W) = Σ_z p(z) Σ_y (p̂_W(y|z) − p(y|z)) u_y e_zᵀ

    η = lr; W = 0 if None; p(z) are the normalised weights, uniform if there are none; conditional[z, y] = p(y|z), by
    default 1{y = f(z)}. Values that may not compete have p̂ = 0. From W = 0 with orthonormal keys and values the step
    gives u_yᵀ W_1 e_z = η p(z) (1{y = f(z)} − 1/m): `hebbian`, minus the mean value (Bietti et al. 2023, Lemma 1).
    """
    if conditional is None:
        shape = len(association.keys), len(association.values)
        conditional = association.keys.new_zeros(shape).scatter(1, association.targets[:, None], 1.0)
    W, p = _start(association, W)
    error = association.scores(W).softmax(1) - conditional
    return W - lr * association.values.T @ (p * error).T @ association.keys


def noisy_gradient_step(
    association: Association, W: Float[Tensor, "d_out d_in"] | None = None, *, lr: float = 1.0
) -> Float[Tensor, "d_out d_in"]:
    """The same step, for keys x that are noisy inputs of their class y: it writes the mean of each class.

    W_1 = W − η ∇L(W),   ∇L(W) = Σ_k p(y=k) u_k (μ̂_k − μ_k)ᵀ,   μ_k = E[x | y=k],   μ̂_k = E[p̂_W(k|x) x] / p(y=k)

    η = lr; W = 0 if None; keys[i] = x_i with probability p(x_i) (the normalised weights, uniform if there are none) and
    class targets[i]. A class that never occurs has the term u_k E[p̂_W(k|x) x]ᵀ. From W = 0 with uniform classes
    W_1 = η Σ_k p(y=k) u_k (μ_k − E[x])ᵀ: noise that does not depend on the class cancels (Bietti et al. 2023, Lemma 2).
    """
    W, p = _start(association, W)
    x = p * association.keys
    # p(y=k) μ_k = E[1{y=k} x], and likewise for μ̂: no division by p(y=k), which may be 0.
    believed = association.scores(W).softmax(1).T @ x
    observed = torch.zeros_like(believed).index_add(0, association.targets, x)
    return W - lr * association.values.T @ (believed - observed)


def _start(
    association: Association, W: Float[Tensor, "d_out d_in"] | None
) -> tuple[Float[Tensor, "d_out d_in"], Float[Tensor, "n 1"]]:
    """W, 0 if None, and p(z)."""
    association.require_finite()
    keys, weights = association.keys, association.weights
    p = torch.full_like(keys[:, 0], 1 / max(len(keys), 1)) if weights is None else weights / weights.sum()
    return keys.new_zeros(association.values.shape[1], keys.shape[1]) if W is None else W, p[:, None]
