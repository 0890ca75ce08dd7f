"""The signals of three gradient steps that build an induction head (Bietti et al. 2023, the theorem of §5).

The setting in which they are derived: the trigger q is uniform over N tokens, s uniform over 1 … T−2; z_s = q,
z_{s+1} = o, z_T = q, all other tokens are independent and not q; the answer at position T is y = o. All weights start
at zero, so attention is uniform. One step on W_OV2, then one on W_KQ2, then one on W_KQ1; β_1 and β_2 are the gains of
the memories that the first two have left. A signal is an entry of the negative gradient. H_n = 1 + 1/2 + … + 1/n.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from toytf.theory._domain import Real, at_least

Places = Float[np.ndarray, "s position"]

SHORTEST = 5
"""For shorter sequences S_T < 0: the second step would unlearn the trigger."""


@dataclass(frozen=True)
class TokenSignal:
    """A gradient over pairs of tokens that has one value on the diagonal and one off it."""

    n_tokens: int
    diagonal: float

    @property
    def off_diagonal(self) -> float:
        """Of every other pair: −diagonal / (N − 1), because a softmax gradient sums to zero."""
        return -self.diagonal / (self.n_tokens - 1)

    def matrix(self) -> Float[np.ndarray, "token token"]:
        """All entries."""
        matrix = np.full((self.n_tokens, self.n_tokens), self.off_diagonal)
        np.fill_diagonal(matrix, self.diagonal)
        return matrix


def output_signal(n_tokens: int, seq_len: int) -> TokenSignal:
    """Step 1, W_OV2: the answer is in the context for certain, any other token only by chance.

    u_kᵀ G e_k = (1 − T/N + (T−3)/(N−1)) / (NT),   exact;   → 1 / (NT) for N ≫ T
    """
    return _stored(n_tokens, np.ones(_length(seq_len)))


def remapped_signal(n_tokens: int, seq_len: int) -> TokenSignal:
    """Step 1 with a residual stream: the answer is also found through layer 1, as ẽ.

    u_kᵀ G ẽ_k → mean_s(H_T − H_s) / (NT) for N ≫ T;   here with the same finite N as `output_signal`

    A token at position r is seen by every position t ≥ r with weight 1/t: Σ_{t≥r} 1/t = H_T − H_{r−1} in all.
    """
    H = _harmonic(seq_len)
    return _stored(n_tokens, H[seq_len] - H[:seq_len])


def remapped_gain(seq_len: int) -> float:
    """mean_s(H_T − H_s): the memory u_k ẽ_kᵀ of step 1 in units of u_k e_kᵀ, for N ≫ T; → 1 for long sequences."""
    H = _harmonic(seq_len)
    return float(np.mean(H[seq_len] - H[1 : seq_len - 1]))


def trigger_strength(seq_len: int, *, remapped: Real = 0.0) -> float:
    """S_T of step 2: how much more of the trigger there is where the answer is than elsewhere.

    S_T = mean_s Σ_t (g_t − ḡ) n_t,   g_t = 1{t=s+1} + remapped · 1{t>s}/t,   n_t = (1{t≥s} + 1{t=T}) / t
        = mean_s[1/(s+1) − (H_T − H_{s−1} + 1/T) / T]   if remapped = 0;   ~ (ln T − c) / T with c from 1.3 to 1.4

    g_t is what position t adds to the logit of the answer, n_t its share of the trigger. remapped: the gain of the
    memory u_k ẽ_kᵀ, `remapped_gain` in a model with a residual stream.
    """
    answer, _, n, t = _context(seq_len)
    g = answer + remapped * np.cumsum(answer, axis=1) / t
    return float(np.mean(np.sum((g - g.mean(1, keepdims=True)) * n, axis=1)))


def trigger_signal(n_tokens: int, seq_len: int, beta_1: Real, *, remapped: Real = 0.0) -> TokenSignal:
    """Step 2, W_KQ2: the trigger asks for the position that has just seen it.

    e_kᵀ G ẽ_k = β_1 S_T / (NT)   for N ≫ T and β_1 ≪ T
    """
    at_least(2, n_tokens=n_tokens)
    strength = trigger_strength(seq_len, remapped=remapped)
    return TokenSignal(n_tokens, beta_1 * strength / (n_tokens * seq_len))


def position_signal(seq_len: int, beta_1: Real, beta_2: Real, *, linear: bool = True) -> Float[np.ndarray, "query key"]:
    """Step 3, W_KQ1: p_tᵀ G p_r for every query t and key r ≤ t, zero for r > t; index 0 is position 1.

    (β_1 β_2 / t) mean_s[a_t (1{t=s+1} − a_{s+1}) (1{z_r=q} − n_t)],   n_t = (1{t≥s} + 1{t=T}) / t

    With a = 1/T, the limit of small β_2, this is β_1 β_2 / (T (T−2) t) · (1{r=t−1} − 1/t) for 2 ≤ t ≤ T−2: the signal
    falls like 1/t, so early positions are learned first. Row 1 is zero, and row T, which never holds an answer, is of
    order 1/T³. Not linear: a is the attention softmax_t(β_2 n_t) that layer 2 has after step 2. Both for N ≫ T and
    β_1 ≪ T.
    """
    at_least(0, beta_1=beta_1, beta_2=beta_2)
    answer, trigger, n, t = _context(seq_len)
    a = np.full_like(n, 1 / seq_len) if linear else np.exp(beta_2 * (n - n.max(1, keepdims=True)))
    a /= a.sum(1, keepdims=True)
    pull = a * (answer - (a * answer).sum(1, keepdims=True))
    signal = np.einsum("st,str->tr", pull, trigger[:, None, :] - n[:, :, None]) / (seq_len - 2)
    return np.tril(beta_1 * beta_2 * signal / t[:, None])


def output_rate(n_tokens: int, seq_len: int, beta_1: Real) -> float:
    """η_1 = β_1 N T: the learning rate after which W_OV2 = Σ_k β_1 u_k e_kᵀ, for N ≫ T."""
    at_least(2, n_tokens=n_tokens)
    return float(beta_1 * n_tokens * _length(seq_len))


def trigger_rate(n_tokens: int, seq_len: int, beta_1: Real, beta_2: Real, *, remapped: Real = 0.0) -> float:
    """η_2 = β_2 N T / (β_1 S_T): the learning rate after which W_KQ2 = Σ_k β_2 e_k ẽ_kᵀ."""
    at_least(SHORTEST, seq_len=seq_len)
    signal = trigger_signal(n_tokens, seq_len, beta_1, remapped=remapped)
    return beta_2 / signal.diagonal


def position_rate(seq_len: int, beta_1: Real, beta_2: Real, gain: Real) -> float:
    """η_3 ∝ 1 / (β_1 β_2): the learning rate after which p_tᵀ W_KQ1 p_{t−1} is `gain` on average over 2 ≤ t < T."""
    at_least(4, seq_len=seq_len)
    return float(gain / np.diagonal(position_signal(seq_len, beta_1, beta_2), offset=-1)[:-1].mean())


def induction_ceiling(seq_len: int) -> float:
    """1 − 1/(2(T−2)): the accuracy of perfect memories.

    Position 1 has no previous token and attends to itself. If it holds the trigger (s = 1), then layer 2 cannot tell
    it from position 2, and the answer is a coin toss between q and o.
    """
    return 1 - 1 / (2 * (_length(seq_len) - 2))


def _stored(n_tokens: int, weight: Float[np.ndarray, "position"]) -> TokenSignal:
    """u_kᵀ G v_k if position r has the weight w_r/T in the sum of v, exact for every N (derived).

    mean_s[w_{s+1}] from the answer itself, minus Σw/N of the mean, plus what the T−3 random tokens add by chance.
    """
    at_least(2, n_tokens=n_tokens)
    T, total = len(weight), weight.sum()
    of_trigger, of_answer = weight[: T - 2].mean(), weight[1 : T - 1].mean()
    by_chance = (total - of_trigger - of_answer - weight[-1]) / (n_tokens - 1)
    return TokenSignal(n_tokens, float(of_answer - total / n_tokens + by_chance) / (n_tokens * T))


def _context(seq_len: int) -> tuple[Places, Places, Places, Int[np.ndarray, "position"]]:
    """1{z_t = o}, 1{z_t = q} and n_t for every s = 1 … T−2, and t."""
    T = _length(seq_len)
    trigger, t = np.eye(T - 2, T), np.arange(1, T + 1)
    trigger[:, -1] = 1
    return np.eye(T - 2, T, k=1), trigger, np.cumsum(trigger, axis=1) / t, t


def _harmonic(seq_len: int) -> Float[np.ndarray, "n"]:
    """H_0 … H_T."""
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, _length(seq_len) + 1))])


def _length(seq_len: int) -> int:
    at_least(3, seq_len=seq_len)
    return seq_len
