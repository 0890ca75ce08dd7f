"""Stochastic gradient descent on a matrix W by its scores alone, for the memories of several seeds at once.

A step of W = W₀ + Uᵀ C E changes the scores S = U W Eᵀ by the overlaps of the vectors, and need not touch W:

    S ← S − lr K R G_B,   C_B ← C_B − lr R,   G = E Eᵀ,   K = U Uᵀ

R has the residuals of the inputs B of the batch (see `toytf.memory.online`). This is one large product in place of two,
and less than those where there are no more inputs and answers than dimensions (Cabannes, Simsek, Bietti 2024).
"""

import torch
from jaxtyping import Float
from torch import Tensor, bmm

from toytf.memory.online import Batch, OnlineMemory, residuals


class ScoreDescent:
    """The scores of a memory, and what gradient descent has written into its matrix so far."""

    def __init__(self, memory: OnlineMemory) -> None:
        self._memory = memory
        self._G, self._K = bmm(memory.E, memory.E.mT), bmm(memory.U, memory.U.mT)
        self.scores: Float[Tensor, "seed M N"] = memory.scores().contiguous()
        self._C = torch.zeros_like(self.scores)

    @staticmethod
    def serves(memory: OnlineMemory) -> bool:
        """Is it exact, and less work?"""
        (n_inputs, d), n_outputs = memory.E.shape[1:], memory.U.shape[1]
        return memory.model == "matrix" and not memory.layer_norm and max(n_inputs, n_outputs) <= d

    def step(self, batch: Batch, lr: float) -> None:
        """One step of this size on a batch."""
        n_seeds, M, N = self.scores.shape
        size = batch.weights * -lr
        if batch.rows is None or batch.inputs is None:
            R = residuals(self.scores, batch.targets).mul_(size)
            self._C.add_(R)
            self.scores.baddbmm_(bmm(self._K, R), self._G)
            return
        places = batch.inputs.expand(-1, M, -1)
        R = residuals(self.scores.gather(2, places), batch.targets).mul_(size)
        self._C.scatter_add_(2, places, R)
        overlaps = self._G.view(-1, N).index_select(0, batch.rows).view(n_seeds, -1, N)
        self.scores.baddbmm_(bmm(self._K, R), overlaps)

    def matrix(self) -> Float[Tensor, "seed d_out d_in"]:
        """W₀ + Uᵀ C E."""
        memory = self._memory
        if memory.W is None:
            raise ValueError("a memory without a matrix W has none to write into")
        return memory.W + bmm(memory.U.mT, bmm(self._C, memory.E))
