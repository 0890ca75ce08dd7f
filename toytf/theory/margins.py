"""How margins grow when gradient descent stores pairs in a matrix: tokens as particles (Cabannes, Simsek, Bietti 2024).

The loss is the cross-entropy of softmax_y(u_yᵀ W e_x) under frequencies p(x); the margin of a token is the score of the
right value minus the best other one. With orthonormal vectors tokens do not feel each other, and every margin grows
like log t, whatever the step size. Two tokens whose inputs have the inner product a > 0 push each other back: the rare
one may be forgotten again, and the loss spikes. Constants are derived here.
"""

import math
from collections.abc import Iterable

import numpy as np
import scipy
from jaxtyping import Float

from toytf.theory._domain import Real, at_least, within

Margins = Float[np.ndarray, "..."]


def margin_step(margin: Margins, rate: Margins, n_outputs: int) -> Margins:
    """One step of gradient descent from W = 0 with orthonormal vectors, where all other scores stay equal.

    m ← m + η p(x) M / (e^m + M − 1)

    rate: η p(x), by token.
    """
    at_least(2, n_outputs=n_outputs)  # one value has no rival, and no margin
    shrunk = np.exp(-np.abs(margin))  # e^±m without overflow
    small, large = n_outputs / (shrunk + n_outputs - 1), n_outputs * shrunk / (1 + (n_outputs - 1) * shrunk)
    return np.asarray(margin + rate * np.where(margin > 0, large, small))


def loss_law(n_inputs: int, n_outputs: int, lr: Real, steps: Real) -> float:
    """The loss after many steps with orthonormal vectors: N (M − 1) / (M η t), whatever the frequencies."""
    at_least(1, n_inputs=n_inputs)
    at_least(2, n_outputs=n_outputs)
    for name, value in {"lr": lr, "steps": steps}.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}, expected a number above 0")
    return n_inputs * (n_outputs - 1) / (n_outputs * lr * steps)


def pair_step(
    margins: Float[np.ndarray, "*k 2"], lr: Real | Float[np.ndarray, "*k"], correlation: Real, p1: Real
) -> Float[np.ndarray, "*k 2"]:
    """One step of two tokens with two orthonormal values; s(−m) = 1 / (1 + e^m) is the probability of the wrong one.

    m_1 ← m_1 + 2η (p_1 s(−m_1) − a p_2 s(−m_2)),   m_2 ← m_2 + 2η (p_2 s(−m_2) − a p_1 s(−m_1))

    correlation: a = e_1·e_2 of unit vectors; p1: the frequency of the first, p_2 = 1 − p_1. It is exact.
    Several pairs of margins may be given at once, each with its own lr.
    """
    _pair(correlation, p1)
    pull = np.array([p1, 1 - p1]) * scipy.special.expit(-margins)
    return np.asarray(margins + 2 * np.asarray(lr)[..., None] * (pull - correlation * pull[..., ::-1]))


def pair_sharpness(correlation: Real, p1: Real) -> float:
    """The largest eigenvalue of the Hessian of two tokens at W = 0: (1 + √(1 − 4 p_1 p_2 (1 − a²))) / 4."""
    _pair(correlation, p1)
    return (1 + math.sqrt(max(0.0, 1 - 4 * p1 * (1 - p1) * (1 - correlation**2)))) / 4


def _pair(correlation: Real, p1: Real) -> None:
    within(-1, 1, correlation=correlation)
    if not 0 < p1 < 1:
        raise ValueError(f"p1 is {p1}, expected a frequency between 0 and 1")


def strengths_after(shares: Iterable[Float[np.ndarray, "N"]], lr: Real, n_outputs: int) -> Float[np.ndarray, "N"]:
    """How strongly gradient descent stores each input, if inputs do not disturb each other (orthonormal vectors).

    m ← m + γ w(z) M / (e^m + M − 1) on batches in which z has these shares w(z), and q = (M − 1)/M · m

    q(z) is the weight of u_{f(z)} e_zᵀ in W. With batches of one, for small γ it is proportional to the visits c, for
    moderate γ about log c, and for large γ the first visit does it all (Cabannes, Dohmatob, Bietti 2024).
    """
    at_least(0, lr=lr)
    at_least(1, n_outputs=n_outputs)
    m = None
    for share in shares:
        m = np.zeros(len(share)) if m is None else m
        m = m if n_outputs == 1 else margin_step(m, lr * share, n_outputs)
    if m is None:
        raise ValueError("shares has no batch, expected that of one step at least")
    return m * (n_outputs - 1) / n_outputs
