"""The largest margin near capacity, which first-order steps leave open: an interior-point method on all inequalities.

With rows a_zy = (u_{f(z)} − u_y) e_zᵀ, the matrix of largest margin is the point of their convex hull nearest to 0:

    minimise ½ |W|² − t  with  a_zy·W − t = s_zy ≥ 0,   dual: W = Σ x_zy a_zy, Σ x = 1, x ≥ 0,   x_zy s_zy = 0

At the end t = |W|² = κ*². Steps are Mehrotra's (1992). A step solves (1 + Σ (x/s)_zy a_zy a_zyᵀ) dW = …, d_in d_out
unknowns. Rows are products, so the matrix is Σ_z M_z ⊗ e_z e_zᵀ with M_z = Σ_y (x/s)_zy (u_f − u_y)(u_f − u_y)ᵀ: one
product of matrices over z, however many inequalities there are.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from toytf.memory.problem import StorageProblem
from toytf.stopping import check_stop

MOST_UNKNOWNS = 4608
"""Entries of W up to which it is polished: the time of a step grows with their cube, memory with their square."""

MOST_INEQUALITIES = 2**22
"""Inequalities up to which a matrix is polished; they take as much memory."""

FAINT = 1e-4
"""An upper bound below this ends a search for the largest margin: nothing is stored, INFEASIBLE."""

STEPS = 50
"""At most; a dozen or so are needed."""

UNIFORM = 0.1
"""Of the first x this much is the same for all inequalities: zeros would be too near to the boundary."""

SHORT = 0.95
"""The part of the way to the boundary that a step goes."""


@dataclass(frozen=True, eq=False)
class Polished:
    """W: the matrix of the largest margin met; weights: the x with the least upper bound |Σ x a| / Σ x."""

    W: Float[Tensor, "d_out d_in"]
    weights: Float[Tensor, "n m"]
    steps: int


def can_polish(problem: StorageProblem) -> bool:
    """Is a problem small enough?"""
    (n, m), d_in, d_out = problem.shape, problem.keys.shape[2], problem.values.shape[-1]
    held = n * max(m, d_in**2 // 2, d_out**2 // 2)  # inequalities, and the products of coordinates of every row
    return d_in * d_out <= MOST_UNKNOWNS and held <= MOST_INEQUALITIES


@torch.no_grad()
def polish(
    problem: StorageProblem,
    W: Float[Tensor, "d_out d_in"],
    weights: Float[Tensor, "n m"],
    *,
    gap: float,
    faint: float = FAINT,
) -> Polished:
    """Close the bracket of the largest margin of one instance, from a matrix and weights that are near the best.

    In float64. Ends when the margin of W is within the fraction `gap` of the bound by the weights, or the bound is
    below `faint`. Margins are those of the problem's own coordinates.
    """
    rows = _Rows(problem)
    x = weights / weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)
    x = rows.real * ((1 - UNIFORM) * x + UNIFORM / rows.real.sum())
    x = x / x.sum()
    W = W * (rows.combined(x).norm() / W.norm())
    gaps = rows.gaps(W)
    t = gaps[rows.mask].min() - 0.1 * gaps[rows.mask].abs().mean()
    s = (gaps - t).where(rows.mask, 1.0)
    best, margin, bound = Polished(W, x, 0), -math.inf, math.inf
    for step in range(STEPS):
        check_stop()
        hull = rows.combined(x)
        here, above = float(rows.gaps(W)[rows.mask].min() / W.norm()), float(hull.norm() / x.sum())
        if not math.isfinite(here + above):  # rounding has won
            break
        best = Polished(W if here > margin else best.W, x if above < bound else best.weights, step)
        margin, bound = max(margin, here), min(bound, above)
        if margin >= (1 - gap) * bound or bound < faint:
            break
        w = rows.real * x / s
        newton = _Newton(rows, w, hull - W, 1 - x.sum())
        if newton.failed:
            break
        mu = (x * s).sum() / rows.real.sum()
        dW, dt, ds, dx = newton.towards(-x)
        length = _length(s, ds, x, dx).clamp_max(1)
        ahead = ((x + length * dx) * (s + length * ds)).sum() / rows.real.sum()
        dW, dt, ds, dx = newton.towards(rows.real * ((ahead / mu) ** 3 * mu - dx * ds) / s - x)
        length = (SHORT * _length(s, ds, x, dx)).clamp_max(1)
        W, t, s, x = W + length * dW, t + length * dt, s + length * ds, x + length * dx
    return best


def _length(s: Tensor, ds: Tensor, x: Tensor, dx: Tensor) -> Tensor:
    """How far both stay positive; where there is no inequality, ds = dx = 0 and x = 0."""
    fastest = torch.maximum((-ds / s).amax(), (-dx / torch.where(x > 0, x, 1.0)).amax())
    return 1 / fastest.clamp_min(torch.finfo(s.dtype).tiny)


class _Newton:
    """The equations of a step: W = Σ x a, Σ x = 1, s = a·W − t, and dx = c − w ds for a c that is chosen."""

    def __init__(self, rows: "_Rows", w: Tensor, off: Tensor, missing: Tensor) -> None:
        self.rows, self.w, self.off, self.missing = rows, w, off, missing
        self.factor, info = torch.linalg.cholesky_ex(rows.normal_matrix(w))
        self.failed = bool(info)
        self.pull = rows.combined(w)
        self.lift = self._solve(self.pull)
        self.slope = w.sum() - (self.pull * self.lift).sum()

    def _solve(self, right: Tensor) -> Tensor:
        return torch.cholesky_solve(right.reshape(-1, 1), self.factor).view_as(right)

    def towards(self, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """dW, dt, ds and dx."""
        first = self._solve(self.rows.combined(c) + self.off)
        dt = (self.missing - c.sum() + (self.pull * first).sum()) / self.slope
        dW = first + dt * self.lift
        ds = (self.rows.gaps(dW) - dt) * self.rows.real
        return dW, dt, ds, c - self.w * ds


class _Rows:
    """The rows a_zy of one instance, never written out."""

    def __init__(self, problem: StorageProblem) -> None:
        self.problem, self.keys, self.right, self.values = problem, problem.keys[0], problem.right[0], problem.values[0]
        self.mask = problem.all_rivals[0].scatter(1, problem.targets[0][:, None], False)
        self.real = self.mask.to(self.keys)
        self.d_in, self.d_out = self.keys.shape[1], self.right.shape[1]
        self.above_in, self.above_out = (
            torch.triu_indices(d, d, device=self.keys.device) for d in (self.d_in, self.d_out)
        )
        self.squares = self._squares(self.keys, self.above_in)

    def gaps(self, W: Tensor) -> Float[Tensor, "n m"]:
        """a_zy·W; 0 where there is no inequality."""
        return self.problem.gaps(self.problem.outputs(W[None]))[0].where(self.mask, 0.0)

    def combined(self, x: Float[Tensor, "n m"]) -> Float[Tensor, "d_out d_in"]:
        """Σ x_zy a_zy."""
        sums: Tensor = x.sum(1, keepdim=True) * self.right - self.problem.weigh(x[None])[0]
        return sums.T @ self.keys

    def normal_matrix(self, w: Float[Tensor, "n m"]) -> Float[Tensor, "k k"]:
        """1 + Σ w_zy a_zy a_zyᵀ, k = d_out d_in, from the upper halves of M_z and e_z e_zᵀ, which are symmetric."""
        i, j = self.above_out
        u, v = self.right, self.problem.weigh(w[None])[0]
        if self.problem.own_values:
            M = (self.values.mT @ (w[:, :, None] * self.values))[:, i, j]
        else:
            M = w @ self._squares(self.values, self.above_out)
        M += (w.sum(1, keepdim=True) * u[:, i] - v[:, i]) * u[:, j] - u[:, i] * v[:, j]
        halves = (M.T @ self.squares)[:, _whole(self.above_in, self.d_in)]
        whole = _whole(self.above_out, self.d_out).view(self.d_out, self.d_out)
        matrix = halves.new_empty(self.d_out, self.d_in, self.d_out, self.d_in)
        for row, above in zip(matrix, whole, strict=True):
            row.copy_(halves[above].view(self.d_out, self.d_in, self.d_in).transpose(0, 1))
        matrix = matrix.view(self.d_out * self.d_in, -1)
        matrix.diagonal().add_(1)
        return matrix

    @staticmethod
    def _squares(rows: Tensor, above: Tensor) -> Tensor:
        """The upper half of the products of a row's coordinates with each other."""
        return rows[:, above[0]] * rows[:, above[1]]


def _whole(above: Int[Tensor, "2 half"], d: int) -> Int[Tensor, "square"]:
    """Where in its upper half each entry of a symmetric matrix is."""
    index = torch.empty(d, d, dtype=torch.long, device=above.device)
    index[above[0], above[1]] = index[above[1], above[0]] = torch.arange(above.shape[1], device=above.device)
    return index.flatten()
