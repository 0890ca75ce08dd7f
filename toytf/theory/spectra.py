"""The singular values of full memories: a Gaussian matrix at the optimum, a product of two for the Hebbian rule.

All singular values s are those of √m W / ‖W‖_F with m = min(d_in, d_out), so that their mean square is 1.
"""

import math

import numpy as np
from jaxtyping import Float

from toytf.theory._domain import at_least, rank_fits

Values = Float[np.ndarray, "n"]


# The Gaussian matrix. With λ = m / max(d_in, d_out) it has s² = 1 + λ + 2√λ cos φ (Marchenko and Pastur 1967), and the
# energy s² has the density (2/π) sin²φ in the angle φ from 0, the largest, to π. For λ = 1, s = 2 cos(φ/2): the quarter
# circle.


def top_energy(rank: int, d_in: int, d_out: int) -> float:
    """The fraction of ‖W‖_F² in the `rank` largest singular values of a Gaussian d_out × d_in matrix, in the limit.

    ω²(rank / d) when d_in = d_out = d. The factor by which a rank constraint lowers `capacity` (derived).
    """
    rank_fits(rank, d_in, d_out)
    phi = float(_angles(np.array([rank / min(d_in, d_out)]), _aspect(d_in, d_out))[0])
    return (phi - math.sin(2 * phi) / 2) / math.pi  # ∫_0^φ (2/π) sin²φ' dφ'


def gaussian_singular_values(rank: int, d_in: int, d_out: int) -> Float[np.ndarray, "rank"]:
    """The singular values of the best weights of this rank at capacity, the largest first.

    s_i = quantile of a Gaussian matrix at (i + 1/2) / min(d_in, d_out) from the top, divided by √ω²(rank): its density
    cut to the top and rescaled to the same ‖W‖_F, so that Σ s² = min(d_in, d_out) up to the discretisation.
    """
    rank_fits(rank, d_in, d_out)
    aspect = _aspect(d_in, d_out)
    phi = _angles((np.arange(rank) + 0.5) / min(d_in, d_out), aspect)
    squares = 1 + aspect + 2 * math.sqrt(aspect) * np.cos(phi)
    return np.asarray(np.sqrt(squares / top_energy(rank, d_in, d_out)))


def _aspect(d_in: int, d_out: int) -> float:
    return min(d_in, d_out) / max(d_in, d_out)


def _angles(fractions: Values, aspect: float) -> Values:
    """The angles with these fractions of the singular values above them, by bisection."""
    r = math.sqrt(aspect)
    low, high = np.zeros_like(fractions), np.full_like(fractions, math.pi)
    for _ in range(60):
        middle = (low + high) / 2
        # ∫_0^φ (2/π) sin²φ' / s²(φ') dφ': the fraction of the singular values with a smaller angle
        lifted = 2 * (1 - aspect) * np.arctan((1 - r) / (1 + r) * np.tan(middle / 2))
        above = ((1 + aspect) * middle - 2 * r * np.sin(middle) - lifted) / (2 * math.pi * aspect) > fractions
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray((low + high) / 2)


# The Hebbian matrix Σ_μ y_μ x_μᵀ = YᵀX, a product of two Gaussian matrices with p rows.


def fourth_moment_hebbian(d: int, p: int) -> float:
    """⟨s⁴⟩ = 2 + d/p for the Hebbian matrix of p pairs; 2 for the quarter circle."""
    at_least(1, d=d, p=p)
    return 2 + d / p


def hebbian_singular_values(d: int, p: int) -> Float[np.ndarray, "d"]:
    """The d quantiles at (i + 1/2) / d of the Hebbian matrix, the largest first; d − p zeros when p < d.

    On the curve 1/y = u e^{−iθ}, 0 ≤ θ ≤ π, x is real when u³ = (1 + 2c) u + 2c cos θ, which has a root in closed form;
    x = u e^{−iθ} + 2 + c + (1 + 2c) e^{iθ}/u + c e^{2iθ}/u² falls along it, and the mass above is ∫ Im y d log x / π.
    """
    at_least(1, d=d, p=p)
    c = d / p
    theta = np.arange(200_000) / 200_000 * math.pi
    b = (1 + 2 * c) / 3
    u = 2 * math.sqrt(b) * np.cos(np.arccos(np.clip(c * np.cos(theta) / b**1.5, -1, 1)) / 3)
    y = np.exp(1j * theta) / u
    x = (1 / y + 2 + c + (1 + 2 * c) * y + c * y**2).real
    steps = (y.imag[1:] + y.imag[:-1]) / 2 * -np.diff(np.log(x)) / math.pi
    mass = np.concatenate([[0.0], np.cumsum(steps)])
    return np.asarray(np.interp((np.arange(d) + 0.5) / d, mass, np.sqrt(x), right=0.0))
