"""Tokens in a plane with two answers: the best direction, exactly, and where the cross-entropy is lowest.

W acts by γ alone, the difference of its rows: token x has the margin z_x · γ, and is right if it is positive. More
tokens than two dimensions can hold cannot all be right, and then the γ of the lowest cross-entropy is in general not
one of the fewest errors (Cabannes, Simsek, Bietti 2024).
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import expit

Tokens = Float[np.ndarray, "n 2"]
Frequencies = Float[np.ndarray, "n"]
Points = Float[np.ndarray, "k 2"]

NARROW = 1e-9
"""Radians: what two critical angles that should be one may differ by, after rounding."""

AT_ONCE = 2**23
"""Margins that are compared at a time."""

HALVINGS = 40
STEPS = 200
"""Newton steps at most; a loss whose infimum is far away is followed until it hardly falls."""


@dataclass(frozen=True)
class Plane:
    """What is possible with some tokens, and what the lowest cross-entropy makes of them."""

    best_error: float
    """Of the best direction."""
    best: tuple[float, float]
    """The best direction, or one of several, as a unit vector."""
    minimiser: tuple[float, float] | None
    """The γ of the lowest cross-entropy; None if all tokens can be right, because then γ grows for ever."""
    lowest_loss: float
    minimiser_error: float

    @property
    def excess(self) -> float:
        """What the lowest cross-entropy costs in errors."""
        return max(0.0, self.minimiser_error - self.best_error)  # below 0 only by rounding


def planar(z: Tokens, p: Frequencies) -> Plane:
    """Both optima of tokens z_x with frequencies p(x)."""
    best = best_direction(z, p)
    least = float(errors(best[None], z, p)[0])
    if least == 0:
        return Plane(0.0, _pair(best), None, 0.0, 0.0)
    gamma = minimise(z, p)
    lowest, wrong = float(losses(gamma[None], z, p)[0]), float(errors(gamma[None], z, p)[0])
    return Plane(least, _pair(best), _pair(gamma), lowest, wrong)


def losses(gamma: Points, z: Tokens, p: Frequencies) -> Float[np.ndarray, "k"]:
    """Σ p(x) log(1 + exp(−z_x · γ)) for some γ."""
    return np.asarray(np.logaddexp(0, -gamma @ z.T) @ p)


def errors(gamma: Points, z: Tokens, p: Frequencies) -> Float[np.ndarray, "k"]:
    """The frequency of tokens whose margin is not positive, for some γ."""
    return np.asarray((gamma @ z.T <= 0) @ p)


def best_direction(z: Tokens, p: Frequencies) -> Float[np.ndarray, "2"]:
    """A direction of the lowest error.

    The error changes only at the 2N directions that are at a right angle to a token, so one between each two is enough.
    """
    at = np.arctan2(z[:, 1], z[:, 0])
    critical = np.sort(np.concatenate([at + math.pi / 2, at - math.pi / 2]) % (2 * math.pi))
    gaps = np.diff(critical, append=critical[0] + 2 * math.pi)
    between = (critical + gaps / 2)[gaps > NARROW]
    directions = np.stack([np.cos(between), np.sin(between)], 1)
    some = np.array_split(directions, -(-directions.size * len(z) // AT_ONCE))
    found = np.concatenate([errors(part, z, p) for part in some])
    return np.asarray(directions[found.argmin()])


def minimise(z: Tokens, p: Frequencies) -> Float[np.ndarray, "2"]:
    """The γ of the lowest cross-entropy, by Newton steps that are halved until they help."""
    gamma, lowest = np.zeros(2), math.log(2) * float(p.sum())
    for _ in range(STEPS):
        wrong = expit(-z @ gamma)
        hessian = (z * (p * wrong * (1 - wrong))[:, None]).T @ z
        step = np.linalg.pinv(hessian, hermitian=True) @ ((p * wrong) @ z)
        sizes = 0.5 ** np.arange(HALVINGS)
        found = losses(gamma + sizes[:, None] * step, z, p)
        if not found.min() < lowest:
            break
        best = int((found < lowest).argmax())  # the longest that helps
        gamma, lowest = gamma + sizes[best] * step, float(found[best])
    return gamma


def _pair(vector: Float[np.ndarray, "2"]) -> tuple[float, float]:
    return float(vector[0]), float(vector[1])
