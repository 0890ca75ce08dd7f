"""Can any matrix store this? An answer with a certificate.

W stores an association with margin 1 iff f(W) = ½ Σ_{z, y ≠ f(z)} r_zy² reaches 0, where

    r_zy = (1 − u_{f(z)}ᵀ W e_z + u_yᵀ W e_z)₊

- FEASIBLE: a W with every gap u_{f(z)}ᵀ W e_z − u_yᵀ W e_z > 0, checked again in float64 on the vectors as given.
- INFEASIBLE: the r, in float64 and the coordinates solved in, are dual weights. For every W of unit norm the smallest
  gap is at most (Gordan)
  κ_ub = |Σ r_zy (u_{f(z)} − u_y) e_zᵀ| / Σ r_zy = |∇f| / Σ r. If κ_ub is below `tolerance`, so is the margin of any W.
- UNKNOWN: neither after `iterations` steps; the margin lies in [κ_lb, κ_ub].

Margins are in units of the score's standard deviation: |W|_F = 1, keys and values of mean square 1 per coordinate.
"""

import itertools
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.descent import DescentResult, descend
from toytf.memory.problem import StorageProblem
from toytf.theory import maximal_margin

Real = int | float

FAINT = 1e-4
"""A margin that `maximise_margin` does not look for any more (whitened coordinates)."""

PATIENCE = 10
"""How many times its steps `maximise_margin` looks for a W that stores, if it met none."""


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
    tolerance: Real = 0.01,
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
    exact = problem.double()
    frame = _Frame.whitening(exact) if whiten else _Frame.scaling(exact)
    entered = frame.enter(problem)
    found = descend(entered, iterations=iterations, tolerance=float(tolerance))
    bound = certificates(entered.double(), *(W.to(frame.M_in) for W in (found.W, found.W_dual)))[1]
    decisions = _decisions(problem, frame, found, bound < tolerance)
    # A descent that ended early took itself for decided. If float64 does not confirm that, it is done again in float64.
    denied = [b for b, x in enumerate(decisions) if x.status is Status.UNKNOWN and x.iterations < iterations]
    if denied and problem.keys.dtype != torch.float64:
        rest = exact.select(torch.tensor(denied, device=exact.keys.device))
        again = decide(rest, tolerance=tolerance, iterations=iterations, whiten=whiten)
        for b, x in zip(denied, again, strict=True):
            decisions[b] = replace(x, W=x.W.to(problem.keys), iterations=decisions[b].iterations + x.iterations)
    return decisions


def maximise_margin(
    problem: StorageProblem, *, gap: Real = 0.02, iterations: int = 1500, insist: bool = True
) -> list[Decision]:
    """The matrix of largest margin κ* = max_W min gap / |W|, bracketed from both sides until they are within `gap`.

    Minimises ½|W|² + C f(W) with C = 300 / (κ² d_in d_out), κ the margin that the theory expects. Where κ* is far below
    that, the minimiser gives some pairs up; there the descent of `decide` looks for a W that stores them all, unless
    not to `insist` on that.
    """
    _refuse_nan(problem)
    d_in, d_out = problem.keys.shape[2], problem.values.shape[-1]
    expected = [
        maximal_margin(max(n, 1), d_in, d_out, n_values=max(m, 2))
        for n, m in zip(problem.n.tolist(), problem.n_values.tolist(), strict=True)
    ]
    decay = problem.keys.new_tensor([max(kappa, 0.1) ** 2 * d_in * d_out / 300 for kappa in expected])
    frame = _Frame.scaling(problem.double())
    found = descend(frame.enter(problem), iterations=iterations, decay=decay, gap=float(gap))
    decisions = _decisions(problem, frame, found, torch.zeros_like(found.bound, dtype=torch.bool))
    return _stored_if_any(problem, decisions, iterations) if insist else decisions


def _stored_if_any(problem: StorageProblem, decisions: list[Decision], iterations: int) -> list[Decision]:
    """The same, with a W that stores every pair in place of one that does not, where such a W is found.

    As `decide` does it, on f alone and whitened, but in float64, for many more steps, and on from the first W that
    stores to one of half the margin that may be possible: what was missed is small, and the first W hardly stores.
    """
    missed = [b for b, decision in enumerate(decisions) if decision.margin_lower <= 0 and not decision.reason]
    if not missed:
        return decisions
    exact = problem.select(torch.tensor(missed, device=problem.keys.device)).double()
    frame, none = _Frame.whitening(exact), exact.keys.new_zeros(len(missed))
    found = descend(frame.enter(exact), iterations=PATIENCE * iterations, tolerance=FAINT, decay=none, gap=0.5)
    best = dict(enumerate(decisions))
    for b, stored in zip(missed, _decisions(exact, frame, found, none > 0), strict=True):
        if stored.status is Status.FEASIBLE:
            best[b] = replace(
                stored,
                W=stored.W.to(problem.keys),
                margin_upper=min(stored.margin_upper, best[b].margin_upper),
                iterations=best[b].iterations + stored.iterations,
            )
    return list(best.values())


def _decisions(
    problem: StorageProblem, frame: "_Frame", found: DescentResult, impossible: Bool[Tensor, "b"]
) -> list[Decision]:
    """What was found, checked in float64 on the vectors as given."""
    W = frame.leave(found.W)
    bounds = certificates(problem.double(), W, frame.leave(found.W_dual))
    decisions = []
    for b, (lower, upper) in enumerate(zip(*(bound.tolist() for bound in bounds), strict=True)):
        reason = "" if lower > 0 else contradiction(problem, b)
        refuted = bool(reason) or bool(impossible[b])
        status = Status.FEASIBLE if lower > 0 else Status.INFEASIBLE if refuted else Status.UNKNOWN
        matrix, iterations = W[b].to(problem.keys), int(found.iterations[b])
        decisions.append(Decision(status, matrix, lower, upper, iterations, reason))
    return decisions


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
    alone = ~problem.has_rivals
    if bool(alone.all()):
        return W.new_full((len(W),), torch.inf), W.new_full((len(W),), torch.inf)
    tiny = torch.finfo(W.dtype).tiny
    key_scale, value_scale = _scales(problem)
    unit = (key_scale * value_scale).to(W.dtype)
    lower = problem.margins(problem.outputs(W)).amin(1) / W.norm(dim=(1, 2)).clamp_min(tiny)
    r = (1 - problem.gaps(problem.outputs(W_dual))).clamp_min(0)
    per_key = r.sum(2)
    pulled = problem.weigh(r) - per_key[:, :, None] * problem.right
    total = per_key.sum(1)
    upper = (pulled.mT @ problem.keys).norm(dim=(1, 2)) / total.clamp_min(tiny)
    upper = upper.masked_fill(total == 0, torch.inf)  # no rival is near: its r say nothing
    return (lower / unit).masked_fill(alone, torch.inf), (upper / unit).masked_fill(alone, torch.inf)


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


def _scales(problem: StorageProblem) -> tuple[Float[Tensor, "b"], Float[Tensor, "b"]]:
    """Root mean square of a coordinate of the keys, and of the values, of every instance; 1 if there are none."""

    def scale(rows: Tensor) -> Tensor:
        used = (rows != 0).any(-1).sum(1).clamp_min(1)
        root: Tensor = (rows.square().sum((1, 2)) / used / rows.shape[2]).sqrt()
        return torch.where(root > 0, root, 1.0)

    return scale(problem.keys), scale(problem.values.flatten(1, -2))


@dataclass(frozen=True, eq=False)
class _Frame:
    """Coordinates to solve a problem in: keys e M_in and values u M_out, so that M_out W M_in has the same scores.

    In all of them a coordinate of the keys, and of the values, has the mean square 1, as margins are reported.
    In float64: built from a problem in float64, entered by one of any precision.
    """

    M_in: Float[Tensor, "b d_in d_in"]
    M_out: Float[Tensor, "b d_out d_out"]

    @staticmethod
    def scaling(problem: StorageProblem) -> "_Frame":
        """Coordinates of mean square 1."""
        (keys, values), eye = _scales(problem), partial(torch.eye, dtype=torch.float64, device=problem.keys.device)
        d_in, d_out = problem.keys.shape[2], problem.values.shape[-1]
        return _Frame(eye(d_in) / keys[:, None, None], eye(d_out) / values[:, None, None])

    @staticmethod
    def whitening(problem: StorageProblem) -> "_Frame":
        """√(d/r) (XᵀX/n)^(−1/2) of keys and of values; directions without data are left out, r have some.

        The factor makes the mean square of a coordinate 1 also where a few vectors span only r < d directions: that is
        the unit of margins, so that the descent ends at the tolerance that `certificates` asks for.
        """

        def inverse_root(rows: Tensor) -> Tensor:
            used = (rows != 0).any(-1).sum(1).clamp_min(1)
            eigenvalues, vectors = torch.linalg.eigh(rows.mT @ rows / used[:, None, None])
            largest = eigenvalues.amax(1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
            spanned = eigenvalues > 1e-12 * largest
            inverse = torch.where(spanned, eigenvalues.clamp_min(0).rsqrt(), 0.0)
            stretch = (rows.shape[2] / spanned.sum(1, keepdim=True).clamp_min(1)).sqrt()
            root: Tensor = (vectors * (stretch * inverse)[:, None]) @ vectors.mT
            return root

        return _Frame(inverse_root(problem.keys), inverse_root(problem.values.flatten(1, -2)))

    def enter(self, problem: StorageProblem) -> StorageProblem:
        """The problem in these coordinates."""
        exact = problem.double()
        keys = (exact.keys @ self.M_in).to(problem.keys)
        values = (exact.values.flatten(1, -2) @ self.M_out).reshape(problem.values.shape).to(problem.values)
        return StorageProblem(keys, values, problem.targets, problem.n, problem.rivals)

    def leave(self, W: Float[Tensor, "b d_out d_in"]) -> Float[Tensor, "b d_out d_in"]:
        """A matrix found in these coordinates, for the vectors as given, in float64."""
        back: Tensor = self.M_out @ W.to(self.M_in) @ self.M_in
        return back
