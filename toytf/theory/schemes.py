"""How the error of a memory W = Σ_z q(z) u_{f(z)} e_zᵀ falls with its dimension (Cabannes, Dohmatob, Bietti 2024).

Inputs z come with frequency p(z) ∝ z^−α, answers are f(z), and q is the scheme: how strongly each input is stored. With
random vectors, s(z, y) = u_yᵀ W e_z is q(z) 1{y = f(z)} plus noise of variance Q_y / d, Q_y = Σ_{f(z') = y} q(z')²: an
input is recalled as long as d q(z)² is well above 2 log M · Q_y. The exponents hold for a fixed number M of answers.
"""

import numpy as np
import scipy
from jaxtyping import Float, Int

from toytf.theory._domain import Real, at_least

DRAWS = 512
"""Draws of output vectors and noise over which `scheme_error` is averaged."""

_LEVEL = 1e-12
"""Differences of scores below this are ties."""

_POINTS = 160
"""Strengths at which the error is computed; between them it is interpolated."""


def power_exponent(alpha: Real, rho: Real) -> float:
    """The power of d with which the error falls if q = p^ρ: −(α − 1) / (2 α ρ).

    ρ = 1, storing by frequency: −(α−1)/(2α). ρ = 1/(2α): −(α−1), as a threshold does, up to log N. Below that, d must
    also be above a power of N, d ≫ N^{1−2αρ}.
    """
    at_least(1, alpha=alpha)
    if rho <= 0:
        raise ValueError(f"rho is {rho}, expected a number above 0: storing all alike has no power law")
    return -(alpha - 1) / (2 * alpha * rho)


def threshold_exponent(alpha: Real, *, answers_grow: bool = False) -> float:
    """The same if only the most frequent inputs are stored, as many as fit: −(α − 1), the best that there is.

    That is for M fixed, where about d inputs fit. answers_grow: if every input has an answer of its own about d² fit,
    and the power is −2 (α − 1).
    """
    at_least(1, alpha=alpha)
    return (2.0 if answers_grow else 1.0) * (1 - alpha)


def tail_error(p: Float[np.ndarray, "N"], stored: int, n_outputs: int) -> float:
    """The error if the first inputs are stored and recalled, and the others are guessed: (1 − 1/M) Σ_{z > P} p(z)."""
    at_least(0, stored=stored)
    at_least(1, n_outputs=n_outputs)
    return float((1 - 1 / n_outputs) * p[stored:].sum())


def scheme_error(
    q: Float[np.ndarray, "N"],
    p: Float[np.ndarray, "N"],
    targets: Int[np.ndarray, "N"],
    d: int,
    n_outputs: int,
    *,
    sphere: bool = False,
) -> float:
    """The expected error of a scheme with random vectors, without simulating them: Σ_z p(z) P[z is not recalled].

    s(z, ·) = g H,   H = U Uᵀ,   g_y ~ N(q(z) 1{y = f(z)} χ²_d / d, (Q_y − q(z)² 1{y = f(z)}) / d)

    Output vectors U, the length χ² of e_z and the noise along other answers are drawn; that along f(z) is integrated.
    sphere: of vectors of length 1, where χ²_d / d and the diagonal of H are 1. A tie is an error: with q = 0 nothing is
    recalled.
    """
    at_least(1, d=d, n_outputs=n_outputs)
    if n_outputs == 1:
        return 0.0
    if not q.any():
        return float(p.sum())
    random = np.random.default_rng([d, n_outputs, DRAWS])
    H = _grams(random, n_outputs, d)
    xi, length = random.standard_normal((DRAWS, n_outputs)), random.chisquare(d, DRAWS) / d
    if sphere:
        norms = np.sqrt(np.einsum("dii->di", H))
        H, length = H / (norms[:, :, None] * norms[:, None]), np.ones(DRAWS)
    variances = np.bincount(targets, q**2, n_outputs) / d
    error = 0.0
    for y in np.unique(targets).tolist():
        own = targets == y
        strengths = _points(q[own])
        low, high = _bounds(y, xi * np.sqrt(variances), H)
        signal = strengths[:, None] * length
        spread = np.sqrt(np.maximum(variances[y] - strengths[:, None] ** 2 / d, np.finfo(float).tiny))
        recalled = scipy.special.ndtr((high - signal) / spread) - scipy.special.ndtr((low - signal) / spread)
        error += float(p[own] @ (1 - np.interp(q[own], strengths, recalled.clip(0, 1).mean(1))))
    return error


def _bounds(
    y: int, noise: Float[np.ndarray, "draw M"], H: Float[np.ndarray, "draw M M"]
) -> tuple[Float[np.ndarray, "draw"], Float[np.ndarray, "draw"]]:
    """Between which values g_y must be for answer y to have the highest score, given the noise along other answers.

    Answer y beats r if (H_yy − H_yr) g_y + Σ_{k ≠ y} noise_k (H_ky − H_kr) > 0.
    """
    others = np.arange(noise.shape[1]) != y
    gain = H[:, y, [y]] - H[:, y, others]
    elsewhere = np.einsum("dk,dkr->dr", noise[:, others], H[:, others, y, None] - H[:, others][:, :, others])
    level = np.abs(gain) < _LEVEL  # u_y tells y from r not at all: equal vectors, as on the sphere in one dimension
    bounds = -elsewhere / np.where(level, 1.0, gain)
    low = np.where(level, np.where(elsewhere > _LEVEL, -np.inf, np.inf), np.where(gain > 0, bounds, -np.inf))
    return low.max(1), np.where(~level & (gain < 0), bounds, np.inf).min(1)


def _points(q: Float[np.ndarray, "n"]) -> Float[np.ndarray, "k"]:
    """Strengths in ascending order at which the error is computed: all that there are, or evenly spaced ones."""
    different = np.unique(q)
    if len(different) <= _POINTS:
        return different
    positive = different[different > 0]
    spaced = np.geomspace(positive[0], positive[-1], _POINTS)
    return np.concatenate([different[different == 0], spaced])


def _grams(random: np.random.Generator, n_outputs: int, d: int) -> Float[np.ndarray, "draw M M"]:
    """U Uᵀ for n_outputs rows N(0, I/d), by its Cholesky factor (Bartlett) if that is smaller than U."""
    if d < n_outputs:
        factor = random.standard_normal((DRAWS, n_outputs, d))
    else:
        factor = np.tril(random.standard_normal((DRAWS, n_outputs, n_outputs)), -1)
        diagonal = np.sqrt(random.chisquare(d - np.arange(n_outputs), (DRAWS, n_outputs)))
        factor += diagonal[:, :, None] * np.eye(n_outputs)
    H: Float[np.ndarray, "draw M M"] = factor @ factor.transpose(0, 2, 1) / d
    return H
