"""How strongly gradient descent stores an input, step by step, if inputs do not disturb each other.

With orthonormal vectors each input z evolves alone. Its margin m(z), the score of the right answer less that of any
other, grows by less and less, because the gradient of the cross-entropy is 1 − π and π → 1:

    m ← m + γ w(z) M / (e^m + M − 1),   q = (M − 1)/M · m

γ is the learning rate, w(z) the share of z in the batch, and q(z) the weight of u_{f(z)} e_zᵀ in W. With batches of
one, q(z) = g^c(0) after c visits: for small γ it is proportional to the counts c, for moderate γ about log c, and for
large γ the first visit does it all (Cabannes, Dohmatob, Bietti 2024).
"""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

from toytf.theory._domain import Real, at_least
from toytf.theory.margins import margin_step


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
