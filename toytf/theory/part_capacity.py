"""How much the parts of a layer hold that are not one matrix with random keys: hidden units, and a head's selection."""

import functools
import math

import scipy

from toytf.theory._domain import Real, at_least

TRAINED_RECALL = 0.99
"""The fraction of pairs that the memories under the lines of Nichani et al. 2024 recall."""

MATRIX_LOAD = 0.77
"""The line N ln N = 0.77 d² that Nichani et al. 2024 (Fig. 1 left) drew through trained d × d matrices: not derived."""

HIDDEN_LOAD = 2.86
"""The line N ln N = 2.86 m d that they drew through trained two-layer memories (Fig. 1 right): not derived. With 32
answers their line is N = 0.83 m d (Fig. 6), which is N ln 32 = 2.88 m d."""

BITS_PER_PARAMETER = HIDDEN_LOAD / (2 * math.log(2))
"""The same in bits per weight of the 2 m d: 2.06, and 2.08 with 32 answers."""


def mlp_capacity(d_in: int, d_out: int, width: int, *, n_values: int | None = None) -> float:
    """The pairs that a trained two-layer memory Vᵀ relu(W e) of m = width hidden units holds.

    p log₂ V = 2.06 m (d_in + d_out)

    V is the number of values that compete (None: every pair has its own, V = p). A line through trained memories, not
    a bound: no theory knows the constant.
    """
    at_least(1, d_in=d_in, d_out=d_out, width=width)
    bits = BITS_PER_PARAMETER * width * (d_in + d_out)
    if n_values is not None:
        at_least(1, n_values=n_values)
        return math.inf if n_values == 1 else bits / math.log2(n_values)
    return math.exp(scipy.special.lambertw(bits * math.log(2)).real)


@functools.cache
def selector_capacity(d: int, n_others: int) -> float:
    """How many random vectors some k in R^d can give higher scores k·e than to all of n others.

    p with F(p, n) = d,   F = min_t { p [(1 + t²) Φ(t) + t φ(t)] + n [(1 + t²) Φ(−t) − t φ(t)] }

    F is what moving both kinds of scores to the two sides of a threshold t costs: the distance of a Gaussian vector
    from the cone of right orders, with t fixed (derived as `capacity` is). With as many others it is Cover's 2d in all.
    0 if no more than the others can be told from anything; ∞ above 10¹⁵, where the others are so few that the number
    grows as e^{d/2n}.
    """
    at_least(1, d=d)
    at_least(0, n_others=n_others)
    if n_others == 0:
        return math.inf

    def cost(p: Real) -> float:
        def at(t: float) -> float:
            density = math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
            below, above = float(scipy.special.ndtr(t)), float(scipy.special.ndtr(-t))
            lifted = (1 + t * t) * below + t * density
            pushed = (1 + t * t) * above - t * density
            return p * lifted + n_others * pushed

        return float(scipy.optimize.minimize_scalar(at, bounds=(-40, 40), method="bounded").fun)

    if cost(1) >= d:
        return 0.0
    high = 2.0
    while cost(high) < d:
        high *= 2
        if high > 1e15:
            return math.inf
    return float(scipy.optimize.brentq(lambda p: cost(p) - d, 1.0, high))
