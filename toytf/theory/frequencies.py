"""Heavy-tailed frequencies: p(z) ∝ z^−α on z = 1 … N, and what n draws from them leave unseen (Hutter 2021)."""

import numpy as np
from jaxtyping import Float

from toytf.theory._domain import Real, at_least


def zipf(n_inputs: int, alpha: Real) -> Float[np.ndarray, "N"]:
    """p(z) = z^−α / Σ_{k ≤ N} k^−α for z = 1 … N; α = 0 is uniform."""
    at_least(1, n_inputs=n_inputs)
    at_least(0, alpha=alpha)
    mass = np.arange(1, n_inputs + 1, dtype=np.float64) ** -float(alpha)
    p: Float[np.ndarray, "N"] = mass / mass.sum()
    return p


def unseen_mass(p: Float[np.ndarray, "N"], samples: Real) -> float:
    """The expected frequency of what n draws have not met, exactly: Σ_z p(z) (1 − p(z))ⁿ."""
    at_least(0, samples=samples)
    with np.errstate(divide="ignore"):  # p(z) = 1: one draw sees it
        unseen = np.exp(samples * np.log1p(-p)) if samples else np.ones_like(p)
    return float(p @ unseen)


def sampling_floor(p: Float[np.ndarray, "N"], samples: Real, n_outputs: int) -> float:
    """The least error that n samples allow on average: (1 − 1/M) of what they have not met; one guess in M is right."""
    at_least(1, n_outputs=n_outputs)
    return (1 - 1 / n_outputs) * unseen_mass(p, samples)
