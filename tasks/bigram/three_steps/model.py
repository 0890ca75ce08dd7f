"""The two models of the three-step theorem and the sequences they learn from.

    position  1 … s−1     s   s+1     s+2 … T−1      T
    token     not q       q    o      not q          q      answer at T: o

Bietti et al. 2023, §5. The clean model has the simplifications that make the theorem exact; the residual one has a
stream in which tokens, positions and what layer 1 adds lie on top of each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Vectors:
    """Token vectors e, the same after layer 1 ẽ, output vectors u and position vectors p.

    remap: W_OV1 with ẽ_k = remap @ e_k, in the model that has a residual stream; the clean one needs ẽ alone.
    """

    e: Float[Tensor, "token d_token"]
    e_tilde: Float[Tensor, "token d_remapped"]
    u: Float[Tensor, "token d_out"]
    p: Float[Tensor, "position d_position"]
    remap: Float[Tensor, "d_remapped d_token"] | None = None


@dataclass(frozen=True, eq=False)
class InductionWeights:
    """The three matrices: W_OV2 [output, value], W_KQ2 and W_KQ1 [query, key]."""

    W_OV2: Float[Tensor, "d_out d_value"]
    W_KQ2: Float[Tensor, "d_query2 d_key2"]
    W_KQ1: Float[Tensor, "d_query1 d_key1"]

    @classmethod
    def zero(cls, vectors: Vectors) -> "InductionWeights":
        """Where the three steps start: attention is uniform and every answer equally likely."""
        e, key, u, p = (rows.shape[1] for rows in (vectors.e, vectors.e_tilde, vectors.u, vectors.p))
        shapes = {"W_OV2": (u, e), "W_KQ2": (e, key), "W_KQ1": (p, p)}
        return cls(**{name: torch.zeros(shape, device=vectors.e.device) for name, shape in shapes.items()})


def sample_sequences(
    n: int, n_tokens: int, seq_len: int, generator: torch.Generator
) -> tuple[Int[Tensor, "n position"], Int[Tensor, "n"]]:
    """n sequences that end with the second occurrence of a trigger, and the answers: what followed the first.

    Distributed as a uniform chain with one trigger, given that z_T = q is its second occurrence and o ≠ q.
    """
    device = generator.device
    q = torch.randint(n_tokens, (n, 1), generator=generator, device=device)
    s = torch.randint(seq_len - 2, (n, 1), generator=generator, device=device)
    others = torch.randint(n_tokens - 1, (n, seq_len), generator=generator, device=device)
    tokens = others + (others >= q)  # uniform over all tokens but q
    tokens = tokens.scatter(1, s, q)
    tokens[:, -1:] = q
    return tokens, tokens.gather(1, s + 1)[:, 0]


def forward(
    weights: InductionWeights, vectors: Vectors, tokens: Int[Tensor, "n position"]
) -> tuple[Float[Tensor, "n token"], Float[Tensor, "n position"]]:
    """Logits at the last position, and layer 2's attention from there.

    clean:     h_t = Σ_r softmax_{r≤t}(p_tᵀ W_KQ1 p_r) ẽ_{z_r},
               logits = U W_OV2 Σ_t softmax_t(e_{z_T}ᵀ W_KQ2 h_t) e_{z_t}
    residual:  x_t = e_{z_t} + p_t,   h_t = x_t + W_OV1 Σ_r a¹_{tr} x_r,   logits = U (h_T + W_OV2 Σ_t a²_t h_t)
    """
    W, v = weights, vectors
    if v.remap is None:
        e = v.e[tokens]
        h = _causal(v.p @ W.W_KQ1 @ v.p.T) @ v.e_tilde[tokens]
        attention = torch.einsum("nd,ntd->nt", e[:, -1] @ W.W_KQ2, h).softmax(1)
        return torch.einsum("nt,ntd->nd", attention, e) @ W.W_OV2.T @ v.u.T, attention
    x = v.e[tokens] + v.p
    h = x + _causal(x @ W.W_KQ1 @ x.mT) @ x @ v.remap.T
    attention = torch.einsum("nd,ntd->nt", h[:, -1] @ W.W_KQ2, h).softmax(1)
    return (h[:, -1] + torch.einsum("nt,ntd->nd", attention, h) @ W.W_OV2.T) @ v.u.T, attention


def negative_gradient(
    name: str, weights: InductionWeights, vectors: Vectors, batches: Iterator[tuple[Tensor, Tensor]]
) -> Float[Tensor, "d_left d_right"]:
    """−∂/∂W of the mean cross-entropy over all batches, by autograd through the forward."""
    W = getattr(weights, name).clone().requires_grad_()
    asked = replace(weights, **{name: W})
    total = torch.zeros_like(W)
    n = 0
    for tokens, answers in batches:
        logits, _ = forward(asked, vectors, tokens)
        loss = torch.nn.functional.cross_entropy(logits, answers, reduction="sum")
        total -= torch.autograd.grad(loss, W)[0]
        n += len(answers)
    return total / n


def _causal(scores: Float[Tensor, "*n query key"]) -> Float[Tensor, "*n query key"]:
    """softmax over the keys r ≤ t."""
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1)
