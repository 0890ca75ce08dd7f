"""Pairs to be stored, and exact answers about small problems that the solver is compared with."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog, nnls

from toytf.memory import Association, AssociationStream, Decision, Status, StorageProblem, decide
from toytf.memory.stream import RowDistribution

Matrix = NDArray[np.float64]

FEASIBLE, INFEASIBLE, UNKNOWN = Status.FEASIBLE, Status.INFEASIBLE, Status.UNKNOWN
DISTRIBUTIONS: tuple[RowDistribution, ...] = ("sphere", "gaussian")


def pairs(n: int, d: int, seed: int = 0, distribution: RowDistribution = "sphere") -> Association:
    return AssociationStream(seed, d, d, distribution=distribution).prefix(n)


def decide_one(association: Association, **options: float) -> Decision:
    return decide(StorageProblem.of(association), **options)[0]


def double(association: Association) -> Association:
    return Association(
        association.keys.double(), association.values.double(), association.targets, candidates=association.candidates
    )


def mapped(association: Association, A: torch.Tensor | float = 1.0, B: torch.Tensor | float = 1.0) -> Association:
    """The same association with keys e A and values u B; a number scales."""
    keys = association.keys @ A if isinstance(A, torch.Tensor) else association.keys * A
    values = association.values @ B if isinstance(B, torch.Tensor) else association.values * B
    return Association(keys, values, association.targets)


def with_equal_keys(first: int, second: int, same_target: bool = False) -> Association:
    association = pairs(10, 16)
    keys, targets = association.keys.clone(), association.targets.clone()
    keys[second] = keys[first]
    if same_target:
        targets[second] = targets[first]
    return Association(keys, association.values, targets)


# Oracles that share no code with the solver


def inequalities(association: Association) -> Matrix:
    """One row (u_{f(z)} − u_y) e_zᵀ, flattened, for every key z and every rival y: a gap is its product with W."""
    keys, values = association.keys.double().numpy(), association.values.double().numpy()
    rows = [
        np.outer(values[target] - values[y], keys[z]).ravel()
        for z, target in enumerate(association.targets.tolist())
        for y in range(len(values))
        if y != target and (association.candidates is None or bool(association.candidates[z, y]))
    ]
    return np.array(rows).reshape(len(rows), keys.shape[1] * values.shape[1])


def unit(association: Association) -> float:
    """The product of the root mean squares of the coordinates of keys and values: margins are in its multiples."""
    return math.prod(float(rows.double().square().mean().sqrt()) for rows in (association.keys, association.values))


def margin_of(association: Association, W: Matrix) -> float:
    """min gap / ‖W‖_F, in the units that the solver reports."""
    return float((inequalities(association) @ W.ravel()).min() / np.linalg.norm(W) / unit(association))


def largest_margin(association: Association) -> float:
    """κ* = max_{‖W‖ ≤ 1} min gap = the distance of 0 from the convex hull of the inequalities; 0 if nothing stores.

    With x ≥ 0 that minimises |Σ x_i a_i|² + c² (1 − Σ x_i)², x / Σ x is the nearest point of the hull, whatever c is.
    """
    rows = inequalities(association) / unit(association)
    c = np.linalg.norm(rows, axis=1).mean()
    x, _ = nnls(np.r_[rows.T, np.full((1, len(rows)), c)], np.r_[np.zeros(rows.shape[1]), c], maxiter=50 * len(rows))
    return float(np.linalg.norm(x @ rows) / x.sum())


def box_optimum(rows: Matrix) -> tuple[Matrix, float]:
    """The W with the largest smallest gap t among those with |W_ij| ≤ 1, and t: a linear program, solved exactly."""
    k, size = rows.shape
    solved = linprog(
        np.r_[np.zeros(size), -1.0],
        A_ub=np.c_[-rows, np.ones(k)],
        b_ub=np.zeros(k),
        bounds=[(-1, 1)] * size + [(None, None)],
        method="highs",
    )
    assert solved.status == 0
    return solved.x[:-1], float(solved.x[-1])


def exact_capacity(stream: AssociationStream, low: int, high: int) -> int:
    """The largest n whose first n pairs can be stored, given that low can and high cannot."""
    while high - low > 1:
        n = (low + high) // 2
        _, t = box_optimum(inequalities(stream.prefix(n)))
        low, high = (n, high) if t > 1e-9 else (low, n)
    return low
