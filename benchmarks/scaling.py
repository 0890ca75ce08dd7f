"""Memories at many dimensions: the prefix evaluator against products from left to right; training seed by seed."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from toytf.bench import in_turns
from toytf.memory.prefixes import Passes, RandomVectors, Strengths, prefix_errors
from toytf.theory import zipf

from . import online

N, M, ALPHA = 1000, 5, 2.0
DIMENSIONS = (10, 13, 16, 21, 26, 34, 43, 55, 70, 89, 113, 144, 183, 234, 298, 379, 483, 616, 785, 1000)
ROUNDS = 5


@dataclass(frozen=True)
class _Drawn(RandomVectors):
    """Vectors that are there already: how long it takes to draw them is not what is measured."""

    keys: Tensor = field(default_factory=lambda: torch.empty(0))

    def passes(self) -> Passes:
        return lambda: iter([(slice(0, len(self.keys)), self.keys)])


def measure() -> dict[str, float]:
    """Errors of three schemes (all alike, by frequency, the d/8 most frequent) of 1000 inputs at 20 dimensions.

    ratio: by the prefix evaluator, against E W Uᵀ from left to right at every dimension, where W is built once if a
    scheme is the same at all of them. ratio_reassociated: against E (W Uᵀ). seconds: of the prefix evaluator.
    differing: the fraction of answers that differ between it and the product from left to right, by rounding.
    ratio_trainer: ten seeds of stochastic gradient descent (d = 100, batches of 64, 10,240 samples) as one closed-form
    program, against a loop with autograd for each seed.
    """
    torch.set_num_threads(1)
    drawn = RandomVectors(0, N, M, DIMENSIONS[-1])
    E, U = torch.cat([rows for _, rows in drawn.blocks()]), drawn.values()
    vectors, targets, p = _Drawn(0, N, M, DIMENSIONS[-1], keys=E), torch.arange(N) % M, torch.tensor(zipf(N, ALPHA))
    fixed = torch.stack([torch.ones(N), p.float()])

    def top(d: int) -> Tensor:
        return (torch.arange(N) < d // 8).float()[None]

    def by_prefixes(p: Tensor) -> Tensor:
        return prefix_errors(vectors, targets, Strengths(fixed, top), p, DIMENSIONS)

    def by_products(p: Tensor, *, reassociated: bool) -> Tensor:
        stored = U[targets]
        W_fixed = [(E * q[:, None]).T @ stored for q in fixed]
        errors = []
        for d in DIMENSIONS:
            cut, values = E[:, :d], U[:, :d].T
            W_top = (cut * top(d).T).T @ stored[:, :d]
            for W in (*(W[:d, :d] for W in W_fixed), W_top):
                scores = cut @ (W @ values) if reassociated else (cut @ W) @ values
                right = scores.gather(1, targets[:, None])[:, 0]
                rivals = scores.scatter(1, targets[:, None], -torch.inf).amax(1)
                errors.append(p @ (right <= rivals).double())
        return torch.stack(errors)

    seconds = in_turns(
        {
            "prefixes": lambda: by_prefixes(p[None]),
            "left_to_right": lambda: by_products(p[None], reassociated=False),
            "reassociated": lambda: by_products(p[None], reassociated=True),
        },
        ROUNDS,
    )
    trainings = in_turns(online.ways(), ROUNDS)
    one_by_one = torch.eye(N, dtype=torch.float64)  # the error on each input alone
    wrong = by_prefixes(one_by_one).flatten(0, 1), by_products(one_by_one, reassociated=False)
    return {
        "ratio": seconds["left_to_right"] / seconds["prefixes"],
        "ratio_reassociated": seconds["reassociated"] / seconds["prefixes"],
        "ratio_trainer": trainings["autograd"] / trainings["closed_form"],
        "seconds": seconds["prefixes"],
        "differing": float((wrong[0] != wrong[1]).double().mean()),
    }
