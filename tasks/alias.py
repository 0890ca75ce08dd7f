"""Draws from a distribution, many at once on the device."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class AliasTable:
    """Walker's alias method for every row of a stochastic matrix: one uniform number per draw.

    Row i puts mass 1/n on each column j and gives the part above `keep[i, j]` of it to `other[i, j]`.
    """

    keep: Float[Tensor, "row column"]
    other: Int[Tensor, "row column"]

    @classmethod
    def build(cls, rows: NDArray[np.float64], device: torch.device) -> "AliasTable":
        """Prepare the rows of a stochastic matrix."""
        n_rows, n = rows.shape
        keep, other = np.ones((n_rows, n)), np.tile(np.arange(n), (n_rows, 1))
        for row in range(n_rows):
            mass = rows[row] * n / rows[row].sum()
            small, large = list(np.flatnonzero(mass < 1)), list(np.flatnonzero(mass >= 1))
            while small and large:
                low, high = small.pop(), large.pop()
                keep[row, low], other[row, low] = mass[low], high
                mass[high] -= 1 - mass[low]
                (small if mass[high] < 1 else large).append(high)
        return cls(torch.tensor(keep, dtype=torch.float32, device=device), torch.tensor(other, device=device))

    def split(self, uniform: Float[Tensor, "*shape"]) -> tuple[Int[Tensor, "*shape"], Float[Tensor, "*shape"]]:
        """Turn uniform numbers into a column and the height within it."""
        scaled = uniform * self.keep.shape[1]
        column = scaled.long().clamp_(max=self.keep.shape[1] - 1)
        return column, scaled - column

    def draw(self, rows: Int[Tensor, "*shape"], uniform: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """One draw from each given row, from one uniform number each."""
        return self.choose(rows, *self.split(uniform))

    def choose(
        self, rows: Int[Tensor, "*shape"], column: Int[Tensor, "*shape"], height: Float[Tensor, "*shape"]
    ) -> Int[Tensor, "*shape"]:
        """One draw from each given row, from a uniform column and a uniform height within it.

        Of many columns, one uniform number of 24 bits leaves few for the height, so that what is rare comes too often.
        """
        cell = (rows * self.keep.shape[1] + column).flatten()
        keep, other = (table.flatten().index_select(0, cell).view_as(rows) for table in (self.keep, self.other))
        return torch.where(height < keep, column, other)
