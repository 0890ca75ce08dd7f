"""Pairs whose keys compete with rivals of their own: the decoupled model of Giorlandino, Goldt, Maillard 2026."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association, Readable


@dataclass(frozen=True, eq=False, kw_only=True)
class DecoupledAssociation(Association):
    """Pairs z → f(z) that are stored as others are, but read against rivals drawn for each key alone.

    rivals[z, k] takes the place of the k-th value that is not f(z): as many compete for a key as there are values.
    """

    rivals: Float[Tensor, "n rivals d_out"]

    def __post_init__(self) -> None:
        super().__post_init__()
        n, m, given = len(self.keys), len(self.values), tuple(self.rivals.shape[:2])
        if given != (n, max(m - 1, 0)):
            raise ValueError(f"DecoupledAssociation.rivals are {given}, expected {m - 1} for each of {n} keys")
        if self.candidates is not None:
            raise ValueError("a DecoupledAssociation has no candidates: all rivals of a key compete for it")

    def scores(self, memory: Readable) -> Float[Tensor, "n m"]:
        """u_{f(z)}ᵀ W e_z in column f(z), and those of the rivals of key z, in order, in the other columns."""
        outputs = self.keys @ memory.T if isinstance(memory, Tensor) else memory(self.keys)
        right = self.targets[:, None]
        scores = outputs.new_empty(len(self.keys), len(self.values))
        others = torch.ones_like(scores, dtype=torch.bool).scatter_(1, right, False)
        scores[others] = (self.rivals @ outputs[:, :, None]).flatten()
        return scores.scatter_(1, right, (self.values[self.targets] * outputs).sum(1, keepdim=True))
