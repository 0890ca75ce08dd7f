"""Storage by a matrix of limited rank, W = A Bᵀ: what W_OV of a narrow head, or two linear layers, can hold.

    minimise f(A Bᵀ) = ½ Σ_{z, y ≠ f(z)} (1 − u_{f(z)}ᵀ A Bᵀ e_z + u_yᵀ A Bᵀ e_z)₊²

The set of such matrices is not convex, so a failure proves nothing: what is found bounds the capacity from below.
"""

import contextlib
import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.certificates import lower_bound
from toytf.memory.problem import StorageProblem
from toytf.memory.solver import Decision, Status, decide
from toytf.randomness import generator
from toytf.stopping import check_stop
from toytf.theory import maximal_margin, rank_fits

STARTS = (0.0, 0.1)
"""Relative noise on the starting factors: the Hebbian ones, and once more nearby."""

ANNEALING = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1)
"""The decay on the way to the largest margin of a rank, in multiples of that of `maximise_margin`."""


def decide_rank(association: Association, rank: int, *, iterations: int = 600) -> Decision:
    """Look for a matrix of the given rank that stores an association, by L-BFGS on its factors.

    Starts from the best approximation of the Hebbian matrix by one of that rank. FEASIBLE carries the matrix, in
    float64 whatever the keys are: rounded further it would have full rank. Otherwise UNKNOWN, or INFEASIBLE if there
    is a certificate that not even a full matrix stores it with a margin above 0.01.
    """
    d_out, d_in = association.values.shape[1], association.keys.shape[1]
    rank_fits(rank, d_in, d_out)
    problem = StorageProblem.of(association)
    full = decide(problem)[0]  # also refuses what is no number
    if not bool(problem.has_rivals.any()) or full.status is Status.INFEASIBLE:
        return full
    exact = problem.double()
    keys, right = exact.keys[0], exact.right[0]
    U, s, Vh = torch.linalg.svd(right.T @ keys, full_matrices=False)
    A, B = U[:, :rank] * s[:rank].sqrt(), Vh[:rank].T * s[:rank].sqrt()
    scale = float(((keys @ B @ A.T) * right).sum(1).mean().abs())  # a mean right score of 1
    start: Tensor = torch.cat([A, B]) / max(scale, torch.finfo(A.dtype).tiny) ** 0.5
    steps, best = 0, Decision(Status.UNKNOWN, full.W, -math.inf, full.margin_upper, 0)
    for noise in STARTS:
        shake = torch.randn(start.shape, generator=generator(rank, "rank start"), dtype=start.dtype)
        factors, taken = _minimise(exact, start + noise * start.std() * shake.to(start.device), d_out, iterations)
        W, steps = factors[:d_out] @ factors[d_out:].T, steps + taken
        lower = float(lower_bound(exact, W[None]))
        status = Status.FEASIBLE if lower > 0 else Status.UNKNOWN
        if lower > best.margin_lower:
            best = Decision(status, W, lower, full.margin_upper, steps)
        if lower > 0:
            break
    return replace(best, iterations=steps)


def maximise_margin_rank(association: Association, rank: int, *, iterations: int = 600) -> Decision:
    """The matrix of the given rank with the largest margin κ = min gap / |W| that is found.

    minimise ½ λ |A Bᵀ|² + f(A Bᵀ),   λ = κ² d_in d_out / 300, and its multiples `ANNEALING` before and after

    As `maximise_margin` does it, κ the margin that the theory expects at this rank, from the matrix of `decide_rank`.
    A large λ gives hard pairs up and so leaves the valley where the first matrix was found; then they are taken back.
    The best matrix on the way is kept. The upper bound is that of full matrices.
    """
    best = decide_rank(association, rank, iterations=iterations)
    if best.status is not Status.FEASIBLE or not math.isfinite(best.margin_lower):
        return best
    exact, steps = StorageProblem.of(association).double(), best.iterations
    (n, d_in), (m, d_out) = association.keys.shape, association.values.shape
    kappa = max(maximal_margin(n, d_in, d_out, n_values=m, rank=rank), 0.1)
    scale = float(exact.keys.square().mean() * exact.values.square().mean())  # of squared scores, for |W|_F = 1
    U, s, Vh = torch.linalg.svd(best.W / (kappa * math.sqrt(scale) * best.W.norm()))
    factors = torch.cat([U[:, :rank], Vh[:rank].T]) * s[:rank].sqrt()
    for multiple in ANNEALING:
        decay = multiple * kappa**2 * d_in * d_out / 300 * scale
        factors, taken = _minimise(exact, factors, d_out, iterations // 2, decay)
        W, steps = factors[:d_out] @ factors[d_out:].T, steps + taken
        lower = float(lower_bound(exact, W[None]))
        if lower > best.margin_lower:
            best = Decision(Status.FEASIBLE, W, lower, best.margin_upper, steps)
    return replace(best, iterations=steps)


class _Stored(Exception):
    """Every gap is positive: no need to go on."""


def _minimise(
    problem: StorageProblem, start: Float[Tensor, "d rank"], d_out: int, iterations: int, decay: float = 0.0
) -> tuple[Float[Tensor, "d rank"], int]:
    """The factors at the end, and the number of evaluations; without decay the first at which all gaps are positive."""
    factors = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [factors], max_iter=iterations, max_eval=2 * iterations, history_size=30, line_search_fn="strong_wolfe",
        tolerance_grad=1e-9, tolerance_change=0.0,
    )  # fmt: skip
    evaluations = 0

    @torch.no_grad()
    def loss() -> Tensor:
        nonlocal evaluations
        check_stop()
        evaluations += 1
        A, B = factors[:d_out], factors[d_out:]
        gaps = problem.gaps(problem.keys @ B @ A.T)
        if not decay and bool(gaps.min() > 0):
            raise _Stored
        r = (1 - gaps).clamp_min(0)
        G = ((problem.weigh(r) - r.sum(2, keepdim=True) * problem.right).mT @ problem.keys)[0]
        W = A @ B.T
        G = G + decay * W
        factors.grad = torch.cat([G @ B, G.T @ A])
        return (r.square().sum() + decay * W.square().sum()) / 2

    with contextlib.suppress(_Stored):
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return factors.detach(), evaluations
