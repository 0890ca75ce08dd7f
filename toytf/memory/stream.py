"""Random associations by seed: an endless stream whose first n pairs do not depend on n.

Capacity is searched by asking whether the first n pairs can be stored. Adding a pair only adds inequalities, so the
answer changes once, and bisection is legitimate.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.decoupled import DecoupledAssociation
from toytf.memory.problem import StorageProblem
from toytf.randomness import generator

BLOCK = 256
"""Rows drawn at a time: a stream grows by whole blocks, each from a generator of its own."""

RowDistribution = Literal["sphere", "gaussian"]
"""How the vectors of a stream are drawn."""


class AssociationStream:
    """Pairs z → f(z) of random vectors: f(z) = z, or f(z) = z mod `n_answers`.

    sphere: rows of norm √d; gaussian: independent N(0, 1) entries. With `own_rivals` the problem is that of the
    decoupled model. `purpose` tells apart the streams of one seed.
    """

    def __init__(
        self,
        seed: int,
        d_in: int,
        d_out: int,
        *,
        distribution: RowDistribution = "sphere",
        n_answers: int | None = None,
        own_rivals: bool = False,
        purpose: str = "",
        device: torch.device | str = "cpu",
    ) -> None:
        self.seed, self.d_in, self.d_out, self.distribution = seed, d_in, d_out, distribution
        self.n_answers, self.own_rivals, self.purpose, self.device = n_answers, own_rivals, purpose, device
        self._drawn: dict[str, Tensor] = {}

    def prefix(self, n: int) -> Association:
        """The first n pairs."""
        n_values = n if self.n_answers is None else self.n_answers
        keys, values = self._rows("keys", n, self.d_in), self._rows("values", n_values, self.d_out)
        return Association(keys, values, torch.arange(n, device=self.device) % max(n_values, 1))

    def decoupled(self, n: int) -> DecoupledAssociation:
        """The first n pairs, every key with rivals of its own."""
        pairs = self.prefix(n)
        n_rivals = max(len(pairs.values) - 1, 0)
        rivals = [self._rows(f"rivals of {z}", n_rivals, self.d_out) for z in range(n)]
        own = torch.stack(rivals) if rivals else torch.empty(0, n_rivals, self.d_out, device=self.device)
        return DecoupledAssociation(pairs.keys, pairs.values, pairs.targets, rivals=own)

    def problem(self, n: int) -> StorageProblem:
        """The first n pairs as inequalities."""
        return StorageProblem.of(self.decoupled(n) if self.own_rivals else self.prefix(n))

    def _rows(self, name: str, n: int, d: int) -> Float[Tensor, "n d"]:
        rows = self._drawn.get(name, torch.empty(0, d, device=self.device))
        while len(rows) < n:
            stream = generator(self.seed, "association", self.purpose, name, len(rows))
            block = torch.randn(BLOCK, d, generator=stream)  # on the CPU, so that a seed is the same everywhere
            if self.distribution == "sphere":
                block = torch.nn.functional.normalize(block, dim=1) * d**0.5
            rows = self._drawn[name] = torch.cat([rows, block.to(self.device)])
        return rows[:n]
