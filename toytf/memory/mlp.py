"""The rules that build a two-layer memory F(e) = Vᵀ σ(W e) from an Association, and the polynomials they use."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.constructions import ridge_regression

Activation = Callable[[Tensor], Tensor]
"""A function of one number, applied to every entry."""


def hermite(x: Float[Tensor, "*shape"], degree: int) -> Float[Tensor, "*shape"]:
    """The normalised probabilists' Hermite polynomial h_q(x), q = degree.

    h_0 = 1,   h_1 = x,   √(q+1) h_{q+1} = x h_q − √q h_{q−1}

    E[h_p(g) h_q(g)] = 1{p = q} for g ~ N(0, 1), and E[h_p(g) h_q(g')] = ρ^q 1{p = q} if g, g' have correlation ρ.
    """
    if degree < 0:
        raise ValueError(f"Hermite degree = {degree} should be 0, 1, 2, …")
    before, h = torch.zeros_like(x), torch.ones_like(x)
    for q in range(degree):
        before, h = h, (x * h - math.sqrt(q) * before) / math.sqrt(q + 1)
    return h


def hermite_coefficient(activation: Activation, degree: int) -> float:
    """How much of degree q = degree an activation has: c_q = E[σ(g) h_q(g)], g ~ N(0, 1).

    σ = Σ_q c_q h_q. ReLU: c_0 = 1/√(2π), c_1 = 1/2, c_2 = 1/√(4π), no odd degree from 3 on.
    """
    # Gauss–Legendre on pieces of length 1/4, so that a kink or jump at 0 falls between two pieces; beyond
    # 10 + 2√q the Gaussian weight leaves nothing of h_q.
    reach = math.ceil(10 + 2 * math.sqrt(max(degree, 0)))
    nodes, weights = (torch.from_numpy(part) / 8 for part in np.polynomial.legendre.leggauss(24))
    centres = torch.arange(-reach, reach, 0.25, dtype=torch.float64) + 1 / 8
    g = centres[:, None] + nodes
    density = torch.exp(-g.square() / 2) / math.sqrt(2 * math.pi)
    return float((weights * density * activation(g) * hermite(g, degree)).sum())


@dataclass(frozen=True, eq=False)
class MLPMemory:
    """A two-layer memory F(e) = Vᵀ σ(W e), to be read like a matrix: `association.recall(memory)`.

    W_in = W, W_out = V, activation = σ, without biases.
    """

    W_in: Float[Tensor, "width d_in"]
    W_out: Float[Tensor, "width d_out"]
    activation: Activation = torch.relu

    def __call__(self, keys: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Vᵀ σ(W e) for every key e."""
        return self.activation(keys @ self.W_in.T) @ self.W_out

    @property
    def n_parameters(self) -> int:
        """The entries of both matrices, width · (d_in + d_out)."""
        return self.W_in.numel() + self.W_out.numel()


def mlp_hermite(
    association: Association, width: int, degree: int, generator: torch.Generator, activation: Activation | None = None
) -> MLPMemory:
    """Store every pair by its Hermite features of one degree q after random hidden units.

    w_i ~ N(0, I / ⟨|e|²⟩),   V = (± 1/m) Σ_z h_q(W e_z) u_{f(z)}ᵀ,   i = 1 … m

    m = width, ± = the sign of c_q = E[σ(g) h_q(g)], σ = h_q if activation is None. For unit keys
    E_W[u_yᵀ F(e_z)] = |c_q| Σ_z' (e_z·e_z')^q u_y·u_{f(z')}, and the noise on it has variance
    (n/d) (E[σ²]/m + c_q² d^{−q}): about m d pairs fit once d^q ≥ m, while degree 1 is a d × d matrix however wide
    (after the MLP memories of Nichani, Lee, Bietti 2024).
    """
    association.require_finite()
    W = _hidden_weights(width, association.keys, generator)
    activation = partial(hermite, degree=degree) if activation is None else activation
    return _store(association, W, hermite(association.keys @ W.T, degree), degree, activation)


def mlp_pairs(
    first: Float[Tensor, "n d"],
    second: Float[Tensor, "n d"],
    association: Association,
    width: int,
    generator: torch.Generator,
    *,
    ordered: bool = True,
    form: Literal["product", "joint"] = "product",
    degree: int = 2,
    activation: Activation = torch.relu,
) -> MLPMemory:
    """Store facts about pairs, whose keys are sums (e + ẽ)/√2, by Hermite features of total degree q.

    w_i ~ N(0, I / ⟨|e|²⟩),   V = (± 1/m) Σ_z g_z(W) u_{f(z)}ᵀ,   i = 1 … m

    product, ordered:      g = Σ_j (q/2 over j) (−ρ)^j h_{q/2−j}(w·e) h_{q/2−j}(w·ẽ),  ρ = e·ẽ / ⟨|e|²⟩
    product, not ordered:  g = h_{q/2}(w·e) h_{q/2}(w·ẽ), the term j = 0
    joint:                 g = h_q(w·(e + ẽ)/√2)

    first[z] = e, second[z] = ẽ, m = width, ± = the sign of c_q = E[σ(x) h_q(x)]. The product is small for a pair that
    shares only one of its parts, where joint keeps 2^{−q}. Ordering (Wick) subtracts what w·e and w·ẽ have in common,
    (w·e)(w·ẽ) − ρ at degree 2, and leaves a polynomial without parts of lower degree. It matters for an activation with
    a constant part: c_0 of ReLU times the mean ρ of the unordered product adds c_0 Σ_z ρ_z u_{f(z)} to every output,
    an error that no width averages out (after the multi-input memories of Nichani, Lee, Bietti 2024).
    """
    keys = association.keys
    if first.shape != keys.shape or second.shape != keys.shape:
        shapes = " and ".join(str(list(part.shape)) for part in (first, second))
        raise ValueError(f"the parts of the keys have shapes {shapes}, expected that of the keys, {list(keys.shape)}")
    if not torch.allclose(keys, (first + second) / math.sqrt(2), rtol=1e-3, atol=1e-4 * float(keys.abs().max())):
        raise ValueError("the keys of the association are not (first + second) / √2: build them from the two parts")
    if form == "product" and degree % 2:
        raise ValueError(f'degree = {degree} has no product form: choose 2, 4, … or form = "joint"')
    both = torch.cat([first, second])
    association.require_finite()
    W = _hidden_weights(width, both, generator)
    if form == "joint":
        return _store(association, W, hermite(keys @ W.T, degree), degree, activation)
    rho = (first * second).sum(1, keepdim=True) / both.square().sum(1).mean()
    half, a, b = degree // 2, first @ W.T, second @ W.T
    g = hermite(a, half) * hermite(b, half)
    for j in range(1, half + 1 if ordered else 1):
        g = g + math.comb(half, j) * (-rho) ** j * hermite(a, half - j) * hermite(b, half - j)
    return _store(association, W, g, degree, activation)


def mlp_least_squares(
    association: Association,
    width: int,
    generator: torch.Generator,
    ridge: float = 1e-3,
    activation: Activation = torch.relu,
) -> MLPMemory:
    """Map every key near its value by least squares on random hidden units.

    w_i ~ N(0, I / ⟨|e|²⟩),   V = Φᵀ (ΦΦᵀ + λI)⁻¹ Y,   Φ = σ(X Wᵀ),   λ = ridge · tr(ΦΦᵀ) / n

    X [n d_in] has the keys as rows, Y [n d_out] the value of each, Φ [n m] the hidden units, m = width. Needs far fewer
    hidden units than `mlp_hermite`: some 20 parameters for each pair rather than thousands.
    """
    association.require_finite()
    W = _hidden_weights(width, association.keys, generator)
    features, Y = activation(association.keys @ W.T), association.values[association.targets]
    return MLPMemory(W, ridge_regression(features, Y, ridge, directions=len(features)), activation)


def _hidden_weights(width: int, keys: Float[Tensor, "n d"], generator: torch.Generator) -> Float[Tensor, "width d"]:
    """w_i ~ N(0, I / ⟨|e|²⟩), so that w·e ~ N(0, 1) whatever the scale of the keys."""
    if width < 1:
        raise ValueError(f"width = {width} leaves no hidden unit: choose 1 or more")
    w = torch.randn(width, keys.shape[1], generator=generator, dtype=keys.dtype)
    return w.to(keys.device) / keys.square().sum(1).mean().sqrt()


def _store(
    association: Association,
    W: Float[Tensor, "width d_in"],
    features: Float[Tensor, "n width"],
    degree: int,
    activation: Activation,
) -> MLPMemory:
    """V = (sgn c_q / m) Σ_z g_z u_{f(z)}ᵀ, refusing an activation that cannot see degree q."""
    if degree < 1:
        raise ValueError(f"degree = {degree} does not depend on the key: choose 1 or more")
    c = hermite_coefficient(activation, degree)
    if abs(c) < 1e-6:
        raise ValueError(
            f"the activation has no part of degree {degree} (its Hermite coefficient is 0): choose another"
        )
    V = features.T @ association.values[association.targets] * (math.copysign(1, c) / len(W))
    return MLPMemory(W, V, activation)
