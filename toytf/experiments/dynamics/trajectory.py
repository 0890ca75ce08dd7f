"""One system of `dynamics` in several seeds and with several step sizes at once, and what is kept of every step."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from toytf import theory
from toytf.errors import RunFailed
from toytf.experiments.dynamics.config import DynamicsConfig, RandomConfig, TwoParticlesConfig
from toytf.experiments.dynamics.systems import System, start, tokens
from toytf.experiments.seeded import with_float64
from toytf.memory import Association, Particles, sharpnesses
from toytf.randomness import generator
from toytf.stopping import check_stop

SHOWN = 400
"""Steps of which pictures show margins and the path of γ, at most."""

TOKENS = 10
"""Tokens whose margins pictures and tables show: the most frequent ones."""

MOST_CORRELATED, LEAST_UNEVEN, LARGEST_RATE = 0.95, 0.05, 30
"""Up to which |a| and η, and from which |p1 − ½| on, two tokens follow their recursion in spite of rounding."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Every step for all seeds S and step sizes L; of the first seed, what is drawn."""

    loss: Float[np.ndarray, "t S L"]
    error: Float[np.ndarray, "t S L"]
    smallest: Float[np.ndarray, "t S L"]
    """The smallest margin of all tokens."""
    sign_changes: Int[np.ndarray, "S L"]
    """How often margins went from one side of 0 to the other, over all tokens; ties are on the wrong side."""
    recorded: list[int]
    """The steps that have rows."""
    edge: Float[np.ndarray, "k S L"]
    """η λ / 2 at the steps that have rows."""
    decade: Float[np.ndarray, "S L n"]
    """Margins at a tenth of the steps."""
    last: Float[np.ndarray, "S L n"]
    """Margins in the end."""
    shown: list[int]
    """The steps that are drawn."""
    margins: Float[np.ndarray, "j L tokens"]
    """Of the first seed, at the steps that are drawn."""
    path: Float[np.ndarray, "j L 2"] | None
    """γ of the first seed at the steps that are drawn; None if the tokens are not in a plane."""


def spaced(steps: int, most: int) -> list[int]:
    """The first and the last step, and all between them or at most so many, evenly on a logarithmic scale."""
    if steps < most:
        return [*range(steps + 1)]
    between = np.geomspace(1, steps, most - 1).round().astype(int).tolist() if most > 2 else []
    return sorted({0, *between, steps})


def tenth(steps: int) -> int:
    """The step from which on the last decade is measured."""
    return max(1, steps // 10)


def simulate(config: DynamicsConfig, system: System, seeds: Sequence[int]) -> Trajectory:
    """Gradient descent on all of them together."""
    associations = [tokens(config, system, seed) for seed in seeds]
    rates, S, T = config.learning_rates, len(seeds), config.steps
    L, n = len(rates), len(associations[0].keys)
    particles = Particles.of(associations, [start(config, system, seed) for seed in seeds]).repeated(L)
    lr = torch.tensor([*rates] * S, dtype=torch.float64, device=with_float64(config.device))
    batches = _batches(config, associations, seeds)
    gamma_of = None if isinstance(config.system, RandomConfig) else _reader(associations[0], config.system.start)
    recorded, shown = spaced(T, config.points), spaced(T, SHOWN)
    is_recorded, is_shown = frozenset(recorded), frozenset(shown)
    loss, error, smallest = (lr.new_empty(T + 1, S * L) for _ in range(3))
    changes, wrong = torch.zeros_like(lr, dtype=torch.long), particles.margins <= 0
    edge, drawn, path, decade = list[Tensor](), list[Tensor](), list[Tensor](), particles.margins
    for step in range(T + 1):
        margins = particles.margins
        loss[step], error[step], smallest[step] = particles.loss, particles.error, margins.amin(1)
        changes += ((margins <= 0) != wrong).sum(1)
        wrong = margins <= 0
        if step in is_recorded:
            edge.append(lr * sharpnesses(particles) / 2)
        if step in is_shown:
            drawn.append(margins[:L, :TOKENS])
            if gamma_of is not None:
                path.append(gamma_of(particles.scores[:L]))
        if step == tenth(T):
            decade = margins
        if step < T:
            particles = particles.stepped(lr, next(batches))
        if step % 256 == 0:
            check_stop()

    def by_seed(kept: Tensor) -> np.ndarray:
        return kept.reshape(*kept.shape[:-1], S, L).cpu().numpy()

    if not bool(loss.isfinite().all()):
        raise RunFailed(f"the loss is not finite: learning_rates up to {max(rates):g} are too large")
    return Trajectory(
        loss=by_seed(loss), error=by_seed(error), smallest=by_seed(smallest), sign_changes=by_seed(changes),
        recorded=recorded, edge=by_seed(torch.stack(edge)), decade=decade.reshape(S, L, n).cpu().numpy(),
        last=particles.margins.reshape(S, L, n).cpu().numpy(), shown=shown, margins=torch.stack(drawn).cpu().numpy(),
        path=torch.stack(path).cpu().numpy() if path else None,
    )  # fmt: skip


def law(config: DynamicsConfig, system: System) -> Float[np.ndarray, "j L n"] | None:
    """The margins of the exact law at the steps that are drawn; None where there is no law.

    There is one for two tokens that are not too much alike, and for orthonormal vectors from W = 0, with full batches.
    """
    rates, is_shown = np.array(config.learning_rates, dtype=float), frozenset(spaced(config.steps, SHOWN))
    step: Callable[[np.ndarray], np.ndarray]
    if config.batch_size is not None:
        return None
    if isinstance(config.system, TwoParticlesConfig):
        a, p = system.correlation or 0.0, system.p or 0.0
        if abs(a) > MOST_CORRELATED or abs(p - 0.5) < LEAST_UNEVEN or max(rates) > LARGEST_RATE:
            return None  # there rounding grows with every step, and no two ways to compute them agree
        e, gamma = np.array([[1, 0], [a, np.sqrt(1 - a**2)]]), np.array(config.system.start)
        margins = np.tile((e @ gamma) * [1, -1], (len(rates), 1))
        step = partial(theory.pair_step, lr=rates, correlation=a, p1=p)
    elif isinstance(config.system, RandomConfig) and config.is_orthonormal and config.system.start_scale == 0:
        margins = np.zeros((len(rates), config.system.n_inputs))
        rate = rates[:, None] * theory.zipf(config.system.n_inputs, config.system.alpha)
        step = partial(theory.margin_step, rate=rate, n_outputs=config.system.n_outputs)
    else:
        return None
    kept = []
    for t in range(config.steps + 1):
        if t in is_shown:
            kept.append(margins)
        margins = step(margins)
    return np.stack(kept)


def _batches(
    config: DynamicsConfig, associations: Sequence[Association], seeds: Sequence[int]
) -> Iterator[Float[Tensor, "b n"] | None]:
    """The frequencies of tokens in the batch of each step, the same for all step sizes; None: those of all."""
    if config.batch_size is None:
        yield from itertools.repeat(None)
    randoms = [generator(seed, "batches") for seed in seeds]
    p = torch.stack([association.weights for association in associations if association.weights is not None]).cpu()
    while True:
        drawn = [
            torch.multinomial(of_seed, config.batch_size or 1, replacement=True, generator=random)
            for of_seed, random in zip(p, randoms, strict=True)
        ]
        counts = torch.stack([tokens.bincount(minlength=p.shape[1]) for tokens in drawn]).double()
        frequencies = counts / (config.batch_size or 1)
        yield frequencies.repeat_interleave(len(config.learning_rates), 0).to(with_float64(config.device))


def _reader(
    association: Association, start: tuple[float, float]
) -> Callable[[Float[Tensor, "L n 2"]], Float[Tensor, "L 2"]]:
    """How γ is read from scores: it moves only within what the tokens span, and there they say where it is."""
    E, gamma = association.keys, association.keys.new_tensor(start)
    inverse = torch.linalg.pinv(E)
    return lambda scores: gamma + (scores[..., 0] - scores[..., 1] - E @ gamma) @ inverse.mT
