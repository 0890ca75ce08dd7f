"""Linear attention with one-hot vectors on facts: its weights, the token counts it reads, and its gradients.

    logit_a = Σ_t w(z_t) W(a, z_t) = Σ_z n_z w(z) W(a, z),   n_z = how often z is in the sequence

w is the row of W_KQ that the end token asks with, W the value and output matrix. Order does not matter, so a sequence
is its counts. Tokens are numbered: S subjects, R relations, noise, the end token (Nichani, Lee, Bietti 2024).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.factual.table import FactTable


@dataclass(frozen=True, eq=False)
class LinearAttentionWeights:
    """Attention w(z) and values W(z, a)."""

    w: Float[Tensor, "token"]
    W: Float[Tensor, "token answer"]

    def stepped(self, lr: float, along: "LinearAttentionWeights") -> "LinearAttentionWeights":
        """θ + lr · direction."""
        return LinearAttentionWeights(torch.add(self.w, along.w, alpha=lr), torch.add(self.W, along.W, alpha=lr))

    @property
    def invariant(self) -> Float[Tensor, "token"]:
        """w(z)² − Σ_a W(z, a)², which a gradient flow does not change."""
        return self.w.square() - self.W.square().sum(1)


@dataclass(frozen=True, eq=False)
class FactBatch:
    """Sequences as token counts, and the answers to them."""

    counts: Float[Tensor, "n token"]
    answers: Int[Tensor, "n"]


def fact_counts(table: FactTable, n_noise: int, seq_len: int) -> FactBatch:
    """Each pair (s, r) once, subject by subject, in float64; noise tokens at their mean counts (T−3)/n_noise."""
    S, R = table.n_subjects, table.n_relations
    s, r = torch.arange(S).repeat_interleave(R), torch.arange(R).repeat(S)
    counts = torch.zeros(S * R, S + R + n_noise + 1, dtype=torch.float64)
    counts.scatter_(1, torch.stack([s, S + r], dim=1), 1.0)
    counts[:, S + R : -1] = (seq_len - 3) / max(n_noise, 1)
    counts[:, -1] = 1.0
    return FactBatch(counts, torch.as_tensor(table.answers).flatten())


def with_noise(
    pairs: Int[Tensor, "n 2"], answers: Int[Tensor, "S R"], n_noise: int, seq_len: int, random: torch.Generator
) -> FactBatch:
    """A sequence for each pair (s, r), with T−3 noise tokens, i.i.d. uniform; in float32."""
    (S, R), n, device = answers.shape, len(pairs), random.device
    s, r = pairs.T
    noise = S + R + torch.randint(max(n_noise, 1), (n, seq_len - 3), generator=random, device=device)
    end = torch.full_like(s, S + R + n_noise)
    tokens = torch.cat([torch.stack([s, S + r, end], dim=1), noise], dim=1)
    counts = torch.zeros(n, S + R + n_noise + 1, device=device)
    counts.scatter_add_(1, tokens, torch.ones(tokens.shape, device=device))
    return FactBatch(counts, answers[s, r])


def sample_facts(answers: Int[Tensor, "S R"], n: int, n_noise: int, seq_len: int, random: torch.Generator) -> FactBatch:
    """n fresh sequences: s, r and all noise uniform."""
    pairs = [torch.randint(size, (n,), generator=random, device=random.device) for size in answers.shape]
    return with_noise(torch.stack(pairs, dim=1), answers, n_noise, seq_len, random)


def predict(weights: LinearAttentionWeights, counts: Float[Tensor, "n token"]) -> Float[Tensor, "n answer"]:
    """ln p̂(a) of every sequence."""
    return (counts @ (weights.w[:, None] * weights.W)).log_softmax(1)


def negative_gradients(weights: LinearAttentionWeights, facts: FactBatch) -> LinearAttentionWeights:
    """−∇ of the mean cross-entropy.

    G_z(a) = mean[n_z (1{a=a*} − p̂_a)];   −∂/∂W(a, z) = w(z) G_z(a),   −∂/∂w(z) = Σ_a W(a, z) G_z(a)
    """
    w, W = weights.w[:, None], weights.W
    surprise = (facts.counts @ (w * W)).softmax(1)  # p̂ − 1{a=a*}, n times over
    surprise.scatter_add_(1, facts.answers[:, None], surprise.new_full((len(surprise), 1), -1.0))
    G = facts.counts.T @ surprise
    G /= -len(surprise)
    return LinearAttentionWeights((W * G).sum(1), w * G)
