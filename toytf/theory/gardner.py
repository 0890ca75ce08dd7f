"""The volume of the weights that store everything, as a function of how alike two of them are.

Replica-symmetric free entropy of the memory with fresh rivals for every key (derived; the problem is convex for κ ≥ 0).
"""

import math

import numpy as np
import scipy
from jaxtyping import Float

from toytf.theory._domain import Real, at_least

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
"""Enough for an error of 1e-3 in log P_q up to p = 4096, below that of the sampling."""
_BLOCK = 32
"""Draws evaluated at once."""
_LARGEST = 12.0
"""−log(1 − q) up to which a stationary overlap is looked for."""


def gardner_entropy(q: Real, p: int, size: int, kappa: Real = 0.0, *, samples: int = 2000, seed: int = 0) -> float:
    """The free entropy per weight of the matrices that store p associations, at overlap q = tr(W_aᵀ W_b) / d².

    Φ(q)/d² = ½ log(1 − q) + q / (2 (1 − q)) + (p/d²) E log P_q,   d² = size = d_in d_out
    P_q = ∫Dw Π_{ν=1}^{p−1} Φ( (√q (z_0 − z_ν) − κ) / √(1 − q) + w )

    The average is over the same normal draws (z_0, z) for every q. P_0 = 1/p for κ = 0, and for q → 1
    (1 − q) E log P_q → −δ_κ(p)/2, which is where p δ_κ(p) = d² comes from.
    """
    if not 0 <= q < 1:
        raise ValueError(f"q is {q}, expected at least 0 and less than 1, where the entropy diverges")
    at_least(1, p=p, size=size, samples=samples)
    at_least(0, kappa=kappa)
    spatial = math.log1p(-q) / 2 + q / (2 * (1 - q))
    return spatial + p / size * _log_storage(q, p, kappa, samples, seed)


def typical_overlap(p: int, size: int, kappa: Real = 0.0, *, samples: int = 2000, seed: int = 0) -> float:
    """The overlap q* of two matrices drawn among those that store p associations: the minimum of `gardner_entropy`.

    Grows with p and reaches 1 at capacity, where the solution is unique; 1 beyond, where there is none.
    """

    def entropy(depth: float) -> float:
        return gardner_entropy(-math.expm1(-depth), p, size, kappa, samples=samples, seed=seed)

    depth = scipy.optimize.minimize_scalar(entropy, bounds=(0.0, _LARGEST), method="bounded", options={"xatol": 5e-3}).x
    return 1.0 if depth > _LARGEST - 0.01 else -math.expm1(-depth)


def _log_storage(q: Real, p: int, kappa: Real, samples: int, seed: int) -> float:
    """E log P_q over `samples` draws of (z_0, z)."""
    if p == 1:
        return 0.0
    total = 0.0
    for block, rng in enumerate(np.random.default_rng(seed).spawn(math.ceil(samples / _BLOCK))):
        # One row per score: a larger p only adds rivals to the same draws.
        z = rng.standard_normal((p, _BLOCK)).T[: samples - block * _BLOCK]
        lead = (math.sqrt(q) * (z[:, :1] - z[:, 1:]) - kappa) / math.sqrt(1 - q)
        total += float(_log_probability(lead).sum())
    return total / samples


def _log_probability(lead: Float[np.ndarray, "samples rivals"]) -> Float[np.ndarray, "samples"]:
    """log ∫Dw Π_ν Φ(lead_ν + w), by Gauss–Hermite nodes around the maximum of the integrand.

    The maximum is at w ~ 1/√(1 − q), out of reach of nodes around 0. Its curvature gives the width σ ≤ 1 of the peak;
    the tail to the right has width 1, so the nodes are spread by √σ.
    """
    w, curvature = _peak(lead)
    scale = curvature**-0.25
    at = w[:, None] + scale[:, None] * _NODES
    logs = scipy.special.log_ndtr(lead[:, :, None] + at[:, None, :]).sum(axis=1) - at**2 / 2 + _NODES**2 / 2
    return np.asarray(scipy.special.logsumexp(logs, axis=1, b=_WEIGHTS) + np.log(scale) - math.log(2 * math.pi) / 2)


def _peak(lead: Float[np.ndarray, "samples rivals"]) -> tuple[np.ndarray, np.ndarray]:
    """Where −w²/2 + Σ_ν log Φ(lead_ν + w) is largest, and minus its second derivative there.

    The slope is convex and positive at w = 0, so that Newton's steps from there never overshoot.
    """
    w = np.zeros(len(lead))
    for _ in range(100):
        x = lead + w[:, None]
        hazard = np.exp(-(x**2) / 2 - scipy.special.log_ndtr(x)) / math.sqrt(2 * math.pi)
        slope = hazard.sum(axis=1) - w
        curvature = 1 + (hazard * (hazard + x)).sum(axis=1)
        w = w + slope / curvature
        if np.abs(slope / curvature).max() < 1e-8 * (1 + np.abs(w).max()):
            break
    return w, curvature
