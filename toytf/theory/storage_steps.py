"""How strongly gradient descent stores an input, step by step, if inputs do not disturb each other.

With orthonormal vectors each input z evolves alone. Its margin m(z), the score of the right answer less that of any
other, grows by less and less, because the gradient of the cross-entropy is 1 − π and π → 1:

    m ← m + γ w(z) M / (e^m + M − 1),   q = (M − 1)/M · m

γ is the learning rate, w(z) the share of z in the batch, and q(z) the weight of u_{f(z)} e_zᵀ in W. With batches of
one, q(z) = g^c(0) after c visits: for small γ it is proportional to the counts c, for moderate γ about log c, and for
large γ the first visit does it all (Cabannes, Dohmatob, Bietti 2024).
"""

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np
from jaxtyping import Float, Shaped

from toytf.theory._domain import Real, at_least
from toytf.theory.margins import margin_step

Form = Literal["margin", "score"]
"""margin: the exact step. score: q ← q + γ w / (1 + e^q / (M − 1)), as in the paper, which takes the margin to be q."""

LARGEST_EXPONENT = 700.0
"""e^m beyond it is not a number in float64; there the step is 0 all the same."""


def stored_strengths(
    counts: Shaped[np.ndarray, "N"], lr: Real, n_outputs: int, *, form: Form = "margin"
) -> Float[np.ndarray, "N"]:
    """q_γ(z) = g^{c(z)}(0): how strongly batches of one store an input that comes c(z) times."""
    whole = np.asarray(counts).astype(np.int64)
    if not np.array_equal(whole, counts):
        raise ValueError("counts must be whole numbers: an input is visited or not")
    path = strength_path(int(whole.max(initial=0)), lr, n_outputs, form=form)
    return path[whole]


def strength_path(visits: int, lr: Real, n_outputs: int, *, form: Form = "margin") -> Float[np.ndarray, "path"]:
    """q after 0, 1, 2, … visits, each in a batch of its own."""
    at_least(0, visits=visits, lr=lr)
    at_least(1, n_outputs=n_outputs)
    if n_outputs == 1:  # nothing competes, and nothing is learned
        return np.zeros(visits + 1)
    pull, scale = (lr * n_outputs, (n_outputs - 1) / n_outputs) if form == "margin" else (lr * (n_outputs - 1), 1.0)
    path, m = np.zeros(visits + 1), 0.0
    for visit in range(1, visits + 1):
        m += pull / (math.exp(min(m, LARGEST_EXPONENT)) + n_outputs - 1)
        path[visit] = scale * m
    return path


def strengths_after(shares: Iterable[Float[np.ndarray, "N"]], lr: Real, n_outputs: int) -> Float[np.ndarray, "N"]:
    """q(z) after steps on batches in which z has these shares w(z), by the exact step."""
    at_least(0, lr=lr)
    at_least(1, n_outputs=n_outputs)
    m = None
    for share in shares:
        m = np.zeros(len(share)) if m is None else m
        m = m if n_outputs == 1 else margin_step(m, lr * share, n_outputs)
    if m is None:
        raise ValueError("shares has no batch, expected that of one step at least")
    return m * (n_outputs - 1) / n_outputs
