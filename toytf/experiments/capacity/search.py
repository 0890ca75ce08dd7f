"""How the capacity of a case is searched: with certificates, by training, or over many draws."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from toytf.errors import UserError
from toytf.experiments.capacity.case import CapacityCase, predicted_capacity
from toytf.experiments.capacity.config import CapacityConfig
from toytf.memory.association import Association, Readable
from toytf.memory.builders import AdamOptions, RuleInputs
from toytf.memory.polish import can_polish
from toytf.memory.problem import StorageProblem
from toytf.memory.rules import RULES
from toytf.memory.search import Bracket, bisect, half_point, run_together
from toytf.memory.solver import Status, decide, settle
from toytf.memory.stream import AssociationStream
from toytf.randomness import generator
from toytf.stopping import check_stop

TINY_MARGIN = 0.05
"""A margin this small means that capacity is within some percent: there, not knowing is an answer."""

NEAR = 0.2
"""An upper bound from which on it is worth to go on where the solver could not tell."""

QUICK = 48**2
"""Weights of a matrix up to which that takes a second or two."""


@dataclass(frozen=True, eq=False)
class Largest:
    """The largest memory that a search found, and what it stores."""

    association: Association
    memory: Readable


@dataclass(frozen=True, eq=False)
class Searched:
    """Where the answer changes, and the largest memory found, if the search makes any."""

    bracket: Bracket
    largest: Largest | None = None


def search_capacity(config: CapacityConfig, case: CapacityCase, seeds: Sequence[int]) -> dict[int, Searched]:
    """The capacity of a case in several seeds."""
    start = first_pairs(config, case)
    if RULES[case.rule].search == "one_shot":
        return {seed: Searched(_half_point(config, case, seed, start)) for seed in seeds}
    return _bisection(config, case, seeds, start)


def first_pairs(config: CapacityConfig, case: CapacityCase) -> float:
    """Where a search begins: near what theory predicts, or at the order of magnitude of a one-shot rule.

    A trained memory begins at d_in pairs, whatever its width: what it stores must not depend on what others found.
    """
    rule = RULES[case.rule]
    if rule.search == "trained":
        return float(case.d_in)
    predicted = predicted_capacity(config, case)
    if predicted is not None:
        return predicted
    if config.data.n_answers is not None:
        return max(2.0, 0.2 * case.d_in)
    if case.width and rule.width == "hidden":
        return max(2.0, 0.01 * case.width * case.d_in)
    return max(2.0, 0.05 * case.d_in * min(case.d_out, case.width or case.d_out))


def _stream(config: CapacityConfig, case: CapacityCase, seed: int, draw: int = 0) -> AssociationStream:
    return AssociationStream(
        seed,
        case.d_in,
        case.d_out,
        distribution=config.data.distribution,
        n_answers=config.data.n_answers,
        inputs=config.data.inputs,
        own_rivals=RULES[case.rule].decoupled,
        purpose=f"draw {draw}",
        device=config.device,
    )


def _bisection(
    config: CapacityConfig, case: CapacityCase, seeds: Iterable[int], start: float
) -> dict[int, Searched]:  # fmt: skip
    """Bisection of one stream per seed, all seeds in step."""
    rule, streams = RULES[case.rule], {seed: _stream(config, case, seed) for seed in seeds}
    largest: dict[int, Largest] = {}

    def ask(questions: dict[int, int]) -> dict[int, Status]:
        check_stop()
        if not rule.searches:
            return _decide(config, {seed: streams[seed].problem(n) for seed, n in questions.items()})
        found: dict[int, Largest] = {}
        for n in dict.fromkeys(questions.values()):
            asking = [seed for seed, number in questions.items() if number == n]
            found |= _try(config, case, [streams[seed] for seed in asking], n)
        largest.update(found)  # a search never asks about fewer pairs than it knows to be stored
        return {seed: Status.FEASIBLE if seed in found else Status.INFEASIBLE for seed in questions}

    doubling = rule.search == "trained"
    searches = {seed: bisect(start, config.resolution, doubling=doubling) for seed in streams}
    brackets = run_together(searches, ask)
    return {seed: Searched(brackets[seed], largest.get(seed)) for seed in streams}


def _decide(config: CapacityConfig, problems: Mapping[int, StorageProblem]) -> dict[int, Status]:
    """What the solver says of the problem of each seed; where it cannot tell, the margin must be tiny."""
    stacked = StorageProblem.stack([*problems.values()])
    decisions = decide(stacked, tolerance=config.tolerance, iterations=config.iterations)
    answers = {}
    for (seed, problem), decision in zip(problems.items(), decisions, strict=True):
        upper, quick = decision.margin_upper, problem.keys.shape[2] * problem.values.shape[-1] <= QUICK
        # Go on where it could not tell: near capacity, if that is quick, or else nothing is known.
        near = decision.status is Status.UNKNOWN and upper <= NEAR and (quick or upper > TINY_MARGIN)
        settled = settle(problem, decision, tolerance=config.tolerance) if near and can_polish(problem) else decision
        if settled.status is Status.UNKNOWN and settled.margin_upper > TINY_MARGIN:
            raise UserError(
                f"iterations = {config.iterations} is too small to decide on {int(problem.n)} pairs: choose a larger "
                "number"
            )
        answers[seed] = settled.status
    return answers


def _try(
    config: CapacityConfig, case: CapacityCase, streams: Sequence[AssociationStream], n: int
) -> dict[int, Largest]:  # fmt: skip
    """The memories of n pairs that were found, by seed: not found counts as infeasible, so that capacity is a bound."""
    criterion = config.criterion_of(case.rule)
    goal = 1.0 if criterion == "all" else criterion
    left, found = [*streams], dict[int, Largest]()
    for start in range(config.starts):
        inputs = [
            RuleInputs(
                stream.prefix(n),
                generator(stream.seed, case.stream, n, *([start] if start else [])),
                case.width or 0,
                rank_iterations=config.iterations,
                adam=AdamOptions(config.trained.lr, config.trained.steps, goal),
            )
            for stream in left
        ]
        attempts = RULES[case.rule].attempts(inputs) if inputs else []
        tried = [*zip(left, inputs, attempts, strict=True)]
        found |= {stream.seed: Largest(of.association, one.memory) for stream, of, one in tried if one.recall >= goal}
        left = [stream for stream, of, one in tried if one.recall < goal and _died(one.memory, of.association)]
    return found


def _died(memory: Readable, association: Association) -> bool:
    """Is there a key for which no hidden unit is on? Its output is 0, and no gradient comes from it."""
    return not isinstance(memory, torch.Tensor) and bool((memory(association.keys) == 0).all(1).any())


def _half_point(config: CapacityConfig, case: CapacityCase, seed: int, guess: float) -> Bracket:
    """Where half of many streams are stored (criterion all), or their mean recall falls to the criterion."""
    rule, streams = RULES[case.rule], [_stream(config, case, seed, draw) for draw in range(config.draws)]

    def succeed(n: int) -> Float[np.ndarray, "draws"]:
        recalls = []
        for draw, stream in enumerate(streams):
            check_stop()
            problem = stream.problem(n)
            memory = rule.build(RuleInputs(stream.prefix(n), generator(seed, case.stream, draw), case.width or 0))
            outputs = problem.keys[0] @ memory.T if isinstance(memory, torch.Tensor) else memory(problem.keys[0])
            recalls.append(float((problem.margins(outputs[None]) > 0).float().mean()))
        return np.array(recalls) == 1.0 if config.criterion == "all" else np.array(recalls)

    steep = config.criterion == "all"
    level = 0.5 if config.criterion == "all" else config.criterion
    return Bracket(0, None, half_point(succeed, guess, level, steep=steep))
