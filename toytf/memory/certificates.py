"""What is known for certain: bounds on the largest margin from both sides, and pairs that contradict each other.

Both bounds hold whatever the matrix or the weights are, so it does not matter how they were found. Margins are in units
of the score's standard deviation: |W|_F = 1, keys and values of mean square 1 per coordinate.
"""

import itertools

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.problem import StorageProblem


def lower_bound(problem: StorageProblem, W: Float[Tensor, "b d_out d_in"]) -> Float[Tensor, "b"]:
    """κ_lb = min gap / |W|: the largest margin is at least that; ∞ without rivals."""
    alone = ~problem.has_rivals
    if bool(alone.all()):
        return W.new_full((len(W),), torch.inf)
    smallest = problem.margins(problem.outputs(W)).amin(1) / W.norm(dim=(1, 2)).clamp_min(torch.finfo(W.dtype).tiny)
    bound: Tensor = (smallest / _unit(problem, W)).masked_fill(alone, torch.inf)
    return bound


def violations(problem: StorageProblem, W: Float[Tensor, "b d_out d_in"]) -> Float[Tensor, "b n m"]:
    """r_zy = (1 − gap)₊, what is missing from a gap of 1: weights of an upper bound."""
    return (1 - problem.gaps(problem.outputs(W))).clamp_min(0)


def upper_bound(problem: StorageProblem, weights: Float[Tensor, "b n m"]) -> Float[Tensor, "b"]:
    """κ_ub = |Σ r_zy (u_{f(z)} − u_y) e_zᵀ| / Σ r_zy: no margin is larger (Gordan); ∞ without rivals or weights.

    Weights below 0 count as 0; where there is no rivalry they must be 0.
    """
    weights = weights.clamp_min(0)
    per_key = weights.sum(2)
    pulled = problem.weigh(weights) - per_key[:, :, None] * problem.right
    total = per_key.sum(1)
    upper = (pulled.mT @ problem.keys).norm(dim=(1, 2)) / total.clamp_min(torch.finfo(weights.dtype).tiny)
    bound: Tensor = (upper / _unit(problem, weights)).masked_fill((total == 0) | ~problem.has_rivals, torch.inf)
    return bound


def _unit(problem: StorageProblem, like: Tensor) -> Float[Tensor, "b"]:
    key_scale, value_scale = scales(problem)
    return (key_scale * value_scale).to(like.dtype)


def scales(problem: StorageProblem) -> tuple[Float[Tensor, "b"], Float[Tensor, "b"]]:
    """Root mean square of a coordinate of the keys, and of the values, of every instance; 1 if there are none."""

    def scale(rows: Tensor) -> Tensor:
        used = (rows != 0).any(-1).sum(1).clamp_min(1)
        root: Tensor = (rows.square().sum((1, 2)) / used / rows.shape[2]).sqrt()
        return torch.where(root > 0, root, 1.0)

    return scale(problem.keys), scale(problem.values.flatten(1, -2))


def contradiction(problem: StorageProblem, b: int) -> str:
    """Name two pairs that no matrix can store together: equal keys with rival answers, or equal values that compete."""
    if problem.own_values:
        return ""
    n = int(problem.n[b])
    targets = problem.targets[b, :n].tolist()
    rivals = problem.all_rivals[b, :n].cpu()
    keys = problem.keys[b, :n].detach().cpu().double()
    for z in (keys == 0).all(1).nonzero()[:, 0].tolist():
        if rivals[z].scatter(0, torch.tensor(targets[z]), False).any():
            return f"key {z} is zero, so that all its scores are"
    for twins in _equal_rows(torch.nn.functional.normalize(keys, dim=1)):
        answers = torch.tensor([targets[z] for z in twins])
        beats = rivals[twins][:, answers] & (answers[:, None] != answers)
        for i, j in (beats & beats.T).triu(1).nonzero()[:1].tolist():
            z, other = twins[i], twins[j]
            how = "equal" if bool((keys[z] == keys[other]).all()) else "parallel"
            return f"keys {z} and {other} are {how}, but should recall the values {targets[z]} and {targets[other]}"
    owners: dict[int, list[int]] = {}
    for z, y in enumerate(targets):
        owners.setdefault(y, []).append(z)
    for twins in _equal_rows(problem.values[b].detach().cpu().double()):
        for y, another in itertools.permutations(twins, 2):
            if any(rivals[z, another] for z in owners.get(y, ())):
                return f"values {min(y, another)} and {max(y, another)} are equal, so that no key can tell them apart"
    return ""


def _equal_rows(rows: Float[Tensor, "n d"]) -> list[list[int]]:
    """The indices of rows that are the same to the last bit, group by group: what is only near proves nothing."""
    groups: dict[bytes, list[int]] = {}
    for i, row in enumerate(rows.numpy() + 0.0):  # + 0.0: a −0 is a 0
        groups.setdefault(row.tobytes(), []).append(i)
    return [group for group in groups.values() if len(group) > 1]
