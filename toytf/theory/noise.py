"""How many samples one gradient step needs to learn what mostly follows a trigger: the noise token τ.

One layer, logits = U (W_V A + W_F e_q), orthonormal vectors, W_V = W_F = 0: A is the mean of the T tokens of a context
that ends in the trigger q, and the answer is τ with probability α, else one of N tokens, the output of that sequence.
With τ there are N + 1 tokens. The feed-forward part W_F always sees e_q, the attention part W_V a context that has
little to do with the answer (Chen, Bruna, Bietti 2024).
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float, Int

from toytf.theory._domain import Real, at_least

_NEGLIGIBLE = 1e-15
_MAX_DEVIATIONS = 12
"""Standard deviations beyond which nothing is left of a distribution of counts."""


@dataclass(frozen=True)
class NoiseStep:
    """Entries of the step −∇ of the population loss, and what copying adds."""

    feed_forward_noise: float
    """u_τᵀ W_F e_q."""
    feed_forward_other: float
    """u_kᵀ W_F e_q for another token k."""
    attention_noise: float
    """u_τᵀ W_V e_j for any token j."""
    attention_copy: float
    """u_kᵀ W_V e_k − u_kᵀ W_V e_j: what the context tells of the answer."""


def noise_step(n_tokens: int, seq_len: int, alpha: Real) -> NoiseStep:
    """The first step of the population: large for the noise, one N-th of that in attention, smaller still for copying.

    feed-forward: τ: α − 1/(N+1),  k ≠ τ: (1−α)/N − 1/(N+1);   attention: (τ, j): (α − 1/(N+1)) / N,
    (k, k) above (k, j): (1−α)² n_q / (N T), where n_q = (T−2)/N triggers show what follows them

    Up to relative 1/T and 1/N in the attention part. One step stores noise, not copying, unless (1−α)² n_q / T > α.
    """
    _check(n_tokens, seq_len, alpha)
    noise = alpha - 1 / (n_tokens + 1)
    return NoiseStep(
        feed_forward_noise=noise,
        feed_forward_other=(1 - alpha) / n_tokens - 1 / (n_tokens + 1),
        attention_noise=noise / n_tokens,
        attention_copy=(1 - alpha) ** 2 * (seq_len - 2) / (n_tokens**2 * seq_len),
    )


def relative_spread(n_tokens: int, seq_len: int, alpha: Real, m: int) -> float:
    """Standard deviation over mean of the entries u_τᵀ W_V e_j, j ≠ q, after a step on m samples.

    √(N / (α T m)): token j is met about α T m / N times before τ. Finite sizes add about 1/(αN) + 1/(2T), relatively.
    """
    _check(n_tokens, seq_len, alpha)
    at_least(1, m=m)
    return math.sqrt(n_tokens / (alpha * seq_len * m))


def feed_forward_recall(n_tokens: int, alpha: Real, m: int) -> float:
    """The probability that τ = argmax_k u_kᵀ W_F e_q after a step on m samples, exactly; a tie counts against τ.

    Σ_k P[Bin(m, α) = k] · P[m − k answers drawn from N tokens, and none of them k times]
    """
    _check(n_tokens, alpha=alpha)
    at_least(1, m=m)
    k = np.arange(1, m + 1)
    log_odds = k * math.log(alpha) + (m - k) * math.log1p(-alpha)
    binomial = np.exp(
        scipy.special.gammaln(m + 1) - scipy.special.gammaln(k + 1) - scipy.special.gammaln(m - k + 1) + log_odds
    )
    return float(sum(binomial[i - 1] * _none_reaches(i, m - i, n_tokens) for i in k[binomial > _NEGLIGIBLE].tolist()))


def attention_recall(n_tokens: int, seq_len: int, alpha: Real, m: int) -> float:
    """The probability that τ = argmax_k u_kᵀ W_V e_j, j ≠ q, after a step on m samples; a tie counts against τ.

    Σ_s P[S_τ = s] P[S_k < s]^N, where S_k counts how often j is in the contexts of answer k

    The contexts of an answer are taken as Poisson-many, and what they tell of the answer is left out. Where T ≪ N, the
    recall is that of W_F after as many samples as there are contexts with j, about m T / N.
    """
    _check(n_tokens, seq_len, alpha)
    at_least(1, m=m)
    mean = m * (seq_len - 1) / n_tokens
    longest = int(mean + _MAX_DEVIATIONS * math.sqrt(mean * (1 + seq_len / n_tokens)) + 4 * _MAX_DEVIATIONS)
    noise = _met_before(m * alpha, n_tokens, seq_len, longest)
    other = _met_before(m * (1 - alpha) / n_tokens, n_tokens, seq_len, longest).cumsum().clip(max=1)
    return min(1.0, float(noise[1:] @ other[:-1] ** n_tokens))


def _none_reaches(k: int, n: int, boxes: int) -> float:
    """P[each of the boxes has fewer than k of n balls]: independent Poisson counts below k, given that their sum is n.

    P[all X_i < k, Σ X_i = n] / P[Σ X_i = n] with X_i ~ Poisson(n / boxes); the sum by repeated squaring.
    """
    if k > n or boxes * scipy.special.gammainc(k, n / boxes) < _NEGLIGIBLE:
        return 1.0
    below = _poisson(np.arange(k), n / boxes)
    total, power, left = np.ones(1), below, boxes
    while left:
        if left % 2:
            total = np.convolve(total, power)[: n + 1]
        power, left = np.convolve(power, power)[: n + 1], left // 2
    return float(total[n] / _poisson(np.array([n]), n)[0]) if len(total) > n else 0.0


def _poisson(counts: Int[np.ndarray, "n"], mean: Real) -> Float[np.ndarray, "n"]:
    """P[X = count] for X ~ Poisson(mean)."""
    p: Float[np.ndarray, "n"] = np.exp(counts * math.log(mean) - mean - scipy.special.gammaln(counts + 1))
    return p


def _met_before(answers: Real, n_tokens: int, seq_len: int, longest: int) -> Float[np.ndarray, "counts"]:
    """P[S = s]: how often a token is met in the contexts of an answer, of which there are Poisson-many.

    E[x^S] = exp(answers · ((1 + (x − 1)/N)^{T−1} − 1)), inverted by a Fourier transform.
    """
    x = np.exp(-2j * np.pi * np.arange(longest) / longest)
    in_a_context = (1 + (x - 1) / n_tokens) ** (seq_len - 1)
    p: Float[np.ndarray, "counts"] = np.fft.ifft(np.exp(answers * (in_a_context - 1))).real.clip(min=0)
    return p


def _check(n_tokens: int = 2, seq_len: int = 2, alpha: Real = 0.5) -> None:
    at_least(2, n_tokens=n_tokens, seq_len=seq_len)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}, expected a number between 0 and 1")
