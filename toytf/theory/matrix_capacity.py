"""How many associations a d_out × d_in matrix stores at best, and with which margin.

Prediction for independent keys and values, derived at leading order in d and exact in p; the constant 1/2 of its limit
is that of Giorlandino, Goldt and Maillard 2026 (arXiv 2605.10795) and Barnfield et al. 2026 (arXiv 2605.05189).
"""

import functools
import math

import scipy

from toytf.theory._domain import Real, at_least, rank_fits
from toytf.theory.dimension import dimension_bound, dimension_curve, statistical_dimension
from toytf.theory.spectra import top_energy

_SLACK = 1.01
"""Room for the error of the sampled δ at the ends of a bracket."""


@functools.cache
def capacity(
    d_in: int,
    d_out: int,
    *,
    rank: int | None = None,
    n_values: int | None = None,
    shared: bool = True,
    kappa: Real = 0.0,
) -> float:
    """The number p of associations at which the weights that store all of them, with margin κ, disappear.

    p δ_κ(V) = d_in d ω²(rank),   d = min(d_out, V − 1)

    V is the number of values that compete (None: every association has its own, V = p). Only their differences matter,
    which span at most V − 1 dimensions if the keys share them: V = 2 gives Cover's 2 d_in. (Not `shared`: every key has
    V − 1 rivals of its own, and d = d_out.) κ is the margin in units of a generic score of a matrix with ‖W‖_F = 1, and
    ω² the energy of a Gaussian matrix in its `rank` largest singular values (1 for full rank).

    p log p / (d_in d_out) is .92 at d = 32, .80 at d = 256, and reaches 1/2 only beyond any size one can run.
    """
    at_least(1, d_in=d_in, d_out=d_out)
    at_least(0, kappa=kappa)
    if rank is not None:
        rank_fits(rank, d_in, d_out)
    if n_values is not None:
        at_least(1, n_values=n_values)
        if n_values == 1:
            return math.inf
        d = min(d_out, n_values - 1) if shared else d_out
        kept = 1.0 if rank is None else top_energy(min(rank, d, d_in), d_in, d)
        return d_in * d * kept / statistical_dimension(n_values, kappa * math.sqrt(d / d_out)).value
    size = d_in * d_out * (1.0 if rank is None else top_energy(rank, d_in, d_out))

    def bound_excess(p: Real) -> float:
        return p * dimension_bound(p, kappa)[0] - size

    def excess(p: Real) -> float:
        return p * dimension_curve(p, kappa) - size

    # F ≥ δ puts the solution for F below p; δ grows with p, which puts size / δ(low) above it. For p ≥ 2, F ≥ 1/2.
    low = float(scipy.optimize.brentq(bound_excess, 1 + 1e-12, 2 + 2 * size))
    return float(scipy.optimize.brentq(excess, low, _SLACK * size / dimension_curve(low, kappa)))


def asymptotic_capacity(d_in: int, d_out: int, constant: Real = 0.5) -> float:
    """The p with p log p = constant · d_in d_out: 1/2 for the best weights, 1/8 for a faultless Hebbian matrix.

    The limit d → ∞ of `capacity`, approached from above with a relative correction 3 log(2 log p) / (2 log p).
    """
    at_least(1, d_in=d_in, d_out=d_out)
    at_least(0, constant=constant)
    return math.exp(scipy.special.lambertw(constant * d_in * d_out).real)


def load(p: Real, d_in: int, d_out: int) -> float:
    """p log p / (d_in d_out): the number that has a limit at capacity."""
    at_least(1, p=p, d_in=d_in, d_out=d_out)
    return p * math.log(p) / (d_in * d_out)


@functools.cache
def maximal_margin(p: int, d_in: int, d_out: int, *, n_values: int | None = None, rank: int | None = None) -> float:
    """The largest margin κ ≥ 0 with which p associations can be stored, for ‖W‖_F = 1 and rows of norm √d.

    δ_κ'(V) = d_in d ω²(rank) / p,   κ = κ' √(d_out / d),   d = min(d_out, V − 1),   V = n_values, or p if None

    V values differ in V − 1 dimensions only, where they are the longer the fewer there are. 0 at capacity and beyond,
    ∞ without a rival. Assumes p ≫ d_in: some 20 % too large when p is below about 3 d_in.
    """
    at_least(1, p=p, d_in=d_in, d_out=d_out)
    V = p if n_values is None else n_values
    at_least(1, n_values=V)
    if V == 1:
        return math.inf
    d = min(d_out, V - 1)
    if rank is not None:
        rank_fits(rank, d_in, d_out)
    target = d_in * d * (1.0 if rank is None else top_energy(min(rank, d, d_in), d_in, d)) / p
    if statistical_dimension(V).value >= target:
        return 0.0

    def excess(kappa: Real) -> float:
        return statistical_dimension(V, kappa).value - target

    def margin_of_bound(level: float) -> float:
        """The κ with F_κ(V) = level, or 0: F_κ(V) ≥ δ_κ(2) = E(κ + z_1 − z_0)_+²/2 ≥ κ²/2 says where to stop."""
        if dimension_bound(V)[0] >= level:
            return 0.0
        return float(
            scipy.optimize.brentq(lambda kappa: dimension_bound(V, kappa)[0] - level, 0.0, math.sqrt(2 * level))
        )

    # F ≥ δ puts the κ with F = target below; F/δ falls with κ, which puts the κ with F = target F(low)/δ(low) above.
    low = margin_of_bound(target)
    ratio = dimension_bound(V, low)[0] / statistical_dimension(V, low).value
    high = margin_of_bound(_SLACK * ratio * target)
    return math.sqrt(d_out / d) * float(scipy.optimize.brentq(excess, low, high, xtol=1e-4))
