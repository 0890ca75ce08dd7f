"""The rules by name: what a config may ask for, each as one function from pairs to a memory.

Names are the same in configs, tables and figures.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory.association import Association, Readable
from toytf.memory.constructions import bi_whitened, hebbian, low_rank, pseudo_inverse, ridge
from toytf.memory.gradients import gradient_step, noisy_gradient_step
from toytf.memory.mlp import MLPMemory, hermite, mlp_hermite, mlp_least_squares, mlp_pairs
from toytf.memory.problem import StorageProblem
from toytf.memory.rank import decide_rank
from toytf.memory.solver import decide, max_margin
from toytf.memory.trained import Trained, train_linear, train_low_rank, train_mlp


@dataclass(frozen=True)
class Training:
    """How the rules trained_… are trained: Adam's rate, steps at most, and the recall that is enough."""

    lr: float = 0.1
    steps: int = 4000
    recall: float = 1.0


@dataclass(frozen=True, eq=False)
class Material:
    """What a rule may use: the pairs, the two parts of each key if keys are sums, a width, and random numbers."""

    association: Association
    generator: torch.Generator
    width: int = 0
    parts: tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]] | None = None
    iterations: int = 1500
    training: Training = Training()


Builder = Callable[[Material], Readable]


def _plain(rule: Callable[[Association], Readable]) -> Builder:
    return lambda material: rule(material.association)


def _hermite(material: Material, degree: int, activation: Callable[[Tensor], Tensor] | None = None) -> MLPMemory:
    return mlp_hermite(material.association, material.width, degree, material.generator, activation)


def _pairs(material: Material, **options: object) -> MLPMemory:
    if material.parts is None:
        raise ValueError("rules for pairs need keys that are sums of two parts: pairs")
    return mlp_pairs(*material.parts, material.association, material.width, material.generator, **options)  # type: ignore[arg-type]


BUILDERS: dict[str, Builder] = {
    "hebbian": _plain(hebbian),
    "pseudo_inverse": _plain(pseudo_inverse),
    "ridge": _plain(ridge),
    "bi_whitened": _plain(bi_whitened),
    "gradient_step": _plain(gradient_step),
    "noisy_gradient_step": _plain(noisy_gradient_step),
    "max_margin": lambda material: max_margin(material.association, iterations=material.iterations),
    "low_rank": lambda material: low_rank(material.association, material.width, material.generator),
    "mlp_h1": partial(_hermite, degree=1),
    "mlp_h2": partial(_hermite, degree=2),
    "mlp_h3": partial(_hermite, degree=3),
    "mlp_relu": partial(_hermite, degree=2, activation=torch.relu),
    "mlp_least_squares": lambda material: mlp_least_squares(material.association, material.width, material.generator),
    "pairs_ordered": _pairs,
    "pairs_unordered": partial(_pairs, ordered=False),
    "pairs_h2": partial(_pairs, activation=partial(hermite, degree=2)),
    "pairs_joint": partial(_pairs, form="joint", activation=partial(hermite, degree=2)),
    "optimum": lambda material: decide(StorageProblem.of(material.association), iterations=material.iterations)[0].W,
    "low_rank_optimum": lambda material: decide_rank(material.association, material.width).W,
    "trained_linear": lambda material: TRAINERS["trained_linear"](material).memory,
    "trained_low_rank": lambda material: TRAINERS["trained_low_rank"](material).memory,
    "trained_mlp": lambda material: TRAINERS["trained_mlp"](material).memory,
}
"""From pairs to a memory; one that looks for its memory gives the best it found."""

TRAINERS: dict[str, Callable[[Material], Trained]] = {
    "trained_linear": lambda m: train_linear(m.association, m.generator, **asdict(m.training)),
    "trained_low_rank": lambda m: train_low_rank(m.association, m.width, m.generator, **asdict(m.training)),
    "trained_mlp": lambda m: train_mlp(m.association, m.width, m.generator, **asdict(m.training)),
}
"""The trained ones, with what they reached."""
