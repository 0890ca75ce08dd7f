"""Storage by a matrix of limited rank, W = A Bᵀ: what W_OV of a narrow head, or two linear layers, can hold.

    minimise f(A Bᵀ) = ½ Σ_{z, y ≠ f(z)} (1 − u_{f(z)}ᵀ A Bᵀ e_z + u_yᵀ A Bᵀ e_z)₊²

The set of such matrices is not convex, so a failure proves nothing: what is found bounds the capacity from below.
"""

import contextlib

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.constructions import hebbian
from toytf.memory.problem import StorageProblem
from toytf.memory.solver import Decision, Status, certificates, contradiction, decide
from toytf.randomness import generator
from toytf.theory import rank_fits

STARTS = (0.0, 0.1)
"""Relative noise on the starting factors: the Hebbian ones, and once more nearby."""


def decide_rank(association: Association, rank: int, *, iterations: int = 600) -> Decision:
    """Look for a matrix of the given rank that stores an association, by L-BFGS on its factors.

    Starts from the best approximation of the Hebbian matrix by one of that rank. FEASIBLE carries the matrix; otherwise
    UNKNOWN, or INFEASIBLE if not even a full matrix can store it.
    """
    problem = StorageProblem.of(association)
    d_out, d_in = association.values.shape[1], association.keys.shape[1]
    rank_fits(rank, d_in, d_out)
    exact = problem.double()
    U, s, Vh = torch.linalg.svd(hebbian(association).double(), full_matrices=False)
    root = s[:rank].sqrt()
    A, B = U[:, :rank] * root, Vh[:rank].T * root
    scores = ((exact.keys[0] @ B @ A.T) * exact.right[0]).sum(1)
    scale = float(scores.mean().abs()) if len(scores) else 0.0
    start = torch.cat([A, B]) / max(scale, torch.finfo(A.dtype).tiny) ** 0.5
    steps = 0
    W = start[:d_out] @ start[d_out:].T
    for noise in STARTS:
        shake = torch.randn(start.shape, generator=generator(rank, "rank start"), dtype=start.dtype)
        factors, taken = _minimise(exact, start + noise * start.std() * shake.to(start.device), d_out, iterations)
        W, steps = factors[:d_out] @ factors[d_out:].T, steps + taken
        lower, upper = (float(bound) for bound in certificates(exact, W[None], W[None]))
        if lower > 0:
            return Decision(Status.FEASIBLE, W.to(association.keys.dtype), lower, upper, steps)
    full = decide(problem)[0]
    status = Status.INFEASIBLE if full.status is Status.INFEASIBLE else Status.UNKNOWN
    return Decision(status, W.to(association.keys.dtype), lower, full.margin_upper, steps, contradiction(problem, 0))


class _Stored(Exception):
    """Every gap is positive: no need to go on."""


def _minimise(
    problem: StorageProblem, start: Float[Tensor, "d rank"], d_out: int, iterations: int
) -> tuple[Float[Tensor, "d rank"], int]:
    from scipy.optimize import minimize

    best = start
    evaluations = 0

    def loss_and_gradient(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        nonlocal best, evaluations
        evaluations += 1
        factors = torch.from_numpy(flat.reshape(start.shape)).to(start.device)
        A, B = factors[:d_out], factors[d_out:]
        outputs = problem.keys @ B @ A.T
        gaps = problem.gaps(outputs)
        best = factors.clone()
        if bool(gaps.min() > 0):
            raise _Stored
        r = (1 - gaps).clamp_min(0)
        per_key = r.sum(2, keepdim=True)
        G = ((problem.weigh(r) - per_key * problem.right).mT @ problem.keys)[0]
        return float(r.square().sum()) / 2, torch.cat([G @ B, G.T @ A]).cpu().numpy().ravel()

    with contextlib.suppress(_Stored):
        minimize(
            loss_and_gradient, start.cpu().numpy().ravel(), jac=True, method="L-BFGS-B",
            options={"maxcor": 30, "maxiter": iterations, "maxfun": 2 * iterations, "ftol": 0.0, "gtol": 1e-9},
        )  # fmt: skip
    return best, evaluations
