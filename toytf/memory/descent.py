"""The kernel of the storage solver: conjugate directions (Polak and Ribière 1969), batched over instances.

    f(W) = ⅓ Σ_{z, y ≠ f(z)} r_zy³  (+ ½ λ |W|²),   r_zy = (1 − s_{z f(z)} + s_zy)₊,   s = scores of W

Cubes, because what counts is the largest r: they need a quarter fewer steps than squares. Scores are linear in W, so
those of the next point follow from those of this one and of the direction: one scoring and one gradient per iteration.
How far to go is found by two Newton steps along the direction, which need the scores only. No shape depends on data;
finished instances are dropped now and then.
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
    """W: the point that stores (or has the largest margin); W_dual: the point whose r² give the best upper bound."""

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
    """Where the descent is: a point, the excess of every rival there, and the direction it came by."""

    def __init__(
        self, problem: StorageProblem, W: Float[Tensor, "b d_out d_in"], decay: Float[Tensor, "b"] | None
    ) -> None:
        self.problem, self.decay, self.point = problem, decay, W
        self.direction, self.last_gradient = torch.zeros_like(W), torch.zeros_like(W)
        self.length = W.new_zeros(len(W))
        self.right = problem.right
        self.targets = problem.targets[:, :, None]
        n, m = problem.keys.shape[1], problem.values.shape[-2]
        size = max(1, CHUNK // (len(W) * m))
        self.chunks = [slice(first, min(first + size, n)) for first in range(0, n, size)]
        scores = problem.scores_of(problem.outputs(W))
        self.excess = (scores - scores.take_along_dim(self.targets, 2)).add_(1)
        self.excess.scatter_(2, self.targets, -HUGE)
        if problem.rivals is not None:
            self.excess.masked_fill_(~problem.rivals, -HUGE)
        # Fresh memory for a score matrix costs as much as a product of matrices: all work is done in these.
        self.slope = torch.zeros_like(self.excess)
        self.spare = torch.empty_like(self.excess[:, self.chunks[0]])
        self.second = torch.empty_like(self.spare)
        self.outputs = torch.empty_like(self.right)

    def rescored(self, kept: Int[Tensor, "k"]) -> "_State":
        """The same instances, or some of them, with scores computed anew."""
        decay = None
        if self.decay is not None:
            settled = self.last_gradient.norm(dim=(1, 2)) < SETTLED * self.decay * self.point.norm(dim=(1, 2))
            decay = torch.where(settled, self.decay / 2, self.decay)[kept]
        fresh = _State(self.problem.select(kept), self.point[kept], decay)
        fresh.direction, fresh.last_gradient = self.direction[kept], self.last_gradient[kept]
        return fresh

    def evaluate(self) -> tuple[Float[Tensor, "b"], Float[Tensor, "b"]]:
        """The margin of the point, and the upper bound by its r²; leaves the gradient for `step`."""
        problem, pulled = self.problem, self.outputs
        total = worst = self.right.new_zeros(len(self.right))
        length = self.length[:, None, None]
        for rows in self.chunks:
            r = torch.clamp_min(self.excess[:, rows].addcmul_(self.slope[:, rows], length), 0, out=self._spare(rows))
            worst = torch.maximum(worst, r.amax((1, 2)))
            weights = r.square_()
            per_key = weights.sum(2, keepdim=True)
            total = total + per_key.sum((1, 2))
            problem.weigh(weights, rows, out=pulled[:, rows]).addcmul_(per_key, self.right[:, rows], value=-1)
        self.gradient = pulled.mT @ problem.keys
        bound = self.gradient.norm(dim=(1, 2)) / total
        if self.decay is not None:
            self.gradient = self.gradient + self.decay[:, None, None] * self.point
        margin = (1 - worst) / self.point.norm(dim=(1, 2))
        return margin, bound

    def _spare(self, rows: slice) -> Tensor:
        return self.spare[:, : rows.stop - rows.start]

    def step(self) -> None:
        """Move on along a conjugate direction, to where two Newton steps see the minimum."""
        gradient, last, direction = self.gradient, self.last_gradient, self.direction
        tiny = torch.finfo(gradient.dtype).tiny
        square = _dot(last, last)
        turn = torch.where(square > 0, _dot(gradient, gradient - last) / square.clamp_min(tiny), 0.0).clamp_min(0)
        direction = turn[:, None, None] * direction - gradient
        downhill = _dot(direction, gradient) < 0
        direction = torch.where(downhill[:, None, None], direction, -gradient)
        fall, norm = _dot(direction, gradient), _dot(direction, direction)
        outputs = self.problem.outputs(direction, out=self.outputs)
        bend = torch.zeros_like(fall) if self.decay is None else self.decay * norm
        first = bend
        for rows in self.chunks:
            slope = self.problem.scores_of(outputs, rows, out=self.slope[:, rows])
            slope.sub_(slope.take_along_dim(self.targets[:, rows], 2))
            weighed = torch.clamp_min(self.excess[:, rows], 0, out=self._spare(rows)).mul_(slope)
            first = first + 2 * _dot(weighed, slope)
        length = -fall / first.clamp_min(tiny)
        pull, second = bend.clone(), bend
        if self.decay is not None:
            pull = self.decay * (_dot(self.point, direction) + length * norm)
        for rows in self.chunks:
            slope = self.slope[:, rows]
            r = torch.addcmul(self.excess[:, rows], slope, length[:, None, None], out=self._spare(rows)).clamp_min_(0)
            weighed = torch.mul(r, slope, out=self.second[:, : r.shape[1]])
            pull = pull + _dot(weighed, r)
            second = second + 2 * _dot(weighed, slope)
        better = length - pull / second.clamp_min(tiny)
        self.length = torch.minimum(torch.maximum(better, length / 10), 3 * length)
        self.point = self.point + self.length[:, None, None] * direction
        self.direction, self.last_gradient = direction, gradient


def _dot(left: Float[Tensor, "b i j"], right: Float[Tensor, "b i j"]) -> Float[Tensor, "b"]:
    """Σ_ij left right of every instance."""
    product: Tensor = torch.bmm(left.flatten(1)[:, None], right.flatten(1)[:, :, None])[:, 0, 0]
    return product
