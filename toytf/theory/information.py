"""How many bits a memory must hold, whatever its form, when nothing but its weights depends on the answers."""

import math

import scipy

from toytf.theory._domain import Real, at_least, within


def bits_to_store(n: int, m: int, *, error: Real = 0.0, injective: bool = False) -> float:
    """The bits that n keys with answers among m take, answers drawn uniformly.

    n log₂ m;   with a fraction ε of errors, by Fano, n [log₂ m − h₂(ε) − ε log₂(m − 1)]: 0 for a guess, ε = 1 − 1/m,
    and for what is worse;
    injective (no answer twice): log₂ m! / (m − n)!, which is log₂ n! ≈ n log₂(n/e) for n = m (Nichani et al. 2024);
    with errors n [ε log₂ m + h₂(ε)] less, since as many maps at most have ε n errors in common (derived).
    """
    at_least(1, n=n, m=m)
    within(0, 1, error=error)
    if injective and n > m:
        raise ValueError(f"{n} keys have {m} answers, expected at most as many keys as answers when injective")
    return _bits(n, m, error, injective)


def pairs_within(bits: Real, m: int | None = None, *, error: Real = 0.0) -> float:
    """The most pairs whose answers so many bits can hold: the n with bits_to_store(n, m) = bits.

    m: how many answers there are; None: every pair has its own, n = m and no answer comes twice.
    """
    at_least(0, bits=bits)
    within(0, 1, error=error)
    if m is not None:
        at_least(1, m=m)
        each = _bits(1, m, error, injective=False)
        return bits / each if each > 0 else math.inf

    def excess(n: float) -> float:
        return _bits(n, n, error, injective=True) - bits

    high = 2.0
    while excess(high) < 0:
        high *= 2
        if high > 1e15:
            return math.inf
    # Of few pairs, errors leave nothing to hold: the last n is the one that counts.
    low = high / 2 if high > 2 else 1.0
    return float(scipy.optimize.brentq(excess, low, high)) if excess(low) < 0 else low


def _bits(n: Real, m: Real, error: Real, injective: bool) -> float:
    if injective:
        full = (math.lgamma(m + 1) - math.lgamma(m - n + 1)) / math.log(2)
        return max(0.0, full - n * (error * math.log2(m) + _binary_entropy(error)))
    error = min(error, 1 - 1 / m)
    wrong = error * math.log2(m - 1) if error > 0 else 0.0
    return max(0.0, n * (math.log2(m) - _binary_entropy(error) - wrong))


def bits_of_facts(n: int, m: int, loss: Real = 0.0) -> float:
    """The bits that n facts with m possible answers each take when they are known up to a cross-entropy in nats.

    n (log₂ m − loss / ln 2), never below 0: a loss of ln m is a guess (Nichani et al. 2024).
    """
    at_least(1, n=n, m=m)
    at_least(0, loss=loss)
    return max(0.0, n * (math.log2(m) - loss / math.log(2)))


def _binary_entropy(x: float) -> float:
    """h₂(x) = −x log₂ x − (1 − x) log₂(1 − x)."""
    return -sum(share * math.log2(share) for share in (x, 1 - x) if share > 0)
