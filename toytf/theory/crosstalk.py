"""How often the Hebbian matrices of an induction head find the right token, given that random vectors overlap.

Layer 2 asks with a trigger q. In units of the score of a stored pair, a position s scores (derived)

    score_s = m_s + x + y,   x ~ N(0, σ_token²),   y ~ N(0, σ_place²)

    m_s    the attention that layer 1 gave to q from s: the signal, 1 where q was just before
    x      what the token at s adds by chance, the same wherever this token is
    y      what else is in the stream at s adds: its position, and what layer 1 brought there

Layer 2 copies the token at the best position, so the answer o is right if the best position with o beats all others:

    P(right) = ∫ dH_o(a) Π_{v ≠ o} H_v(a),   H_v(a) = ∫Dx Π_{s: z_s = v} Φ((a − m_s − σ_token x) / σ_place)

How sharp the attention of layer 2 is does not matter for this, as long as it prefers the best position. For layer 1 it
does: m_s is a mass, and the norm of W_KQ1 is its inverse temperature (`attention_mass`).
"""

import math

import numpy as np
import scipy
from jaxtyping import Float, Int

from toytf.theory._domain import Real, at_least, within

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(20)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_LEVELS = 101
"""Values of a that the integral over dH is taken at."""
_REACH = 6.0
"""Standard deviations beyond which no score is expected."""
_ROWS = 4096
"""Rows of tokens that are worked on at a time."""


def attention_mass(noise: Real, n_rivals: Int[np.ndarray, "n"], beta: Real) -> Float[np.ndarray, "n"]:
    """The attention on average, at inverse temperature β, of a score 1 among so many rivals of score 0, all ± noise.

    ⟨e^{β(1 + σz)} / (e^{β(1 + σz)} + Σ_s e^{βσz_s})⟩ = ∫ dF(a − 1) F(a)^n,   F(a) = ∫Dz exp(−e^{β(σz − a)})

    The mean of a softmax is the probability to win a race with Gumbel noise of size 1/β, in which all are independent.
    """
    at_least(0, noise=noise)
    if not beta > 0:
        raise ValueError(f"beta is {beta}, expected a number above 0")
    reach = _REACH * noise + 40 / beta  # the race is decided there, to rounding
    a = np.linspace(-reach, 1 + reach, 2001)
    z = np.linspace(-_REACH, _REACH, 121)
    w = np.exp(-(z**2) / 2)

    def below(signal: float) -> Float[np.ndarray, "a"]:
        exponent = np.clip(beta * (signal + noise * z - a[:, None]), -700, 50)
        p: Float[np.ndarray, "a"] = np.exp(-np.exp(exponent)) @ (w / w.sum())
        return p

    return _probability(below(1.0), below(0.0) ** n_rivals[:, None])


def previous_mass(
    d: Real, n_stored: Real, n_rivals: Int[np.ndarray, "n"], beta: Real, *, stream: Real = 2.0
) -> Float[np.ndarray, "n"]:
    """The attention that W_KQ1 = Σ_t p_t p_{t−1}ᵀ, with score β for a stored pair, gives to the previous position.

    σ² = 2 v / d + n v² / d²,   v = |x|² / |p|² of what is in the stream: 2 if tokens are as long as positions

    2 v / d: the overlaps of key and query with the pair itself; n v² / d²: those with all n stored pairs.
    """
    at_least(1, d=d, stream=stream)
    at_least(0, n_stored=n_stored)
    noise = math.sqrt(2 * stream / d + n_stored * stream**2 / d**2)
    return attention_mass(noise, n_rivals, beta)


def trigger_noise(
    d: Real, n_stored: Real, remapped: Real, *, position: Real = 1.0, position_remapped: Real | None = None,
    anisotropy: Real = 3.0, gathered: Real = 1.0, others: Real = 0.0,
) -> tuple[float, float]:  # fmt: skip
    """σ_token and σ_place of W_KQ2 = Σ_k e_k ẽ_kᵀ, by the lengths² of what is in the stream, in units of |e|².

    σ_token² = g / (d r),   σ_place² = g (π + s w (r + ρ)) / (d r) + f κ,   κ = (1 + π + w (r + ρ)) / d,
    g = 1 + (n − 1) κ

    r = |ẽ|² (remapped), π = |p|², ρ = |p̃|² (by default r π). The signal is r, and short in the stream: 1 / (σ_token² +
    σ_place²) ≈ d r / (1 + π + s w (r + ρ)), which is d/24 for |ẽ|² = |e|²/9.

    s = d tr(C²) / (tr C)², C = W_OV1ᵀ W_OV1 (anisotropy): W_OV1 prefers some directions, which brings what it has
    remapped closer together; s = n + 1 for a product of n random matrices. w = Σ_s' a_ss'² of the attention of layer 1
    (gathered): what it gathers from many positions is short. κ is what the query overlaps with each of the other n − 1
    stored pairs, whose trigger is before a fraction f of the positions (others).
    """
    at_least(1, d=d, n_stored=n_stored)
    if not remapped > 0:
        raise ValueError(f"remapped is {remapped}, expected a number above 0")
    rho = remapped * position if position_remapped is None else position_remapped
    at_least(0, position=position, position_remapped=rho)
    at_least(1, anisotropy=anisotropy)
    within(0, 1, gathered=gathered, others=others)
    brought = gathered * (remapped + rho)
    kappa = (1 + position + brought) / d
    g = 1 + (n_stored - 1) * kappa
    place = g * (position + anisotropy * brought) / (d * remapped) + others * kappa
    return math.sqrt(g / (d * remapped)), math.sqrt(place)


def copy_accuracy(d: Real, n_tokens: int, stream: Real) -> float:
    """How often W_OV2 = Σ_k u_k e_kᵀ copies the token of the position that layer 2 attends to, of n tokens.

    ∫Dz Φ((1 + σ_right z) / σ)^{n−1},   σ² = (1 + v) / d + n v / d²,   σ_right² = (v − 1) / d + n v / d²

    v = |h|² / |e|² of what is in the stream there.
    """
    at_least(1, d=d, n_tokens=n_tokens, stream=stream)
    all_pairs = n_tokens * stream / d**2
    noise, own = math.sqrt((1 + stream) / d + all_pairs), math.sqrt((stream - 1) / d + all_pairs)
    z = np.linspace(-_REACH, _REACH, 241)
    w = np.exp(-(z**2) / 2)
    right = np.exp((n_tokens - 1) * scipy.special.log_ndtr((1 + own * z) / noise))
    return float(right @ w / w.sum())


def attention_race(
    counts: Float[np.ndarray, "case token signal"],
    signals: Float[np.ndarray, "signal"],
    right: Int[np.ndarray, "case"],
    token_noise: Real,
    place_noise: Real,
) -> Float[np.ndarray, "case"]:
    """The probability that the best position holds the right token, case by case (formula of the module).

    counts[c, v, i] is how many positions hold token v and have the signal signals[i]. A position with a signal between
    two that are near may count in part for both.
    """
    at_least(0, token_noise=token_noise)
    if not place_noise > 0:
        raise ValueError(f"place_noise is {place_noise}, expected a number above 0")
    reach = _REACH * math.hypot(token_noise, place_noise)
    a = np.linspace(min(0.0, signals.min()) - reach, signals.max() + reach, _LEVELS)
    standard = (a[:, None] - signals[:, None, None] - token_noise * _NODES) / place_noise
    log_below = scipy.special.log_ndtr(standard).reshape(len(signals), -1)
    there = counts.any(2)
    rows = counts[there]
    log_H = np.empty((len(rows), len(a)))
    for start in range(0, len(rows), _ROWS):
        below = np.exp(rows[start : start + _ROWS] @ log_below).reshape(-1, len(a), len(_NODES)) @ _WEIGHTS
        log_H[start : start + _ROWS] = np.log(np.maximum(below, 1e-300))
    case, token = np.nonzero(there)
    together = np.zeros((len(counts), len(a)))
    np.add.at(together, case, log_H)
    own = np.full_like(together, -np.inf)  # a token that is nowhere cannot win
    mine = token == right[case]
    own[case[mine]] = log_H[mine]
    rivals = np.where(np.isfinite(own), together - np.where(np.isfinite(own), own, 0.0), together)
    return _probability(np.exp(own), np.exp(rivals))


def _probability(own: Float[np.ndarray, "*#n a"], rivals: Float[np.ndarray, "n a"]) -> Float[np.ndarray, "n"]:
    """P(X > Y) = ∫ dF_X(a) F_Y(a), from the two distribution functions on a grid."""
    p: Float[np.ndarray, "n"] = (np.diff(own) * (rivals[:, 1:] + rivals[:, :-1])).sum(1) / 2
    return p
