"""Random associations by seed: an endless stream whose first n pairs do not depend on n.

Capacity is searched by asking whether the first n pairs can be stored. Adding a pair only adds inequalities, so the
answer changes once, and bisection is legitimate.
"""

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.decoupled import DecoupledAssociation
from toytf.memory.problem import StorageProblem
from toytf.randomness import generator

BLOCK = 256
"""Rows drawn at a time: a stream grows by whole blocks, each from a generator of its own."""

RowDistribution = Literal["sphere", "gaussian"]
"""How the vectors of a stream are drawn."""


def grid(n: int) -> Int[Tensor, "n 2"]:
    """The first n pairs (x, y) of numbers, square by square: the first k² are all pairs of numbers below k.

    (0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1), (0, 2), (1, 2), (2, 2), …
    """
    z = torch.arange(n)
    k = z.double().sqrt().long()  # exact: z is far below 2⁵²
    along = z - k**2
    below = along < k
    return torch.stack([torch.where(below, k, along - k), torch.where(below, along, k)], dim=1)


@dataclass(eq=False)
class AssociationStream:
    """Pairs z → f(z) of random vectors: f(z) = z, or f(z) = z mod `n_answers`.

    sphere: rows of norm √d; gaussian: independent N(0, 1) entries. With `own_rivals` the problem is that of the
    decoupled model. `purpose` tells apart the streams of one seed.

    inputs = 2: the keys are sums (e_x + ẽ_y)/√2 for pairs (x, y) in the order of `grid`, and one of `n_answers` is
    drawn for each, because z mod n_answers would nearly be a sum of a part of x and a part of y.
    """

    seed: int
    d_in: int
    d_out: int
    _: KW_ONLY
    distribution: RowDistribution = "sphere"
    n_answers: int | None = None
    inputs: Literal[1, 2] = 1
    own_rivals: bool = False
    purpose: str = ""
    device: torch.device | str = "cpu"
    _drawn: dict[str, Tensor] = field(default_factory=dict, init=False)

    def prefix(self, n: int) -> Association:
        """The first n pairs."""
        n_values = n if self.n_answers is None else self.n_answers
        values = self._rows("values", n_values, self.d_out)
        if self.inputs == 1:
            keys, targets = self._rows("keys", n, self.d_in), torch.arange(n, device=self.device) % max(n_values, 1)
            return Association(keys, values, targets)
        x, y = grid(n).to(self.device).unbind(1)
        size = math.isqrt(max(n - 1, 0)) + 1
        first, second = (self._rows(name, size, self.d_in) for name in ("first inputs", "second inputs"))
        targets = torch.arange(n)
        if self.n_answers is not None:
            randoms = [self._generator("answers", start) for start in range(0, n, BLOCK)]
            blocks = [torch.randint(self.n_answers, (BLOCK,), generator=random) for random in randoms]
            targets = torch.cat([torch.empty(0, dtype=torch.long), *blocks])[:n]
        return Association((first[x] + second[y]) / math.sqrt(2), values, targets.to(self.device))

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

    def _generator(self, name: str, start: int) -> torch.Generator:
        return generator(self.seed, "association", self.purpose, name, start)

    def _rows(self, name: str, n: int, d: int) -> Float[Tensor, "n d"]:
        rows = self._drawn.get(name, torch.empty(0, d, device=self.device))
        while len(rows) < n:
            stream = self._generator(name, len(rows))
            block = torch.randn(BLOCK, d, generator=stream)  # on the CPU, so that a seed is the same everywhere
            if self.distribution == "sphere":
                block = torch.nn.functional.normalize(block, dim=1) * d**0.5
            rows = self._drawn[name] = torch.cat([rows, block.to(self.device)])
        return rows[:n]
