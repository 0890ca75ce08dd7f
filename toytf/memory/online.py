"""Memories of several seeds that learn from a stream of inputs: their scores and gradients in closed form.

    s(y, z) = u_yᵀ h_z,   h_z = W e_z   (`matrix`, `learnable`)   or   h_z = relu(e_z)   (`exponential`)

With R[y, z] = w(z) (π(y|z) − 1{y = f(z)}) and weights w(z) of the inputs, the gradients of the cross-entropy are

    ∂L/∂U = R Hᵀ,   ∂L/∂H = Uᵀ R,   ∂L/∂W = ∂L/∂H E,   ∂L/∂E = (Wᵀ ∂L/∂H)ᵀ,   H = W Eᵀ

(Cabannes, Dohmatob, Bietti 2024). All tensors have an axis of seeds in front, so that small problems fill a core, and
inputs are the last axis of scores: products and softmax over few outputs are then several times as fast.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, bmm

from toytf.memory.association import margins_of
from toytf.memory.particles import residuals
from toytf.randomness import generator

Model = Literal["matrix", "learnable", "exponential"]
"""matrix: W is trained, E and U are fixed. learnable: all three are. exponential: E and U, and there is no W."""

Start = Literal["zeros", "random"]
"""W = 0, or independent entries N(0, 1/d)."""

EPSILON = 1e-6
"""What keeps the norm of h away from 0."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The inputs of one step: some of each seed that weigh alike, or every input with a weight of its own."""

    rows: Int[Tensor, "rows"] | None
    """Where the vectors of the inputs are among those of all seeds; None: every input of every seed once."""
    inputs: Int[Tensor, "seed 1 B"] | None
    """The inputs themselves; None: every one once."""
    targets: Int[Tensor, "seed 1 B"]
    """f(z) of each."""
    weights: Float[Tensor, "seed 1 B"] | float
    """w(z)."""


@dataclass(frozen=True, eq=False)
class OnlineMemory:
    """Vectors and weights of one memory per seed, and what each input should be answered with."""

    model: Model
    E: Float[Tensor, "seed N d_in"]
    U: Float[Tensor, "seed M d_out"]
    W: Float[Tensor, "seed d_out d_in"] | None
    targets: Int[Tensor, "N"]
    layer_norm: bool = False
    """Is h divided by √(|h|² + ε) before it is compared with the output vectors? No mean is removed, and no gain."""

    @property
    def trained(self) -> dict[str, Tensor]:
        """What is trained, by name."""
        matrix = {} if self.W is None else {"W": self.W}
        return matrix if self.model == "matrix" else {**matrix, "E": self.E, "U": self.U}

    @property
    def every_target(self) -> Int[Tensor, "seed 1 N"]:
        """f(z) of every input, as a batch has it."""
        return self.targets.expand(len(self.E), 1, -1)

    def hidden(self) -> Float[Tensor, "seed d_out N"]:
        """h of every input, normalised if it is."""
        return self._hidden(self.E)[1]

    def scores(self) -> Float[Tensor, "seed M N"]:
        """u_yᵀ h_z for every output and input."""
        return self.U @ self.hidden()

    def margins(self) -> Float[Tensor, "seed N"]:
        """By how much the right answer outscores the best other one; ∞ if there is only one answer."""
        return margins_of(self.scores(), self.every_target[:, 0], 1)

    def recalled(self) -> Bool[Tensor, "seed N"]:
        """Is the margin positive? A tie is not recalled."""
        return self.margins() > 0

    def losses(self) -> Float[Tensor, "seed N"]:
        """−log π(f(z)|z) of every input."""
        return losses(self.scores(), self.every_target)

    def gradients(self, batch: Batch) -> dict[str, Tensor]:
        """The gradient of Σ w(z) · cross-entropy for everything that is trained."""
        e = self.E
        if batch.rows is not None:
            e = e.flatten(0, 1).index_select(0, batch.rows).view(len(e), -1, e.shape[2])
        linear, h, norm = self._hidden(e)
        R = residuals(bmm(self.U, h), batch.targets, 1).mul_(batch.weights)
        G = bmm(self.U.mT, R)
        if norm is not None:
            G = (G - h * (h * G).sum(1, keepdim=True)) / norm
        found = {} if self.W is None else {"W": bmm(G, e)}
        if self.model != "matrix":
            G_e = (G * (linear > 0) if self.W is None else bmm(self.W.mT, G)).mT
            if batch.rows is not None:
                flat = torch.zeros_like(self.E).flatten(0, 1)
                G_e = flat.index_add_(0, batch.rows, G_e.flatten(0, 1)).view_as(self.E)
            found |= {"E": G_e, "U": bmm(R, h.mT)}
        return found

    def within_spans(self) -> tuple["OnlineMemory", Callable[[Tensor], Tensor]]:
        """The same memory in the coordinates of its own vectors, where W is smaller, and what takes that W back.

        W meets vectors of the span of E on one side and of U on the other, and its gradients stay there. With
        orthonormal bases P and Q of the two, E P, U Q and Qᵀ W P have the same scores, gradients and norms. So this is
        exact for rules that do not depend on the coordinates; not for Adam, nor with a norm of h.
        """
        W, P, Q = self.W, _basis(self.E), _basis(self.U)
        if W is None:
            raise ValueError("a memory without a matrix W has no smaller one")
        start = (Q.mT @ W @ P).contiguous()
        small = replace(self, E=self.E @ P, U=self.U @ Q, W=start.clone())
        return small, lambda moved: W + Q @ (moved - start) @ P.mT

    def _hidden(self, e: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """h before and after it is normalised, and its norm if it is."""
        linear = e.mT if self.W is None else bmm(self.W, e.mT)
        h = linear.relu() if self.W is None else linear
        if not self.layer_norm:
            return linear, h, None
        norm = (h.square().sum(1, keepdim=True) + EPSILON).sqrt()
        return linear, h / norm, norm


def losses(scores: Float[Tensor, "seed M N"], right: Int[Tensor, "seed 1 N"]) -> Float[Tensor, "seed N"]:
    """−log π(f(z)|z)."""
    return -scores.log_softmax(1).gather(1, right)[:, 0]


def random_memory(
    model: Model,
    seeds: Sequence[int],
    n_inputs: int,
    n_outputs: int,
    d: int,
    *,
    start: Start = "zeros",
    sphere: bool = False,
    layer_norm: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> OnlineMemory:
    """Gaussian vectors with entries N(0, 1/d), or of length 1 (sphere), and f(z) = z mod M, for every seed.

    Numbers are drawn on the CPU in float64, so that a seed means the same on every device and in every precision.
    """

    def drawn(purpose: str, *shape: int) -> Tensor:
        parts = [torch.randn(shape, generator=generator(seed, purpose), dtype=torch.float64) for seed in seeds]
        return torch.stack(parts).div_(math.sqrt(d))

    E, U = drawn("inputs", n_inputs, d), drawn("outputs", n_outputs, d)
    if sphere:
        E, U = (vectors / vectors.norm(dim=2, keepdim=True) for vectors in (E, U))
    W = None
    if model != "exponential":
        W = drawn("start", d, d) if start == "random" else torch.zeros(len(seeds), d, d)
        W = W.to(dtype).to(device)
    targets = torch.arange(n_inputs, device=device) % n_outputs
    return OnlineMemory(model, E.to(dtype).to(device), U.to(dtype).to(device), W, targets, layer_norm)


def _basis(vectors: Float[Tensor, "seed n d"]) -> Float[Tensor, "seed d k"]:
    """An orthonormal basis of what the vectors span, or of all if there are d of them."""
    n_seeds, n, d = vectors.shape
    if n >= d:
        return torch.eye(d, dtype=vectors.dtype, device=vectors.device).expand(n_seeds, d, d)
    Q: Tensor = torch.linalg.qr(vectors.mT).Q
    return Q
