"""Storage as a question about inequalities: many associations of one shape, asked as one tensor program.

A matrix W stores the pairs z → f(z) if u_{f(z)}ᵀ W e_z > u_yᵀ W e_z for every key z and every rival y ≠ f(z). In the
*original* model all keys share the values u; in the *decoupled* model every key has rivals of its own (Giorlandino,
Goldt, Maillard 2026).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.decoupled import DecoupledAssociation


@dataclass(frozen=True, eq=False)
class StorageProblem:
    """B associations of one shape; shorter ones are padded with keys that have no rivals.

    keys[b, z] = e_z; values[b, y] = u_y, or values[b, z, y] when every key has values of its own; targets[b, z] = f(z);
    rivals[b, z, y] = may y compete for key z (None: every y ≠ f(z) may); n[b] = how many keys are no padding.
    """

    keys: Float[Tensor, "b n d_in"]
    values: Float[Tensor, "b m d_out"] | Float[Tensor, "b n m d_out"]
    targets: Int[Tensor, "b n"]
    n: Int[Tensor, "b"]
    rivals: Bool[Tensor, "b n m"] | None = None

    @staticmethod
    def of(*associations: Association) -> "StorageProblem":
        """The inequalities of associations, as one problem."""
        problems = []
        for of in associations:
            values, targets = of.values, of.targets
            if isinstance(of, DecoupledAssociation):  # the right value comes first
                values, targets = torch.cat([values[targets][:, None], of.rivals], 1), torch.zeros_like(targets)
            n = torch.tensor([len(of.keys)], device=of.keys.device)
            candidates = None if of.candidates is None else of.candidates[None]
            problems.append(StorageProblem(of.keys[None], values[None], targets[None], n, candidates))
        return StorageProblem.stack(problems)

    @staticmethod
    def stack(problems: Sequence["StorageProblem"]) -> "StorageProblem":
        """Several problems as one; keys and values that one has fewer of than another are padded."""
        if len(problems) == 1:
            return problems[0]
        if len({(p.keys.shape[2], p.values.shape[-1], p.own_values) for p in problems}) != 1:
            raise ValueError(
                "stacked problems must have the same d_in and d_out, and either all or none have values of their own"
            )
        n, m = (max(sizes) for sizes in zip(*(problem.shape for problem in problems), strict=True))
        plain = all(problem.rivals is None and problem.shape == (n, m) for problem in problems)
        return StorageProblem(
            torch.cat([_pad(problem.keys, n, 1) for problem in problems]),
            torch.cat([_pad(_pad(p.values, n, 1) if p.own_values else p.values, m, -2) for p in problems]),
            torch.cat([_pad(problem.targets, n, 1) for problem in problems]),
            torch.cat([problem.n for problem in problems]),
            None if plain else torch.cat([_pad(_pad(problem.all_rivals, n, 1), m, 2) for problem in problems]),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """The number of keys, and of values that a key may choose from; padding counts."""
        return self.keys.shape[1], self.values.shape[-2]

    @property
    def all_rivals(self) -> Bool[Tensor, "b n m"]:
        """The rivals, written out."""
        n, m = self.shape
        if self.rivals is None:
            return torch.ones(len(self.keys), n, m, dtype=torch.bool, device=self.keys.device)
        return self.rivals

    @property
    def own_values(self) -> bool:
        """Does every key have values of its own (the decoupled model)?"""
        return self.values.ndim == 4

    @property
    def right(self) -> Float[Tensor, "b n d_out"]:
        """u_{f(z)} of every key."""
        if self.own_values:
            return self.values.take_along_dim(self.targets[:, :, None, None], 2)[:, :, 0]
        return self.values.take_along_dim(self.targets[:, :, None], 1)

    @property
    def n_values(self) -> Int[Tensor, "b"]:
        """How many values take part, padding not counted."""
        if self.rivals is None:
            return torch.full_like(self.n, self.shape[1])
        taking_part = self.rivals.scatter(2, self.targets[:, :, None], True)
        return taking_part.any(1).sum(1) if not self.own_values else taking_part.sum(2).amax(1)

    @property
    def has_rivals(self) -> Bool[Tensor, "b"]:
        """Is there any inequality at all?"""
        if 0 in self.shape:
            return torch.zeros_like(self.n, dtype=torch.bool)
        return self.all_rivals.scatter(2, self.targets[:, :, None], False).flatten(1).any(1)

    def select(self, index: Int[Tensor, "k"]) -> "StorageProblem":
        """Some of the instances."""
        rivals = None if self.rivals is None else self.rivals[index]
        return StorageProblem(self.keys[index], self.values[index], self.targets[index], self.n[index], rivals)

    def alone(self, b: int) -> "StorageProblem":
        """One of the instances, without keys that are padding."""
        one, used = slice(b, b + 1), (slice(b, b + 1), slice(int(self.n[b])))
        values = self.values[used if self.own_values else one]
        rivals = None if self.rivals is None else self.rivals[used]
        return StorageProblem(self.keys[used], values, self.targets[used], self.n[one], rivals)

    def padded(self, multiple: int) -> "StorageProblem":
        """The same with keys and shared values padded to a multiple of a number."""
        n, m = (-(-size // multiple) * multiple for size in self.shape)
        if self.own_values or 0 in self.shape or self.shape == (n, m):
            return self
        rivals = _pad(_pad(self.all_rivals, n, 1), m, 2)
        return StorageProblem(_pad(self.keys, n, 1), _pad(self.values, m, 1), _pad(self.targets, n, 1), self.n, rivals)

    def double(self) -> "StorageProblem":
        """The same in float64, on the CPU if the device has none."""
        device = "cpu" if self.keys.device.type == "mps" else self.keys.device
        keys, values, targets, n = (part.to(device) for part in (self.keys, self.values, self.targets, self.n))
        rivals = None if self.rivals is None else self.rivals.to(device)
        return StorageProblem(keys.double(), values.double(), targets, n, rivals)

    def scores_of(
        self, outputs: Float[Tensor, "b n d_out"], rows: slice = slice(None), out: Tensor | None = None
    ) -> Float[Tensor, "b rows m"]:
        """u_yᵀ o_z for the outputs o_z of some rows, into `out` if given; those that may not compete are scored too."""
        if self.own_values:
            scores = (outputs[:, rows, None] @ self.values[:, rows].mT)[:, :, 0]  # five times as fast as values @ o
            return scores if out is None else out.copy_(scores)
        return torch.matmul(outputs[:, rows], self.values.mT, out=out)

    def weigh(
        self, weights: Float[Tensor, "b rows m"], rows: slice = slice(None), out: Tensor | None = None
    ) -> Float[Tensor, "b rows d_out"]:
        """Σ_y r_zy u_y for some rows, into `out` if given: the transpose of `scores_of`."""
        if self.own_values:
            weighed = (weights[:, :, None, :] @ self.values[:, rows])[:, :, 0]
            return weighed if out is None else out.copy_(weighed)
        return torch.matmul(weights, self.values, out=out)

    def outputs(self, W: Float[Tensor, "b d_out d_in"], out: Tensor | None = None) -> Float[Tensor, "b n d_out"]:
        """W e_z of every key, into `out` if given."""
        return torch.matmul(self.keys, W.mT, out=out)

    def gaps(self, outputs: Float[Tensor, "b n d_out"]) -> Float[Tensor, "b n m"]:
        """Score of the right value minus score of each; +∞ where there is no rivalry (the right value, padding)."""
        scores = self.scores_of(outputs)
        gaps = scores.take_along_dim(self.targets[:, :, None], 2) - scores
        if self.rivals is not None:
            gaps = gaps.masked_fill(~self.rivals, torch.inf)
        return gaps.scatter(2, self.targets[:, :, None], torch.inf)

    def margins(self, outputs: Float[Tensor, "b n d_out"]) -> Float[Tensor, "b n"]:
        """Score of the right value minus the best rival's, for every key; +∞ for padding."""
        if self.values.shape[-2] == 0:
            return outputs.new_full(outputs.shape[:2], torch.inf)
        return self.gaps(outputs).amin(2)


def _pad(rows: Tensor, size: int, dim: int) -> Tensor:
    """Zeros (False) after the rows of one dimension, up to a size."""
    shape = list(rows.shape)
    shape[dim] = size - shape[dim]
    return torch.cat([rows, rows.new_zeros(shape)], dim)
