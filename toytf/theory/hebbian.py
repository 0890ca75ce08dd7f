"""What the Hebbian matrix W = Σ_μ y_μ x_μᵀ recalls, from the Gaussian distribution of its scores."""

import math

import numpy as np
import scipy

from toytf.theory._domain import Real, at_least

_STEP = 0.01
_Z = np.arange(-12, 12 + _STEP / 2, _STEP)
_DZ = _STEP * np.exp(-(_Z**2) / 2) / math.sqrt(2 * math.pi)
"""Trapezoid rule for ∫Dz: exact to rounding for integrands that change over more than a few steps."""


def hebbian_accuracy(p: Real, d: Real, *, crosstalk: Real = 2.0) -> float:
    """The probability that one of p associations is recalled.

    accuracy = ∫Dz Φ((1 + a z) / b)^{p−1},   a = √p / d,   b² = p / d² + crosstalk / d

    1 + a z is the right score in units of its mean, b the spread of a rival. crosstalk counts the overlaps of the pair
    asked for: 2 on the sphere, 1 with fresh rivals for every key, 0 in the limit. For d_in ≠ d_out, d = √(d_in d_out).
    """
    return 1 - _failure(p, d, crosstalk)


def hebbian_capacity(d: Real, *, accuracy: Real | None = None, crosstalk: Real = 2.0) -> float:
    """The largest p that is still recalled, under one of two criteria with different limits.

    accuracy None: all p in half of the draws, accuracy(p)^p = 1/2;   p log p / d² → 1/8
    else:          this fraction of the pairs, accuracy(p) = accuracy;  p log p / d² → 1/2
    """
    if accuracy is not None and not 0 < accuracy < 1:
        raise ValueError(f"accuracy is {accuracy}, expected a number between 0 and 1, or None for all p at once")

    def excess(log_p: float) -> float:
        p = math.exp(log_p)
        failure = _failure(p, d, crosstalk)
        if accuracy is None:
            return p * math.log1p(-failure) + math.log(2)
        return 1 - failure - accuracy

    log_high = 1.0
    while excess(log_high) > 0:
        log_high += 1.0
    return math.exp(scipy.optimize.brentq(excess, 0.0, log_high, xtol=1e-12))


def _failure(p: Real, d: Real, crosstalk: Real) -> float:
    """1 − accuracy, without the cancellation: ∫Dz (1 − Φ^{p−1}), at most 1 by less than rounding."""
    at_least(1, p=p, d=d)
    at_least(0, crosstalk=crosstalk)
    a, b = math.sqrt(p) / d, math.sqrt(p / d**2 + crosstalk / d)
    return min(float(_DZ @ -np.expm1((p - 1) * scipy.special.log_ndtr((1 + a * _Z) / b))), 1 - 1e-16)
