"""The error of W = Σ_z q(z) u_{f(z)} e_zᵀ at many dimensions and for many q, in one pass over the inputs.

Vectors of dimension d are the first d coordinates of those of the largest dimension. Gaussian ones are Gaussian again,
up to a scale that no argmax sees. W has at most M different rows u_yᵀ, so its scores factor through the answers:

    u_yᵀ W e_z = Σ_k H_yk (A_k · e_z),   A_k = Σ_{f(z') = k} q(z') e_z',   H = U Uᵀ

Both products over coordinates are sums over blocks of coordinates, and grow from one dimension to the next. This costs
N D S M for all dimensions of S schemes, against N Σ d² S from left to right. Where there are more answers than
dimensions, N d² + N d M per dimension is less, and W itself is built.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from toytf.randomness import generator

Blocks = Iterator[tuple[slice, Float[Tensor, "rows D"]]]
"""Which inputs, and their vectors."""

Passes = Callable[[], Blocks]
"""Goes through all inputs, whenever it is called."""

BLOCK = 8192
"""Key vectors that are drawn by one generator, and worked on at a time."""

KEPT = 2**27
"""Entries of key vectors that are kept from one pass to the next (512 MiB); more are drawn again."""

SCORED = 2**24
"""Scores that are worked on at a time where there are many answers."""


@dataclass(frozen=True)
class RandomVectors:
    """Key and value vectors of a seed, with entries N(0, 1/D); on the sphere, every prefix is of length 1."""

    seed: int
    n_inputs: int
    n_outputs: int
    d: int
    distribution: Literal["gaussian", "sphere"] = "gaussian"
    device: torch.device | str = "cpu"

    def values(self) -> Float[Tensor, "M D"]:
        """The vectors of the answers."""
        random = generator(self.seed, "scaling", "values")
        return torch.randn(self.n_outputs, self.d, generator=random).div_(self.d**0.5).to(self.device)

    def blocks(self) -> Blocks:
        """The vectors of the inputs, some at a time."""
        for start in range(0, self.n_inputs, BLOCK):
            rows = slice(start, min(start + BLOCK, self.n_inputs))
            random = generator(self.seed, "scaling", "keys", start)
            drawn = torch.randn(rows.stop - start, self.d, generator=random)
            yield rows, drawn.div_(self.d**0.5).to(self.device)

    def passes(self) -> Passes:
        """`blocks`, kept if they are not too many."""
        if self.n_inputs * self.d > KEPT:
            return self.blocks
        kept = list(self.blocks())
        return lambda: iter(kept)

    def prefix(self, rows: Float[Tensor, "n D"], d: int) -> Float[Tensor, "n d"]:
        """The first d coordinates of vectors, as vectors of dimension d."""
        cut: Tensor = (
            rows[:, :d] if self.distribution == "gaussian" else torch.nn.functional.normalize(rows[:, :d], dim=1)
        )
        return cut


@dataclass(frozen=True, eq=False)
class Strengths:
    """q(z) of several schemes: of those that are the same at every dimension, and of those that are not."""

    fixed: Float[Tensor, "fixed N"]
    at: Callable[[int], Float[Tensor, "own N"]]

    def all_at(self, d: int) -> Float[Tensor, "scheme N"]:
        """All schemes at a dimension: the fixed ones first."""
        return torch.cat([self.fixed, self.at(d)])


def prefix_errors(
    vectors: RandomVectors,
    targets: Int[Tensor, "N"],
    strengths: Strengths,
    p: Float[Tensor, "frequency N"],
    dimensions: Sequence[int],
) -> Float[Tensor, "dimension scheme frequency"]:
    """Σ_z p(z) 1{f(z) is not the answer with the highest score}, exactly; a tie is an error.

    dimensions: in ascending order, the last being that of the vectors; p: several distributions of the inputs, in
    float64 and on the CPU, since not every device has float64. So are the results.
    """
    if list(dimensions) != sorted(set(dimensions)) or dimensions[-1] != vectors.d:
        raise ValueError(f"dimensions must ascend to {vectors.d}, got {list(dimensions)}")
    M, K = vectors.n_outputs, len(dimensions)
    through_answers = vectors.d * M + K * M**2
    through_matrix = sum(d**2 + d * M for d in dimensions)
    p = p.T.contiguous()
    if through_answers <= through_matrix:
        return torch.stack(_through_answers(vectors, targets, strengths, p, dimensions))
    passes, U = vectors.passes(), vectors.values()
    errors = []
    for d in dimensions:
        values, q = vectors.prefix(U, d), strengths.all_at(d)
        W = values.new_zeros(len(q), d, d)
        for rows, E in passes():
            for s, of_scheme in enumerate(q[:, rows]):
                i = of_scheme.nonzero()[:, 0]
                stored = (q[s, rows][i, None] * values[targets[rows][i]]).T
                W[s] += stored @ vectors.prefix(E[i], d)
        error = p.new_zeros(len(q), p.shape[1])
        size = max(1, SCORED // vectors.n_outputs)
        for rows, E in passes():
            for start in range(0, len(E), size):
                some = slice(rows.start + start, min(rows.start + start + size, rows.stop))
                cut = vectors.prefix(E[start : start + size], d)
                for s in range(len(q)):
                    scores = values @ (W[s] @ cut.T)
                    error[s] += _wrong(scores, targets[some]) @ p[some]
        errors.append(error)
    return torch.stack(errors)


def _through_answers(
    vectors: RandomVectors,
    targets: Int[Tensor, "N"],
    strengths: Strengths,
    p: Float[Tensor, "N frequency"],
    dimensions: Sequence[int],
) -> list[Float[Tensor, "scheme frequency"]]:
    """By sums of key vectors over the inputs of each answer."""
    passes, M = vectors.passes(), vectors.n_outputs
    growing = vectors.distribution == "gaussian"
    by_dimension = strengths.at if growing else strengths.all_at
    own = {d: by_dimension(d) for d in dimensions}
    n_fixed = len(strengths.fixed) if growing else 0
    A = targets.new_zeros(n_fixed, M, vectors.d, dtype=torch.float32)
    A_own = {d: A.new_zeros(len(q), M, d) for d, q in own.items()}
    for rows, E in passes():
        if growing:
            A += _sums(strengths.fixed[:, rows], targets[rows], E, M)
        for d, q in own.items():
            A_own[d] += _sums(q[:, rows], targets[rows], vectors.prefix(E, d), M)
    U = vectors.values()
    H = {d: (cut := vectors.prefix(U, d)) @ cut.T for d in dimensions}
    errors = [p.new_zeros(n_fixed + len(own[d]), p.shape[1]) for d in dimensions]
    for rows, E in passes():
        G, before = A.new_zeros(n_fixed * M, len(E)), 0
        for k, d in enumerate(dimensions):
            G.addmm_(A[:, :, before:d].flatten(0, 1), E[:, before:d].T)
            before = d
            G_own = A_own[d].flatten(0, 1) @ vectors.prefix(E, d).T
            scores = H[d] @ torch.cat([G, G_own]).view(n_fixed + len(own[d]), M, len(E))
            errors[k] += _wrong(scores, targets[rows]) @ p[rows]
    return errors


def _sums(
    q: Float[Tensor, "scheme rows"], targets: Int[Tensor, "rows"], E: Float[Tensor, "rows d"], n_outputs: int
) -> Float[Tensor, "scheme answer d"]:
    """Σ_{f(z) = y} q(z) e_z of every scheme and answer; inputs that no scheme stores are left out."""
    used = (q != 0).any(0).nonzero()[:, 0]
    if len(used) < len(targets) // 2:
        q, targets, E = q[:, used], targets[used], E[used]
    of_answer = torch.nn.functional.one_hot(targets, n_outputs).to(E.dtype).T
    return ((q[:, None] * of_answer).flatten(0, 1) @ E).view(len(q), n_outputs, E.shape[1])


def _wrong(scores: Float[Tensor, "*scheme answer rows"], targets: Int[Tensor, "rows"]) -> Float[Tensor, "*scheme rows"]:
    """1 where the right score is not above all others, else 0, in float64 on the CPU. The scores are used up."""
    right = targets.expand(*scores.shape[:-2], 1, -1)
    highest = scores.gather(-2, right)
    recalled = highest > scores.scatter_(-2, right, -torch.inf).amax(-2, keepdim=True)
    return (~recalled).squeeze(-2).cpu().double()
