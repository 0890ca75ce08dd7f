"""How many bits a memory must hold, whatever its form, when nothing but its weights depends on the answers."""

import math

from toytf.theory._domain import Real, at_least, within


def bits_to_store(n: int, m: int, *, error: Real = 0.0, injective: bool = False) -> float:
    """The bits that n keys with answers among m take, answers drawn uniformly.

    n log₂ m;   with a fraction ε of errors, by Fano, n [(1 − ε) log₂ m − h₂(ε)], never below 0;
    injective (no answer twice): log₂ m! / (m − n)!, which is log₂ n! ≈ n log₂(n/e) for n = m (Nichani et al. 2024).
    """
    at_least(1, n=n, m=m)
    within(0, 1, error=error)
    if injective and error > 0:
        raise ValueError(
            f"error is {error} with injective answers, expected 0: Fano's bound is for independent answers"
        )
    if injective and n > m:
        raise ValueError(f"{n} keys have {m} answers, expected at most as many keys as answers when injective")
    if injective:
        return (math.lgamma(m + 1) - math.lgamma(m - n + 1)) / math.log(2)
    return max(0.0, n * ((1 - error) * math.log2(m) - _binary_entropy(error)))


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
