"""The kernel of the storage solver: restarted Nesterov descent with an active-set step, batched over instances.

    f(W) = ½ Σ_{z, y ≠ f(z)} r_zy²  (+ ½ λ |W|²),   r_zy = (1 − s_{z f(z)} + s_zy)₊,   s = scores of W

Scores are linear in W, so the scores of the next point follow from those of this one and of the gradient: one scoring
and one gradient per iteration, no line search. The step is half the exact minimiser along the gradient on the rivals
that are active now. No shape depends on data; finished instances are dropped now and then.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from toytf.memory.problem import StorageProblem
from toytf.stopping import check_stop

HUGE = 1e30
"""Stands for infinity: a rival with the score −HUGE never competes."""

RESCORE_EVERY = 50
"""Iterations after which scores are computed anew, against drift, and finished instances are dropped."""

RESCORE_MARGINS_EVERY = 10
"""The same with decay: there r is small, and a drift that changes no status opens the bracket by several per cent."""

ASK_EVERY = 10
"""Iterations after which a device other than the CPU is asked whether all is decided: each time is a wait."""

MIN_MARGIN = 1e-6
"""From this margin on a pair is stored: it is more than a rounding error of float32."""

SETTLED = 0.1
"""A descent with decay λ has reached its minimum if the gradient is below this times λ |W|."""

ALIGN = 16
"""Score matrices are padded to a multiple of this: products of matrices run up to half as long otherwise."""

CHUNK = 2**22
"""Entries of a score matrix that are worked on at once; larger ones (d > 128) go by rows."""


@dataclass(eq=False)
class DescentResult:
    """W: the point that stores (or has the largest margin); W_dual: the point whose r give the best upper bound."""

    W: Float[Tensor, "b d_out d_in"]
    W_dual: Float[Tensor, "b d_out d_in"]
    margin: Float[Tensor, "b"]
    bound: Float[Tensor, "b"]
    iterations: Int[Tensor, "b"]

    def consider(
        self,
        point: Float[Tensor, "b d_out d_in"],
        margin: Float[Tensor, "b"],
        bound: Float[Tensor, "b"],
        opened: Bool[Tensor, "b"],
    ) -> None:
        """Keep a point where it is better than what was found, for the instances that are still open."""
        better, tighter = (margin > self.margin) & opened, (bound < self.bound) & opened
        self.W = torch.where(better[:, None, None], point, self.W)
        self.W_dual = torch.where(tighter[:, None, None], point, self.W_dual)
        self.margin = torch.where(better, margin, self.margin)
        self.bound = torch.where(tighter, bound, self.bound)
        self.iterations = self.iterations + opened

    def select(self, index: Int[Tensor, "k"]) -> "DescentResult":
        """What was found for some instances."""
        return DescentResult(*(getattr(self, field.name)[index] for field in fields(self)))

    def update(self, index: Int[Tensor, "k"], part: "DescentResult") -> None:
        """Put in what was found for some instances."""
        for field in fields(self):
            getattr(self, field.name)[index] = getattr(part, field.name)


@torch.no_grad()
def descend(
    problem: StorageProblem,
    *,
    iterations: int,
    tolerance: float = 0.0,
    decay: Float[Tensor, "b"] | None = None,
    gap: float = 0.0,
) -> DescentResult:
    """Descend until each instance is decided; margins are those of the problem's own coordinates.

    An instance ends when its bound is below `tolerance`, without decay also when it is stored. With decay λ it ends
    when its best margin is within the fraction `gap` of its bound; λ halves if the minimum is reached before that.
    """
    problem = problem.padded(ALIGN)
    keys = problem.keys
    n_instances = len(keys)
    start = (problem.right.mT @ keys) / problem.n.clamp_min(1)[:, None, None]
    start = start / start.norm(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(keys.dtype).tiny)
    found = DescentResult(
        start.clone(),
        start.clone(),
        keys.new_full((n_instances,), -torch.inf),
        keys.new_full((n_instances,), torch.inf),
        torch.zeros(n_instances, dtype=torch.long, device=keys.device),
    )
    opened = problem.has_rivals
    found.margin[~opened] = torch.inf
    if not bool(opened.any()):
        return found
    alive = torch.arange(n_instances, device=keys.device)
    on_cpu = keys.device.type == "cpu"
    rescore_every = RESCORE_EVERY if decay is None else RESCORE_MARGINS_EVERY
    state, best = _State(problem, start, decay), found.select(alive)
    for iteration in range(1, iterations + 1):
        if iteration % rescore_every == 0:
            check_stop()
            found.update(alive, best)
            kept = opened.nonzero()[:, 0]
            if not len(kept):
                break
            state, best, alive, opened = state.rescored(kept), best.select(kept), alive[kept], opened[kept]
        best.consider(state.point, *state.evaluate(), opened)
        wanting = best.margin <= MIN_MARGIN if decay is None else best.margin < (1 - gap) * best.bound
        opened = opened & wanting & (best.bound >= tolerance)
        if (on_cpu or iteration % ASK_EVERY == 0) and not bool(opened.any()):
            break
        state.step()
    found.update(alive, best)
    return found


class _State:
    """Where the descent is: the point that is evaluated, the last accepted one, and the scores of both."""

    def __init__(
        self, problem: StorageProblem, W: Float[Tensor, "b d_out d_in"], decay: Float[Tensor, "b"] | None
    ) -> None:
        self.problem, self.decay = problem, decay
        self.point = self.accepted = W
        self.theta = W.new_ones(len(W))
        self.right = problem.right
        self.targets = problem.targets[:, :, None]
        n, m = problem.keys.shape[1], problem.values.shape[-2]
        size = max(1, CHUNK // (len(W) * m))
        self.chunks = [slice(first, min(first + size, n)) for first in range(0, n, size)]
        self.padding = HUGE * (torch.arange(n, device=W.device) >= problem.n[:, None]).to(W.dtype)
        self.scores = self._score(W)
        self.accepted_scores = self.scores.clone()
        # Fresh memory for a score matrix costs as much as a product of matrices: all work is done in these.
        self.spare = torch.empty_like(self.scores)
        self.excess = torch.empty_like(self.scores[:, self.chunks[0]])
        self.slope = torch.empty_like(self.excess)
        self.outputs = torch.empty_like(self.right)

    def _score(self, W: Tensor) -> Tensor:
        scores = self.problem.scores_of(self.problem.outputs(W))
        if self.problem.rivals is not None:
            scores.masked_fill_(~self.problem.rivals.scatter(2, self.targets, True), -HUGE)
        return scores

    def rescored(self, kept: Int[Tensor, "k"]) -> "_State":
        """The same instances, or some of them, with scores computed anew."""
        decay = None
        if self.decay is not None:
            settled = self.gradient.norm(dim=(1, 2)) < SETTLED * self.decay * self.point.norm(dim=(1, 2))
            decay = torch.where(settled, self.decay / 2, self.decay)[kept]
        fresh = _State(self.problem.select(kept), self.point[kept], decay)
        fresh.accepted, fresh.theta = self.accepted[kept], self.theta[kept]
        fresh.accepted_scores = fresh._score(fresh.accepted)
        return fresh

    def evaluate(self) -> tuple[Float[Tensor, "b"], Float[Tensor, "b"]]:
        """The margin of the point, and the upper bound by its r; leaves the gradient for `step`."""
        problem, rows_of = self.problem, self.chunks
        correct = self.scores.take_along_dim(self.targets, 2)
        self.level = correct + (self.padding[:, :, None] - 1)  # a rival is active above it
        pulled = self.outputs
        total = worst = self.right.new_zeros(len(self.right))
        for rows in rows_of:
            r = self._excess(rows).relu_().scatter_(2, self.targets[:, rows], 0.0)
            per_key = r.sum(2, keepdim=True)
            worst = torch.maximum(worst, r.amax((1, 2)))
            total = total + per_key.sum((1, 2))
            problem.weigh(r, rows, out=pulled[:, rows]).addcmul_(per_key, self.right[:, rows], value=-1)
        self.gradient = pulled.mT @ problem.keys
        bound = self.gradient.norm(dim=(1, 2)) / total
        if self.decay is not None:
            self.gradient = self.gradient + self.decay[:, None, None] * self.point
        margin = (1 - worst) / self.point.norm(dim=(1, 2))
        return margin, bound

    def _excess(self, rows: slice) -> Tensor:
        """By how much rivals are above the level from which they are active."""
        level = self.level[:, rows]
        return torch.sub(self.scores[:, rows], level, out=self.excess[:, : level.shape[1]])

    def step(self) -> None:
        """Move on: half the exact step along the gradient on the active rivals, then Nesterov's momentum."""
        problem, gradient = self.problem, self.gradient
        change = self.spare
        outputs = problem.outputs(gradient, out=self.outputs)
        square = gradient.square().sum((1, 2))
        curvature = torch.zeros_like(square) if self.decay is None else self.decay * square
        for rows in self.chunks:
            scores = problem.scores_of(outputs, rows, out=change[:, rows])
            slope = torch.sub(
                scores, scores.take_along_dim(self.targets[:, rows], 2), out=self.slope[:, : scores.shape[1]]
            )
            excess = self.excess if len(self.chunks) == 1 else self._excess(rows)
            torch.ops.aten.threshold_backward(slope, excess, 0, grad_input=slope)  # 0 where there is no excess
            curvature = curvature + torch.linalg.vector_norm(slope, dim=(1, 2)).square()
        tiny = torch.finfo(gradient.dtype).tiny
        length = torch.minimum(square / (2 * curvature).clamp_min(tiny), 1 / problem.n.clamp_min(1))
        accepted = self.point - length[:, None, None] * gradient
        uphill = (gradient * (accepted - self.accepted)).sum((1, 2)) > 0
        theta = (1 + (1 + 4 * self.theta.square()).sqrt()) / 2
        momentum = torch.where(uphill, 0.0, (self.theta - 1) / theta)
        self.theta = torch.where(uphill, 1.0, theta)
        accepted_scores = torch.addcmul(self.scores, change, -length[:, None, None], out=change)
        ahead = (1 + momentum)[:, None, None]
        self.point = torch.lerp(self.accepted, accepted, ahead)
        torch.lerp(self.accepted_scores, accepted_scores, ahead, out=self.scores)
        self.spare, self.accepted_scores, self.accepted = self.accepted_scores, accepted_scores, accepted
