"""The builders that the table of rules names: each a function from what a rule may use to a memory."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory import constructions, gradients, mlp, rank, solver, trained
from toytf.memory.association import Association, Readable
from toytf.memory.mlp import Activation, MLPMemory
from toytf.memory.problem import StorageProblem
from toytf.memory.solver import Status
from toytf.memory.trained import Kind, Trained, train_each


@dataclass(frozen=True)
class AdamOptions:
    """How the rules trained_… are trained: Adam's rate, steps at most, and the recall that is enough."""

    lr: float = 0.1
    steps: int = 4000
    recall: float = 1.0


@dataclass(frozen=True, eq=False)
class RuleInputs:
    """What a rule may use: the pairs, random numbers, a width, and how long it may search."""

    association: Association
    generator: torch.Generator
    width: int = 0
    parts: tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]] | None = None
    """The two parts of each key, if keys are sums."""
    iterations: int = 1500
    """Steps of the solver, at most."""
    rank_iterations: int = 600
    """Steps of the search among matrices of limited rank, at most."""
    adam: AdamOptions = AdamOptions()


Builder = Callable[[RuleInputs], Readable]


# Formulas


def _formula(rule: Callable[[Association], Tensor]) -> Builder:
    return lambda inputs: rule(inputs.association)


hebbian = _formula(constructions.hebbian)
pseudo_inverse = _formula(constructions.pseudo_inverse)
ridge = _formula(constructions.ridge)
bi_whitened = _formula(constructions.bi_whitened)
gradient_step = _formula(gradients.gradient_step)
noisy_gradient_step = _formula(gradients.noisy_gradient_step)


def _drawn(rule: Callable[[Association, int, torch.Generator], Readable]) -> Builder:
    return lambda inputs: rule(inputs.association, inputs.width, inputs.generator)


low_rank = _drawn(constructions.low_rank)
mlp_least_squares = _drawn(mlp.mlp_least_squares)


def _hermite(inputs: RuleInputs, degree: int, activation: Activation | None = None) -> MLPMemory:
    return mlp.mlp_hermite(inputs.association, inputs.width, degree, inputs.generator, activation)


mlp_h1: Builder = partial(_hermite, degree=1)
mlp_h2: Builder = partial(_hermite, degree=2)
mlp_h3: Builder = partial(_hermite, degree=3)
mlp_relu: Builder = partial(_hermite, degree=2, activation=torch.relu)


def _pairs(inputs: RuleInputs, **options: object) -> MLPMemory:
    if inputs.parts is None:
        raise ValueError("rules for pairs need keys that are sums of two parts: give `pairs`")
    return mlp.mlp_pairs(*inputs.parts, inputs.association, inputs.width, inputs.generator, **options)  # type: ignore[arg-type]


_h_2: Activation = partial(mlp.hermite, degree=2)

pairs_ordered: Builder = _pairs
pairs_unordered: Builder = partial(_pairs, ordered=False)
pairs_h2: Builder = partial(_pairs, activation=_h_2)
pairs_joint: Builder = partial(_pairs, form="joint", activation=_h_2)


# The best weights, solved for or searched


def optimum(inputs: RuleInputs) -> Tensor:
    """The first matrix found that stores every pair, or the best one if there is none."""
    return solver.decide(StorageProblem.of(inputs.association), iterations=inputs.iterations)[0].W


def max_margin(inputs: RuleInputs) -> Tensor:
    """The matrix of largest margin."""
    return solver.max_margin(inputs.association, iterations=inputs.iterations)


def low_rank_optimum(inputs: RuleInputs) -> Trained:
    """The first matrix found of a rank that stores every pair, or the best one, whose recall counts as 0."""
    found = rank.decide_rank(inputs.association, inputs.width, iterations=inputs.rank_iterations)
    return Trained(found.W.to(inputs.association.keys), float(found.status is Status.FEASIBLE), found.iterations)


def low_rank_max_margin(inputs: RuleInputs) -> Tensor:
    """The matrix of a rank with the largest margin found."""
    found = rank.maximise_margin_rank(inputs.association, inputs.width, iterations=inputs.rank_iterations)
    return found.W.to(inputs.association.keys)


# Trained


def _trained(kind: Callable[[RuleInputs], Kind]) -> Callable[[Sequence[RuleInputs]], list[Trained]]:
    """A memory for each of several inputs of one size."""

    def build(inputs: Sequence[RuleInputs]) -> list[Trained]:
        associations, generators = [one.association for one in inputs], [one.generator for one in inputs]
        return train_each(kind(inputs[0]), associations, generators, **asdict(inputs[0].adam))

    return build


trained_linear = _trained(lambda inputs: trained.linear())
trained_low_rank = _trained(lambda inputs: trained.low_rank(inputs.width))
trained_mlp = _trained(lambda inputs: trained.two_layers(inputs.width))
