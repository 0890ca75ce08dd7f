"""How the scores of a full memory are distributed: broad for the Hebbian rule, narrow and just high enough at best.

The scores are y_νᵀ W x_μ with ‖W‖_F = 1 and rows of norm √d, so that a generic score has variance 1.
"""

import math
from dataclasses import dataclass

from toytf.theory._domain import Real, at_least
from toytf.theory.dimension import statistical_dimension


@dataclass(frozen=True)
class ScoreDistribution:
    """The right score ~ (mean, spread); the rivals ~ (about 0, rival_spread), none above rival_cut if there is one."""

    mean: float
    spread: float
    rival_spread: float
    rival_cut: float | None


def optimum_scores(n_values: int, kappa: Real = 0.0) -> ScoreDistribution:
    """The scores of the best weights at capacity: Gaussian scores z projected on the cone where the right one wins.

    s_0 = t* + κ,   s_ν = min(z_ν, t*)

    About δ ~ 2 log p rivals sit exactly at the cut t*. Over all rivals E Σ_ν s_ν = −E s_0, and, by Pythagoras for the
    projection, E Σ_ν s_ν² = p + κ² − δ_κ − E t*² (derived).
    """
    at_least(2, n_values=n_values)
    delta = statistical_dimension(n_values, kappa)
    mean, n_rivals = delta.threshold + kappa, n_values - 1
    t_squared = delta.threshold**2 + delta.threshold_spread**2
    rival_squared = (n_values + kappa**2 - delta.value - t_squared) / n_rivals
    return ScoreDistribution(
        mean=mean,
        spread=delta.threshold_spread,
        rival_spread=math.sqrt(rival_squared - (mean / n_rivals) ** 2),
        rival_cut=delta.threshold,
    )


def hebbian_scores(p: int, d_in: int, d_out: int, *, shared: bool = True) -> ScoreDistribution:
    """The scores of W = Σ_μ y_μ x_μᵀ, in units √(p d_in d_out) of the noise of the right score.

    s_0 ~ N(√(d_in d_out / p), 1),   s_ν ~ N(0, 1 + (d_in + d_out) / p),   no cut

    The extra variance of a rival is the overlap of y_ν with y_μ, d_in/p, and that of x_ν with x_μ, d_out/p (derived).
    Not `shared`: the rivals of a key are drawn for it alone, no x belongs to them, and the second is not there.
    """
    at_least(1, p=p, d_in=d_in, d_out=d_out)
    return ScoreDistribution(
        mean=math.sqrt(d_in * d_out / p),
        spread=1.0,
        rival_spread=math.sqrt(1 + (d_in + d_out if shared else d_in) / p),
        rival_cut=None,
    )


def extreme_level(n_values: int) -> float:
    """√(2 log p): where the largest of p normal scores lies, at leading order, and so where t* is going."""
    at_least(1, n_values=n_values)
    return math.sqrt(2 * math.log(n_values))
