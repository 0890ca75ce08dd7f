"""One pass over a stream of inputs, for the memories of several seeds at once, by gradients in closed form.

A step waits for no value of the device, and every seed sees the same inputs whatever the batch, the optimiser or the
dimension: settings that are compared differ in nothing else.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, bmm

from toytf.memory.association import margins_of
from toytf.memory.online import Batch, OnlineMemory, losses
from toytf.memory.particles import residuals
from toytf.optimizers import SGD, AdamW, Muon, Optimizer, Several
from toytf.randomness import generator
from toytf.stopping import check_stop

CHECK_EVERY = 64
"""Steps between looks at whether the run should stop."""


@dataclass(frozen=True)
class Descent:
    """How a memory is trained."""

    rule: Literal["sgd", "normalised", "adam", "muon"]
    """sgd: lr times the gradient. normalised: a gradient that is scaled to the length lr. adam: about lr/d for every
    entry of W, and lr/√d for those of E and U. muon: orthogonalised, with lr as spectral norm; E and U are left to
    adam."""
    lr: float
    betas: tuple[float, float] = (0.0, 0.0)
    """Of Adam. Without memory it goes by the sign of the gradient."""
    momentum: float = 0.0
    """Of Muon."""
    late_from: int | None = None
    """The step from which on the learning rate is smaller; None: never."""
    late_factor: float = 1.0


@dataclass(frozen=True, eq=False)
class Look:
    """The memories after some steps: which inputs each recalls, and the loss of each input."""

    step: int
    recalled: Bool[np.ndarray, "seed N"]
    losses: Float[np.ndarray, "seed N"]


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of a training."""

    looks: tuple[Look, ...]
    memory: OnlineMemory
    """After the last step."""


def stream(seeds: Sequence[int], p: Float[np.ndarray, "N"], samples: int) -> Int[Tensor, "seed n"]:
    """So many inputs for every seed, each z with probability p(z); fewer are the first of more."""
    edges = torch.as_tensor(np.cumsum(p)[:-1])  # beyond the last edge is the last input, whatever the sum is rounded to
    uniform = [torch.rand(samples, generator=generator(seed, "stream"), dtype=torch.float64) for seed in seeds]
    return torch.searchsorted(edges, torch.stack(uniform), right=True)


def batches(memory: OnlineMemory, inputs: Int[Tensor, "seed n"], size: int) -> Iterator[Batch]:
    """The inputs in batches, of which the last may be smaller; a batch of more than N is counted, which is the same."""
    (n_seeds, N, _), n = memory.E.shape, inputs.shape[1]
    inputs = inputs.to(memory.E.device)
    whole = n // size * size
    for some, length in ((inputs[:, :whole], size), (inputs[:, whole:], n - whole)):
        if not some.numel():
            continue
        by_step = some.reshape(n_seeds, -1, length).transpose(0, 1)[:, :, None].contiguous()
        rows = (by_step + N * torch.arange(n_seeds, device=inputs.device)[:, None, None]).flatten(1)
        if length > N:
            for places in rows:
                counts = memory.E.new_zeros(n_seeds * N).index_add_(0, places, memory.E.new_ones(len(places)))
                yield Batch(None, None, memory.every_target, counts.view(n_seeds, 1, N) / length)
        else:
            for parts in zip(rows, by_step, memory.targets[by_step], strict=True):
                yield Batch(*parts, 1 / length)


def population(memory: OnlineMemory, p: Float[np.ndarray, "N"], steps: int) -> Iterator[Batch]:
    """Every input with its probability, at every step."""
    weights = torch.as_tensor(p).to(memory.E.dtype).to(memory.E.device).expand(len(memory.E), 1, -1)
    for _ in range(steps):
        yield Batch(None, None, memory.every_target, weights)


def train(memory: OnlineMemory, descent: Descent, data: Iterable[Batch], looks: Sequence[int]) -> Trained:
    """Take a step on each batch, and look at the memories after as many steps as `looks` says.

    The memory that is given stays as it is.
    """
    if descent.rule == "sgd" and _scores_suffice(memory):
        return _train_by_scores(memory, descent, data, looks)
    exact_elsewhere = memory.model == "matrix" and not memory.layer_norm and descent.rule != "adam"
    small, taken_back = memory.within_spans() if exact_elsewhere else (copy.deepcopy(memory), None)
    optimizer = _optimizer(small, memory.E.shape[2], descent, descent.lr)
    found = [_look(small, small.scores(), 0)] if 0 in looks else []
    for step, batch in enumerate(data, start=1):
        if step % CHECK_EVERY == 0:
            check_stop()
        if descent.late_from is not None and step == descent.late_from + 1:
            later = _optimizer(small, memory.E.shape[2], descent, descent.lr * descent.late_factor)
            for part in (later, *(later.parts if isinstance(later, Several) else ())):
                part.state = optimizer.state
            optimizer = later
        gradients = small.gradients(batch)
        for name, parameter in small.trained.items():
            parameter.grad = _scaled(name, gradients[name]) if descent.rule == "normalised" else gradients[name]
        optimizer.step()
        if step in looks:
            found.append(_look(small, small.scores(), step))
    if taken_back is not None and small.W is not None:
        return Trained(tuple(found), replace(memory, W=taken_back(small.W)))
    return Trained(tuple(found), small)


def _scores_suffice(memory: OnlineMemory) -> bool:
    """Is gradient descent by scores alone exact, and less work?"""
    (n_inputs, d), n_outputs = memory.E.shape[1:], memory.U.shape[1]
    return memory.model == "matrix" and not memory.layer_norm and max(n_inputs, n_outputs) <= d


def _train_by_scores(memory: OnlineMemory, descent: Descent, data: Iterable[Batch], looks: Sequence[int]) -> Trained:
    """The same by plain gradient descent on W, whose scores S = U W Eᵀ are all that is needed until the end.

    A step of W = W₀ + Uᵀ C E changes the scores by the overlaps of the vectors, and need not touch W:

        S ← S − lr K R G_B,   C_B ← C_B − lr R,   G = E Eᵀ,   K = U Uᵀ

    R has the residuals of the inputs B of the batch. As `toytf.memory.particles`, but in place, for some inputs at a
    time, and with the inputs last: one large product for two, and less than those of W.
    """
    if memory.W is None:
        raise ValueError("a memory without a matrix W has none to write into")
    G, K = bmm(memory.E, memory.E.mT), bmm(memory.U, memory.U.mT)
    S = memory.scores().contiguous()
    n_seeds, M, N = S.shape
    C = torch.zeros_like(S)
    found = [_look(memory, S, 0)] if 0 in looks else []
    for step, batch in enumerate(data, start=1):
        if step % CHECK_EVERY == 0:
            check_stop()
        late = descent.late_from is not None and step > descent.late_from
        size = batch.weights * -(descent.lr * (descent.late_factor if late else 1.0))
        if batch.rows is None or batch.inputs is None:
            R = residuals(S, batch.targets, 1).mul_(size)
            C.add_(R)
            S.baddbmm_(bmm(K, R), G)
        else:
            places = batch.inputs.expand(-1, M, -1)
            R = residuals(S.gather(2, places), batch.targets, 1).mul_(size)
            C.scatter_add_(2, places, R)
            S.baddbmm_(bmm(K, R), G.view(-1, N).index_select(0, batch.rows).view(n_seeds, -1, N))
        if step in looks:
            found.append(_look(memory, S, step))
    return Trained(tuple(found), replace(memory, W=memory.W + bmm(memory.U.mT, bmm(C, memory.E))))


def spaced_steps(steps: int, n: int) -> list[int]:
    """At most n steps from 1 to the last one, evenly spaced in their logarithm; n = 1: the last one."""
    if n == 1 or steps < 2:
        return [steps]
    return sorted({round(step) for step in np.geomspace(1, steps, n)})


def _optimizer(memory: OnlineMemory, d: int, descent: Descent, lr: float) -> Optimizer:
    trained = memory.trained
    W, vectors = [trained[name] for name in ("W",) if name in trained], [trained[n] for n in "EU" if n in trained]
    if descent.rule in ("sgd", "normalised"):
        return SGD([*W, *vectors], lr)
    of_vectors = AdamW(vectors, lr / math.sqrt(d), betas=descent.betas)
    if descent.rule == "adam":
        return Several(AdamW(W, lr / d, betas=descent.betas), of_vectors)
    muons = []
    for matrix in W:
        # The steps of a square matrix: the factor that Muon has for others is taken out again.
        factor = math.sqrt(max(1.0, matrix.shape[2] / matrix.shape[1]))
        muons.append(Muon([matrix], lr / factor, momentum=descent.momentum, nesterov=False))
    return Several(*muons, of_vectors)


def _scaled(name: str, gradient: Tensor) -> Tensor:
    """A gradient of length 1 for W, and of as much per row for E and U; 0 stays 0."""
    length = 1.0 if name == "W" else math.sqrt(gradient.shape[1])
    tiny = torch.finfo(gradient.dtype).tiny
    largest = gradient.abs().amax((1, 2), keepdim=True)
    gradient = gradient / largest.clamp(min=tiny)  # its squares may be too small for float32, though it is not
    norm: Tensor = torch.linalg.matrix_norm(gradient, keepdim=True)
    return gradient * length / norm.clamp(min=tiny)


def _look(memory: OnlineMemory, scores: Tensor, step: int) -> Look:
    right = memory.every_target
    recalled, lost = margins_of(scores, right[:, 0], 1) > 0, losses(scores, right)
    return Look(step, recalled.cpu().numpy(), lost.cpu().double().numpy())
