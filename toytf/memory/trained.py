"""Memories found by training: Adam on the cross-entropy of all pairs at once.

    L = −(1/n) Σ_z log softmax_y(u_yᵀ F(e_z))[f(z)]

Training can show that pairs can be stored, never that they cannot; near capacity it slows down sharply.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from toytf.memory.association import Association, Readable
from toytf.memory.mlp import MLPMemory
from toytf.memory.solver import Real
from toytf.optimizers import AdamW
from toytf.stopping import check_stop
from toytf.theory import rank_fits
from toytf.updates import updates

ROUNDING = 1e-6
"""A fraction in float32 may be this much below itself."""

CHECK_EVERY = 16
"""Steps between looks at the accuracy: each one waits for the device."""


@dataclass(frozen=True, eq=False)
class Trained:
    """The memory as it was at the last look, the fraction it recalled then, and the steps until then."""

    memory: Readable
    recall: float
    steps: int


def train_linear(association: Association, generator: torch.Generator, **options: Real) -> Trained:
    """F(e) = W e."""
    d_out, d_in = association.values.shape[1], association.keys.shape[1]
    W = _draw(association, generator, d_out, d_in)
    return _train(association, [W], lambda: W, **options)


def train_low_rank(association: Association, rank: int, generator: torch.Generator, **options: Real) -> Trained:
    """F(e) = A B e with A [d_out rank], B [rank d_in]."""
    d_out, d_in = association.values.shape[1], association.keys.shape[1]
    rank_fits(rank, d_in, d_out)
    A, B = _draw(association, generator, d_out, rank), _draw(association, generator, rank, d_in)
    return _train(association, [A, B], lambda: A @ B, **options)


def train_mlp(association: Association, width: int, generator: torch.Generator, **options: Real) -> Trained:
    """F(e) = Vᵀ relu(W e), both layers trained."""
    d_out, d_in = association.values.shape[1], association.keys.shape[1]
    W, V = _draw(association, generator, width, d_in), _draw(association, generator, width, d_out)
    return _train(association, [W, V], lambda: MLPMemory(W, V, torch.relu), **options)


def _draw(association: Association, generator: torch.Generator, *shape: int) -> Tensor:
    keys = association.keys
    drawn: Tensor = torch.randn(*shape, generator=generator, dtype=keys.dtype) / shape[1] ** 0.5
    return drawn.to(keys.device).requires_grad_()


def _train(
    association: Association,
    parameters: list[Tensor],
    memory: Callable[[], Readable],
    *,
    lr: Real = 0.1,
    steps: Real = 4000,
    recall: Real = 1.0,
) -> Trained:
    """Adam until the fraction `recall` is recalled, for `steps` at most, on vectors of mean square length 1."""
    if not len(association.keys):
        raise ValueError("there are no pairs to train on")
    unit, steps = _unit_scale(association), int(steps)

    def backward(step: int) -> Tensor:
        loss = torch.nn.functional.cross_entropy(unit.scores(memory()), association.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    @torch.no_grad()
    def recalled() -> float:
        return float(unit.recall(memory()))

    enough, taken, reached = recall - ROUNDING, 0, recalled()
    training = updates(AdamW(parameters, float(lr)), backward, steps)
    while taken < steps and reached < enough:
        taken, _ = next(training)
        if taken % CHECK_EVERY == 0 or taken == steps:
            check_stop()
            reached = recalled()
    return Trained(_frozen(memory()), reached, taken)


def _unit_scale(association: Association) -> Association:
    def scaled(rows: Tensor) -> Tensor:
        return rows / rows.square().sum(1).mean().sqrt().clamp_min(torch.finfo(rows.dtype).tiny)

    return Association(
        scaled(association.keys), scaled(association.values), association.targets, candidates=association.candidates
    )


def _frozen(memory: Readable) -> Readable:
    if isinstance(memory, MLPMemory):
        return MLPMemory(memory.W_in.detach(), memory.W_out.detach(), memory.activation)
    return memory.detach() if isinstance(memory, Tensor) else memory
