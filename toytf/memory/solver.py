"""Can any matrix store this? An answer with a certificate.

W stores an association with margin 1 iff f(W) = ½ Σ_{z, y ≠ f(z)} r_zy² reaches 0, where

    r_zy = (1 − u_{f(z)}ᵀ W e_z + u_yᵀ W e_z)₊

- FEASIBLE: a W with every gap u_{f(z)}ᵀ W e_z − u_yᵀ W e_z > 0, checked again in float64 on the vectors as given.
- INFEASIBLE: the r are dual weights. For every W of unit norm the smallest gap is at most (Gordan)
  κ_ub = |Σ r_zy (u_{f(z)} − u_y) e_zᵀ| / Σ r_zy = |∇f| / Σ r; below `tolerance` no W has a margin worth the name.
- UNKNOWN: neither after `iterations` steps; the margin lies in [κ_lb, κ_ub].

Margins are in units of the score's standard deviation: |W|_F = 1, keys and values of mean square 1 per coordinate.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.descent import descend
from toytf.memory.problem import StorageProblem
from toytf.theory import maximal_margin


class Status(StrEnum):
    """What is known about storage."""

    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class Decision:
    """Whether an association can be stored: the best W found, and what bounds its margin from both sides."""

    status: Status
    W: Float[Tensor, "d_out d_in"]
    margin_lower: float
    """The smallest gap of W; negative if W fails on a pair."""
    margin_upper: float
    """No matrix has a larger smallest gap."""
    iterations: int
    reason: str = ""
    """Why nothing can store it, if two pairs contradict each other."""


def decide(
    problem: StorageProblem,
    *,
    tolerance: float = 0.01,
    iterations: int = 400,
    whiten: bool = True,
) -> list[Decision]:
    """Decide storage for every instance at once: restarted Nesterov steps on f in whitened coordinates.

    Whitening changes the margin but not whether there is one, and makes anisotropic vectors as easy as isotropic ones.
    """
    _refuse_nan(problem)
    if len(problem.keys) > (together := _together(problem)):
        groups = torch.split(torch.arange(len(problem.keys), device=problem.keys.device), together)
        alone = partial(decide, tolerance=tolerance, iterations=iterations, whiten=whiten)
        return [decision for group in groups for decision in alone(problem.select(group))]
    to_keys, to_values = _whitening(problem) if whiten else (None, None)
    whitened = _transformed(problem, to_keys, to_values)
    found = descend(whitened, iterations=iterations, tolerance=tolerance)
    W = _map_back(found.W.double(), to_keys, to_values)
    W_dual = _map_back(found.W_dual.double(), to_keys, to_values)
    lower, upper = certificates(problem.double(), W, W_dual)
    decisions = []
    for b, (low, high, claimed, steps) in enumerate(
        zip(lower.tolist(), upper.tolist(), found.bound.tolist(), found.iterations.tolist(), strict=True)
    ):
        status = Status.FEASIBLE if low > 0 else Status.INFEASIBLE if claimed < tolerance else Status.UNKNOWN
        reason = "" if status is Status.FEASIBLE else contradiction(problem, b)
        if reason:
            status = Status.INFEASIBLE
        decisions.append(Decision(status, W[b].to(problem.keys.dtype), low, high, int(steps), reason))
    return decisions


def maximise_margin(problem: StorageProblem, *, gap: float = 0.02, iterations: int = 1500) -> list[Decision]:
    """The matrix of largest margin κ* = max_W min gap / |W|, bracketed from both sides until they are within `gap`.

    Minimises ½|W|² + C f(W) with C = 300 / (κ² d_in d_out), κ the margin that the theory expects.
    """
    _refuse_nan(problem)
    key_scale, value_scale = _scales(problem)
    n, d_in, d_out = int(problem.n.max()), problem.keys.shape[2], problem.values.shape[-1]
    expected = maximal_margin(max(n, 2), d_in, d_out, n_values=max(problem.values.shape[-2], 2))
    decay = max(expected, 0.1) ** 2 * d_in * d_out / 300
    scaled = StorageProblem(
        problem.keys / key_scale, problem.values / value_scale, problem.targets, problem.n, problem.rivals
    )
    found = descend(scaled, iterations=iterations, decay=decay, gap=gap)
    W = found.W.double()
    lower, upper = certificates(problem.double(), W, found.W_dual.double())
    return [
        Decision(
            Status.FEASIBLE if low > 0 else Status.UNKNOWN,
            (W[b] / key_scale / value_scale).to(problem.keys.dtype),
            low, high, int(steps), "" if low > 0 else contradiction(problem, b),
        )
        for b, (low, high, steps) in enumerate(
            zip(lower.tolist(), upper.tolist(), found.iterations.tolist(), strict=True)
        )
    ]  # fmt: skip


def max_margin(association: Association, *, iterations: int = 1500) -> Float[Tensor, "d_out d_in"]:
    """Store every pair with the largest smallest gap.

    W = argmax_{|W|_F = 1} min_{z, y ≠ f(z)} (u_{f(z)} − u_y)ᵀ W e_z
    """
    W = maximise_margin(StorageProblem.of(association), iterations=iterations)[0].W
    return torch.nn.functional.normalize(W.flatten(), dim=0).reshape(W.shape)


def certificates(
    problem: StorageProblem, W: Float[Tensor, "b d_out d_in"], W_dual: Float[Tensor, "b d_out d_in"]
) -> tuple[Float[Tensor, "b"], Float[Tensor, "b"]]:
    """κ_lb = min gap / |W| of one matrix, and κ_ub = |Σ r (u_f − u) eᵀ| / Σ r with the r of another; ∞ without rivals.

    Both hold whatever the matrices are.
    """
    key_scale, value_scale = _scales(problem)
    unit = key_scale * value_scale
    smallest = problem.margins(problem.outputs(W)).flatten(1)
    lower = smallest.amin(1) if smallest.shape[1] else W.new_full((len(W),), torch.inf)
    norm = W.norm(dim=(1, 2)).clamp_min(torch.finfo(W.dtype).tiny)
    if problem.values.shape[-2] == 0:
        return lower, lower
    r = (1 - problem.gaps(problem.outputs(W_dual))).clamp_min(0)
    per_key = r.sum(2)
    pulled = problem.weigh(r) - per_key[:, :, None] * problem.right
    total = per_key.sum(1)
    upper = (pulled.mT @ problem.keys).norm(dim=(1, 2)) / total.clamp_min(torch.finfo(W.dtype).tiny)
    upper = torch.where((total > 0) | lower.isinf(), upper, torch.inf)
    return lower / norm / unit, torch.where(lower.isinf(), torch.inf, upper / unit)


def contradiction(problem: StorageProblem, b: int) -> str:
    """Name two pairs that no matrix can store together: equal keys with different answers, or equal rival values."""
    n = int(problem.n[b])
    keys, targets = problem.keys[b, :n], problem.targets[b, :n].tolist()
    first: dict[bytes, int] = {}
    for z, row in enumerate(keys.detach().cpu().double().numpy() + 0.0):  # + 0.0: a −0 is a 0
        twin = first.setdefault(row.tobytes(), z)
        if targets[twin] != targets[z] and not problem.own_values and problem.rivals is None:
            return f"keys {twin} and {z} are equal, but should recall the values {targets[twin]} and {targets[z]}"
    if problem.own_values:
        return ""
    wanted = set(targets)
    owner: dict[bytes, int] = {}
    for y, row in enumerate(problem.values[b].detach().cpu().double().numpy() + 0.0):
        twin = owner.setdefault(row.tobytes(), y)
        if twin != y and wanted & {twin, y} and problem.rivals is None:
            return f"values {twin} and {y} are equal, so that no key can tell them apart"
    return ""


def _together(problem: StorageProblem) -> int:
    """How many instances to work on at once: on a CPU as many as fit its cache, beyond which one by one is faster."""
    n, m = problem.shape
    entries = 2**18 if problem.keys.device.type == "cpu" else 2**28
    return max(1, entries // max(n * m, 1))


def _refuse_nan(problem: StorageProblem) -> None:
    for name, rows in (("keys", problem.keys), ("values", problem.values)):
        bad = ~rows.isfinite().all(-1)
        if bad.any():
            raise ValueError(f"{name} of an association must be finite, but row {int(bad.nonzero()[0, -1])} is not")


def _scales(problem: StorageProblem) -> tuple[float, float]:
    """Root mean square of a coordinate of the keys and of the values, padding left out; 1 if there are none."""
    counted = (torch.arange(problem.keys.shape[1], device=problem.keys.device) < problem.n[:, None]).double()
    keys = float((problem.keys.double().square().mean(2) * counted).sum() / counted.sum().clamp_min(1))
    used = problem.values.double().square().mean(-1)
    values = float(used.sum() / (used > 0).sum().clamp_min(1))
    return math.sqrt(keys) or 1.0, math.sqrt(values) or 1.0


def _whitening(problem: StorageProblem) -> tuple[Float[Tensor, "b d_in d_in"], Float[Tensor, "b d_out d_out"]]:
    """(XᵀX/n)^(−1/2) of keys and values; directions without data are left alone."""

    def inverse_root(rows: Tensor) -> Tensor:
        rows = rows.double()
        used = (rows != 0).any(-1).sum(1).clamp_min(1)
        eigenvalues, vectors = torch.linalg.eigh(rows.mT @ rows / used[:, None, None])
        largest = eigenvalues.amax(1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
        root: Tensor = (vectors * eigenvalues.clamp(min=1e-6 * largest).rsqrt()[:, None]) @ vectors.mT
        return root

    return inverse_root(problem.keys), inverse_root(problem.values.flatten(1, -2))


def _transformed(problem: StorageProblem, to_keys: Tensor | None, to_values: Tensor | None) -> StorageProblem:
    if to_keys is None or to_values is None:
        return problem
    keys = (problem.keys.double() @ to_keys).to(problem.keys.dtype)
    flat = problem.values.double().flatten(1, -2) @ to_values
    values = flat.reshape(problem.values.shape).to(problem.values.dtype)
    return StorageProblem(keys, values, problem.targets, problem.n, problem.rivals)


def _map_back(W: Tensor, to_keys: Tensor | None, to_values: Tensor | None) -> Tensor:
    """From whitened coordinates to those of the vectors as given: M_values W M_keys."""
    return W if to_keys is None or to_values is None else to_values @ W @ to_keys
