"""Gradient descent on a matrix as a motion of scores: tokens are particles, and overlaps of vectors their forces.

With scores S = E W Uᵀ (tokens × values), and Gram matrices G = E Eᵀ and K = U Uᵀ, a step W ← W − η ∇L(W) on the
cross-entropy is

    S ← S + η G diag(p) (Y − softmax S) K,   Y[x, y] = 1{y = f(x)}

W itself is not needed, and a step costs N²M + NM², whatever the dimension (Cabannes, Simsek, Bietti 2024).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from toytf.memory.association import Association, margins_of, right_and_rivals


@dataclass(frozen=True, eq=False)
class Particles:
    """Several systems of one shape at once, along the first axis: what they are, and their scores now.

    p: frequencies, of sum 1; targets: f(x). In float64 unless told otherwise.
    """

    keys: Float[Tensor, "b n d_in"]
    values: Float[Tensor, "b m d_out"]
    p: Float[Tensor, "b n"]
    targets: Int[Tensor, "b n"]
    G: Float[Tensor, "b n n"]
    K: Float[Tensor, "b m m"]
    scores: Float[Tensor, "b n m"]

    @classmethod
    def of(
        cls,
        associations: Sequence[Association],
        W: Sequence[Float[Tensor, "d_out d_in"]] | None = None,
        *,
        dtype: torch.dtype = torch.float64,
    ) -> "Particles":
        """The tokens of some associations of one shape; W: the matrix that each starts from, 0 if None."""
        if not associations:
            raise ValueError("particles need at least one Association")
        for one in associations:
            one.require_finite()
            if one.candidates is not None:
                raise ValueError("particles need an Association without candidates: every value competes for every key")
        if len({(one.keys.shape, one.values.shape) for one in associations}) > 1:
            raise ValueError("particles of several associations need keys and values of one shape in all of them")
        keys = torch.stack([one.keys for one in associations]).to(dtype)
        values = torch.stack([one.values for one in associations]).to(dtype)
        weights = [torch.ones_like(one.keys[:, 0]) if one.weights is None else one.weights for one in associations]
        p = torch.stack([part.to(dtype) for part in weights])
        scores = keys.new_zeros(len(keys), keys.shape[1], values.shape[1])
        if W is not None:
            scores = keys @ torch.stack([*W]).to(keys).mT @ values.mT
        G, K = keys @ keys.mT, values @ values.mT
        targets = torch.stack([one.targets for one in associations])
        return cls(keys, values, p / p.sum(1, keepdim=True), targets, G, K, scores)

    def repeated(self, times: int) -> "Particles":
        """Every system so many times in a row, such as once for each step size."""
        return Particles(**{name: part.repeat_interleave(times, 0) for name, part in vars(self).items()})

    def stepped(self, lr: Float[Tensor, "b"], frequencies: Float[Tensor, "b n"] | None = None) -> "Particles":
        """One step of gradient descent, by the step size of each system.

        frequencies: those of the tokens in a batch, instead of p.
        """
        weights = (self.p if frequencies is None else frequencies) * -lr[:, None]
        R = residuals(self.scores, self.targets[..., None], 2)
        return replace(self, scores=self.scores + self.G @ (weights[..., None] * R) @ self.K)

    @property
    def margins(self) -> Float[Tensor, "b n"]:
        """The score of the right value minus the best other one."""
        return margins_of(self.scores, self.targets)

    @property
    def losses(self) -> Float[Tensor, "b n"]:
        """The cross-entropy of every token: log(1 + Σ_{y ≠ f(x)} exp(s_y − s_f(x))), exact also where it is tiny."""
        right, rivals = right_and_rivals(self.scores, self.targets)
        return torch.nn.functional.softplus(rivals.logsumexp(2) - right)

    @property
    def loss(self) -> Float[Tensor, "b"]:
        """The cross-entropy over the population: Σ p ℓ."""
        return (self.p * self.losses).sum(1)

    @property
    def error(self) -> Float[Tensor, "b"]:
        """The frequency of tokens whose margin is not positive; a tie is an error."""
        return (self.p * (self.margins <= 0)).sum(1)


def residuals(scores: Float[Tensor, "..."], right: Int[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """π(y|z) − 1{y = f(z)} for every answer and input; dim: the axis of answers, along which `right` has one entry.

    1 − π(f) is computed as the sum of the others: as a difference it would be 0 in float32 from a margin of 17 on.
    """
    R = scores.softmax(dim).scatter_(dim, right, 0.0)
    return R.scatter_(dim, right, R.sum(dim, keepdim=True).neg_())
