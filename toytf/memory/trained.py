"""Memories found by training: Adam on the cross-entropy of all pairs at once.

    L = −(1/n) Σ_z log softmax_y(u_yᵀ F(e_z))[f(z)]

Training can show that pairs can be stored, never that they cannot; near capacity it slows down sharply. Memories of one
size, for pairs of their own, are trained together if a step is small: as one tensor program with a member axis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association, Readable, margins_of
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

SMALL = 2**22
"""Scores of a step, times dimensions, up to which memories are trained together: larger products fill a core alone."""


@dataclass(frozen=True, eq=False)
class Trained:
    """The memory as it was at the last look, the fraction it recalled then, and the steps until then."""

    memory: Readable
    recall: float
    steps: int


@dataclass(frozen=True)
class Kind:
    """A kind of memory: the shapes of its weights, what they make of keys, and how it is read afterwards."""

    shapes: Callable[[int, int], list[tuple[int, int]]]
    """From d_in and d_out."""
    outputs: Callable[[Sequence[Tensor], Tensor], Tensor]
    """From weights and keys, each with an axis of members in front."""
    memory: Callable[[Sequence[Tensor]], Readable]
    """From the weights of one member."""


def linear() -> Kind:
    """F(e) = W e."""
    return Kind(lambda d_in, d_out: [(d_out, d_in)], lambda W, keys: keys @ W[0].mT, lambda W: W[0])


def low_rank(rank: int) -> Kind:
    """F(e) = A B e with A [d_out rank], B [rank d_in]."""

    def shapes(d_in: int, d_out: int) -> list[tuple[int, int]]:
        rank_fits(rank, d_in, d_out)
        return [(d_out, rank), (rank, d_in)]

    return Kind(shapes, lambda W, keys: keys @ (W[0] @ W[1]).mT, lambda W: W[0] @ W[1])


def two_layers(width: int) -> Kind:
    """F(e) = Vᵀ relu(W e), both layers trained."""
    return Kind(
        lambda d_in, d_out: [(width, d_in), (width, d_out)],
        lambda W, keys: (keys @ W[0].mT).relu() @ W[1],
        lambda W: MLPMemory(W[0], W[1], torch.relu),
    )


def train_linear(association: Association, generator: torch.Generator, **options: Real) -> Trained:
    """A memory of the kind `linear`."""
    return train_each(linear(), [association], [generator], **options)[0]


def train_low_rank(association: Association, rank: int, generator: torch.Generator, **options: Real) -> Trained:
    """A memory of the kind `low_rank`."""
    return train_each(low_rank(rank), [association], [generator], **options)[0]


def train_mlp(association: Association, width: int, generator: torch.Generator, **options: Real) -> Trained:
    """A memory of the kind `two_layers`."""
    return train_each(two_layers(width), [association], [generator], **options)[0]


def train_each(
    kind: Kind,
    associations: Sequence[Association],
    generators: Sequence[torch.Generator],
    *,
    lr: Real = 0.1,
    steps: Real = 4000,
    recall: Real = 1.0,
) -> list[Trained]:
    """Train a memory for each of several associations of one size, together if a step is small.

    Adam until the fraction `recall` is recalled, for `steps` at most, on vectors of mean square length 1.
    """
    first = associations[0]
    if not len(first.keys):
        raise ValueError("there are no pairs to train on")
    shapes = kind.shapes(first.keys.shape[1], first.values.shape[1])
    drawn = []
    for of, random in zip(associations, generators, strict=True):
        normal = [torch.randn(shape, generator=random, dtype=of.keys.dtype) / shape[1] ** 0.5 for shape in shapes]
        drawn.append([W.to(of.keys.device) for W in normal])
    train = partial(_train, kind, lr=float(lr), steps=int(steps), enough=recall - ROUNDING)
    if len(first.keys) * first.values.numel() > SMALL:
        return [found for of, W in zip(associations, drawn, strict=True) for found in train([of], [W])]
    return train(associations, drawn)


def _train(
    kind: Kind,
    associations: Sequence[Association],
    drawn: Sequence[Sequence[Tensor]],
    *,
    lr: float,
    steps: int,
    enough: float,
) -> list[Trained]:
    found: dict[int, Trained] = {}
    left = [*range(len(associations))]
    keys, values = (torch.stack([_unit(getattr(of, name)) for of in associations]) for name in ("keys", "values"))
    targets = torch.stack([of.targets for of in associations])
    allowed = [of.candidates for of in associations if of.candidates is not None]
    candidates = torch.stack(allowed) if allowed else None
    weights = [torch.stack(same).requires_grad_() for same in zip(*drawn, strict=True)]
    optimizer, taken = AdamW(weights, lr), 0

    def scores() -> Float[Tensor, "member n m"]:
        scores = kind.outputs(weights, keys) @ values.mT
        return scores if candidates is None else scores.masked_fill(~candidates, -torch.inf)

    def backward(step: int) -> Float[Tensor, "member"]:
        flat = torch.nn.functional.cross_entropy(scores().flatten(0, 1), targets.flatten(), reduction="none")
        losses = flat.view_as(targets).mean(1)
        torch.autograd.backward(losses.sum())  # no member's loss depends on the weights of another
        return losses.detach()

    while True:
        with torch.no_grad():
            recalls = (margins_of(scores(), targets) > 0).to(keys.dtype).mean(1).tolist()
        ended = [i for i, reached in enumerate(recalls) if reached >= enough or taken >= steps]
        for i in ended:
            memory = kind.memory([W[i].detach().clone() for W in weights])
            found[left[i]] = Trained(memory, recalls[i], taken)
        if len(ended) == len(left):
            return [found[i] for i in range(len(associations))]
        if ended:
            kept = torch.tensor([i for i in range(len(left)) if i not in ended], device=keys.device)
            left, keys, values, targets = [left[i] for i in kept.tolist()], keys[kept], values[kept], targets[kept]
            candidates = None if candidates is None else candidates[kept]
            optimizer = _kept(optimizer, kept, lr)
            weights = optimizer.parameters
        for step, _ in updates(optimizer, backward, min(steps, taken + CHECK_EVERY), taken):
            taken = step
        check_stop()


def _kept(optimizer: AdamW, kept: Tensor, lr: float) -> AdamW:
    """The optimiser of some members, which remembers what it did of them."""
    fresh = AdamW([W.detach()[kept].requires_grad_() for W in optimizer.parameters], lr)
    for W, before in zip(fresh.parameters, optimizer.parameters, strict=True):
        known = optimizer.state[before].items()
        fresh.state[W] = {name: value[kept] if value.ndim else value for name, value in known}
    return fresh


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.square().sum(1).mean().sqrt().clamp_min(torch.finfo(rows.dtype).tiny)
