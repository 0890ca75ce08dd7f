"""Can any matrix store this? An answer with a certificate.

W stores an association with margin 1 iff f(W) = ⅓ Σ_{z, y ≠ f(z)} r_zy³ reaches 0, where

    r_zy = (1 − u_{f(z)}ᵀ W e_z + u_yᵀ W e_z)₊

- FEASIBLE: a W with every gap u_{f(z)}ᵀ W e_z − u_yᵀ W e_z > 0, checked again in float64 on the vectors as given.
- INFEASIBLE: the r², in float64 and the coordinates solved in, are dual weights. For every W of unit norm the smallest
  gap is at most (Gordan)
  κ_ub = |Σ r_zy² (u_{f(z)} − u_y) e_zᵀ| / Σ r_zy² = |∇f| / Σ r². If κ_ub is below `tolerance`, so is every margin.
- UNKNOWN: neither after `iterations` steps; the margin lies in [κ_lb, κ_ub].

Margins are in units of the score's standard deviation: |W|_F = 1, keys and values of mean square 1 per coordinate.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.certificates import contradiction, lower_bound, scales, upper_bound, violations
from toytf.memory.descent import DescentResult, descend
from toytf.memory.polish import FAINT, Polished, can_polish, polish
from toytf.memory.problem import StorageProblem
from toytf.theory import maximal_margin

Real = int | float

LEAST_STEPS = 100
"""Steps of descent before a polish, at least; more for a large matrix, whose polish takes longer."""

JUST_STORED = 0.999
"""How far from its bound a margin may be where only its sign is asked for."""


class Status(StrEnum):
    """What is known about storage."""

    FEASIBLE = "feasible"
    """A matrix stores all pairs."""
    INFEASIBLE = "infeasible"
    """There is a certificate that none does with a margin above the tolerance, 0.01 unless another is given."""
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
    problem: StorageProblem, *, tolerance: Real = 0.01, iterations: int = 400, whiten: bool = True
) -> list[Decision]:
    """Decide storage for every instance at once: conjugate directions on f in whitened coordinates.

    Whitening changes the margin but not whether there is one, and makes anisotropic vectors as easy as isotropic ones.
    """
    _refuse_nan(problem)
    if len(problem.keys) > (together := _together(problem)):
        groups = torch.split(torch.arange(len(problem.keys), device=problem.keys.device), together)
        alone = partial(decide, tolerance=tolerance, iterations=iterations, whiten=whiten)
        return [decision for group in groups for decision in alone(problem.select(group))]
    frame = (_Frame.whitening if whiten else _Frame.scaling)(problem.double())
    entered = frame.enter(problem)
    found = descend(entered, iterations=iterations, tolerance=float(tolerance))
    impossible = torch.zeros_like(found.bound, dtype=torch.bool)
    if bool((found.margin <= 0).any()):
        exact = entered.double()
        impossible = upper_bound(exact, violations(exact, found.W_dual.to(frame.M_in)).square()) < tolerance
    decisions = _decisions(problem, frame, found, impossible)
    # A descent that ended early took itself for decided. If float64 does not confirm that, it is done again in float64.
    denied = [b for b, x in enumerate(decisions) if x.status is Status.UNKNOWN and x.iterations < iterations]
    if denied and problem.keys.dtype != torch.float64:
        rest = problem.double().select(torch.tensor(denied, device=frame.M_in.device))
        again = decide(rest, tolerance=tolerance, iterations=iterations, whiten=whiten)
        for b, x in zip(denied, again, strict=True):
            decisions[b] = replace(x, W=x.W.to(problem.keys), iterations=decisions[b].iterations + x.iterations)
    return decisions


def maximise_margin(
    problem: StorageProblem, *, gap: Real = 0.02, iterations: int = 1500, polished: bool = True
) -> list[Decision]:
    """The matrix of largest margin κ* = max_W min gap / |W|, bracketed from both sides until they are within `gap`.

    Minimises ½ λ |W|² + f(W) with λ = κ² d_in d_out / 300, κ the margin that the theory expects, then with half of that
    λ, and so on. Near capacity that takes too long: what d_in d_out / 2 steps leave open is closed by `polish`, if the
    problem is small enough for it (`can_polish`).
    """
    _refuse_nan(problem)
    d_in, d_out = problem.keys.shape[2], problem.values.shape[-1]
    expected = [
        maximal_margin(max(n, 1), d_in, d_out, n_values=max(m, 2))
        for n, m in zip(problem.n.tolist(), problem.n_values.tolist(), strict=True)
    ]
    decay = problem.keys.new_tensor([max(kappa, 0.1) ** 2 * d_in * d_out / 300 for kappa in expected])
    exact = problem.double()
    frame = _Frame.scaling(exact)
    polished = polished and can_polish(problem)
    steps = min(iterations, max(LEAST_STEPS, d_in * d_out // 2)) if polished else iterations
    # Float64 shall confirm what float32 found: a little more than asked for.
    found = descend(frame.enter(problem), iterations=steps, decay=decay, gap=0.9 * float(gap))
    decisions = _decisions(problem, frame, found, torch.zeros_like(found.bound, dtype=torch.bool))
    for b, known in enumerate(decisions if polished else ()):
        if known.reason or known.margin_lower >= (1 - gap) * known.margin_upper:  # a contradiction cannot be closed
            continue
        alone = exact.alone(b)
        frame = _Frame.scaling(alone)
        entered, W, W_dual = frame.enter(alone), found.W[b].to(frame.M_in), found.W_dual[b].to(frame.M_in)
        best = polish(entered, W, violations(entered, W_dual[None])[0].square(), gap=float(gap))
        closed = _improved(known, best, alone, frame)
        refuted = closed.status is not Status.FEASIBLE and closed.margin_upper < FAINT
        decisions[b] = replace(closed, status=Status.INFEASIBLE) if refuted else closed
    return decisions


def settle(problem: StorageProblem, known: Decision, *, tolerance: Real = 0.01) -> Decision:
    """Decide one instance that `decide` left UNKNOWN, by `polish` in whitened coordinates; FEASIBLE at any margin."""
    exact = problem.double()
    frame = _Frame.whitening(exact)
    entered = frame.enter(exact)
    start = entered.right.mT @ entered.keys
    weights = violations(entered, start / start.norm()).square()[0]
    best = polish(entered, start[0], weights, gap=JUST_STORED, faint=float(tolerance))
    known = _improved(known, best, exact, frame)
    refuted = known.status is not Status.FEASIBLE and float(upper_bound(entered, best.weights[None])) < tolerance
    return replace(known, status=Status.INFEASIBLE) if refuted else known


def _improved(known: Decision, best: Polished, exact: StorageProblem, frame: "_Frame") -> Decision:
    """What is known of one instance after a polish, whose bounds are checked on the vectors as given."""
    W = frame.leave(best.W[None]).to(known.W.dtype)
    lower, upper = float(lower_bound(exact, W.double())), float(upper_bound(exact, best.weights[None]))
    if lower > known.margin_lower:
        known = replace(known, W=W[0].to(known.W), margin_lower=lower)
    known = replace(known, margin_upper=min(upper, known.margin_upper), iterations=known.iterations + best.steps)
    return replace(known, status=Status.FEASIBLE) if known.margin_lower > 0 else known


def _decisions(
    problem: StorageProblem, frame: "_Frame", found: DescentResult, impossible: Bool[Tensor, "b"]
) -> list[Decision]:
    """What was found, checked in float64 on the vectors as given."""
    W = frame.leave(found.W).to(problem.keys.dtype)  # what is returned is what is checked
    exact = problem.double()
    lowers = lower_bound(exact, W.to(frame.M_in)).tolist()
    uppers = upper_bound(exact, violations(exact, frame.leave(found.W_dual)).square()).tolist()
    decisions = []
    for b, (lower, upper) in enumerate(zip(lowers, uppers, strict=True)):
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
        (keys, values), eye = scales(problem), partial(torch.eye, dtype=torch.float64, device=problem.keys.device)
        d_in, d_out = problem.keys.shape[2], problem.values.shape[-1]
        return _Frame(eye(d_in) / keys[:, None, None], eye(d_out) / values[:, None, None])

    @staticmethod
    def whitening(problem: StorageProblem) -> "_Frame":
        """√(d/r) (XᵀX/n)^(−1/2) of keys and of values; directions without data are left out, r have some.

        The factor makes the mean square of a coordinate 1 also where a few vectors span only r < d directions: that is
        the unit of margins, so that the descent ends at the tolerance that its certificates ask for.
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
