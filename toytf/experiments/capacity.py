"""The experiment `capacity`: how many associations each rule stores, by size and width."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from toytf import theory
from toytf.errors import Interrupted, UserError
from toytf.experiments.jobs import Rows, run_jobs
from toytf.experiments.memory_config import EXACT, WIDE, CapacityConfig, Size, sides
from toytf.experiments.process import cpu_threads
from toytf.memory.problem import StorageProblem
from toytf.memory.rank import decide_rank
from toytf.memory.rules import BUILDERS, TRAINERS, Material, Training
from toytf.memory.search import Bracket, bisect, half_point, run_together
from toytf.memory.solver import Status, decide
from toytf.memory.stream import AssociationStream
from toytf.randomness import generator
from toytf.runs import Run

DECOUPLED = "_decoupled"

NEAR = 0.05
"""A margin this small means that capacity is within some percent: there, not knowing is an answer."""

WORTH_TWO_THREADS = 2**24
"""Multiplications of one scoring below which a second thread brings little, and costs much on a busy machine."""


@dataclass(frozen=True)
class Case:
    """One rule at one size: what a row of the result table is about."""

    rule: str
    size: Size
    width: int | None = None

    @property
    def d_in(self) -> int:
        """The dimension of the keys."""
        return sides(self.size)[0]

    @property
    def d_out(self) -> int:
        """The dimension of the values."""
        return sides(self.size)[1]

    @property
    def name(self) -> str:
        """Such as `optimum_d64`, or `mlp_h2_d64_m512`."""
        size = f"d{self.size}" if isinstance(self.size, int) else f"d{self.d_in}x{self.d_out}"
        return f"{self.rule}_{size}" + (f"_m{self.width}" if self.width else "")

    @property
    def certified(self) -> bool:
        """Does the solver decide it, so that what is not stored cannot be?"""
        return self.rule.removesuffix(DECOUPLED) == "optimum"

    @property
    def n_parameters(self) -> int:
        """Entries of the matrix, or of the two matrices of a rule with a width."""
        return self.width * (self.d_in + self.d_out) if self.width else self.d_in * self.d_out


def cases(config: CapacityConfig) -> Iterator[Case]:
    """Every rule at every size, and width if it has one."""
    for rule in config.rules:
        for size in config.dimensions:
            if rule in WIDE:
                yield from (Case(rule, size, width) for width in config.widths)
            else:
                yield Case(rule, size)


def run_capacity(config: CapacityConfig, run: Run) -> None:
    """Search every capacity, then fit exponents."""
    jobs = {f"capacity/{case.name}": partial(_measure, config, case) for case in cases(config)}
    run_jobs(config, run, jobs, partial(_exponents, config))


def predicted_capacity(config: CapacityConfig, case: Case) -> float | None:
    """What the theory says for this case; None where it has no finite-size law."""
    rule, n_answers = case.rule, config.data.n_answers
    if min(case.d_in, case.d_out) == 1:
        return None  # the laws are for many dimensions
    all_of_them = config.criterion == "all"
    if rule in ("optimum", "optimum_decoupled", "trained_linear") and all_of_them:
        return theory.capacity(case.d_in, case.d_out, n_values=n_answers, shared=not rule.endswith(DECOUPLED))
    if rule in ("low_rank_optimum", "trained_low_rank") and all_of_them:
        return theory.capacity(case.d_in, case.d_out, rank=case.width, n_values=n_answers)
    one_to_one_on_sphere = n_answers is None and config.data.law == "sphere"
    if rule.removesuffix(DECOUPLED) == "hebbian" and one_to_one_on_sphere and case.d_in == case.d_out:
        accuracy = None if config.criterion == "all" else config.criterion
        crosstalk = 1.0 if rule.endswith(DECOUPLED) else 2.0
        return theory.hebbian_capacity(case.d_in, accuracy=accuracy, crosstalk=crosstalk)
    return None


def _measure(config: CapacityConfig, case: Case, seeds: Sequence[int], stopping: Callable[[], bool]) -> Rows:
    predicted = predicted_capacity(config, case)
    guess = _first_guess(config, case) if predicted is None else predicted
    for group in [seeds] if case.certified else [[seed] for seed in seeds]:  # the solver decides all seeds as one batch
        with cpu_threads(config.threads if guess**2 * case.d_out > WORTH_TWO_THREADS else 1):
            if case.rule in EXACT or case.rule in TRAINERS:
                found = _search(config, case, group, guess, stopping)
            else:
                found = {seed: _half_point(config, case, seed, guess, stopping) for seed in group}
        for seed in group:
            yield seed, _row(config, case, found[seed], predicted)


def _row(config: CapacityConfig, case: Case, bracket: Bracket, predicted: float | None) -> dict[str, float]:
    """The metrics of one case and seed."""
    p = bracket.estimate
    error = 0.0 if config.criterion == "all" else 1 - config.criterion
    n = max(round(p), 1)
    bits = theory.bits_to_store(n, config.data.n_answers or n, error=error)
    row = {
        f"capacity/{case.name}": p,
        f"facts_per_parameter/{case.name}": p / case.n_parameters,
        f"bits_per_parameter/{case.name}": bits / case.n_parameters,
    }
    if bracket.feasible:
        row[f"capacity/{case.name}/feasible"] = float(bracket.feasible)
    if bracket.infeasible is not None:
        row[f"capacity/{case.name}/{'infeasible' if case.certified else 'not_found'}"] = float(bracket.infeasible)
    if predicted is not None:
        row[f"theory/capacity/{case.name}"] = predicted
        row[f"over_theory/{case.name}"] = p / predicted
    if config.data.n_answers is None:
        row[f"load/{case.name}"] = theory.load(max(p, 1.0), case.d_in, case.d_out)
        if predicted is not None:
            row[f"theory/load/{case.name}"] = theory.load(max(predicted, 1.0), case.d_in, case.d_out)
    return row


def _first_guess(config: CapacityConfig, case: Case) -> float:
    """Where to begin when there is no law: the order of magnitude of a one-shot rule."""
    if config.data.n_answers is not None:
        return max(2.0, 0.2 * case.d_in)
    if case.width and case.rule.startswith(("mlp", "trained_mlp")):
        return max(2.0, (1.0 if case.rule == "trained_mlp" else 0.01) * case.width * case.d_in)
    return max(2.0, 0.05 * case.d_in * min(case.d_out, case.width or case.d_out))


def _stream(config: CapacityConfig, case: Case, seed: int, draw: int = 0) -> AssociationStream:
    return AssociationStream(
        seed,
        case.d_in,
        case.d_out,
        law=config.data.law,
        n_answers=config.data.n_answers,
        own_rivals=case.rule.endswith(DECOUPLED),
        purpose=f"draw {draw}",
        device=config.device,
    )


def _search(
    config: CapacityConfig, case: Case, seeds: Sequence[int], guess: float, stopping: Callable[[], bool]
) -> dict[int, Bracket]:
    """Bisection of one stream per seed, all seeds in step."""
    streams = {seed: _stream(config, case, seed) for seed in seeds}

    def ask(questions: dict[int, int]) -> dict[int, Status]:
        _stop_if(stopping)
        if case.rule in TRAINERS or case.rule == "low_rank_optimum":
            return {seed: _try(config, case, streams[seed], n) for seed, n in questions.items()}
        problem = StorageProblem.stack([streams[seed].problem(n) for seed, n in questions.items()])
        decisions = decide(problem, tolerance=config.tolerance, iterations=config.iterations, stopping=stopping)
        for n, decision in zip(questions.values(), decisions, strict=True):
            if decision.status is Status.UNKNOWN and decision.margin_upper > NEAR:
                raise UserError(f"iterations = {config.iterations} are too few to decide on {n} pairs: allow for more")
        return {seed: decision.status for seed, decision in zip(questions, decisions, strict=True)}

    return run_together({seed: bisect(guess, config.resolution) for seed in seeds}, ask)


def _try(config: CapacityConfig, case: Case, stream: AssociationStream, n: int) -> Status:
    """Look for a memory without a certificate: not found counts as infeasible, so the capacity is a lower bound."""
    association = stream.prefix(n)
    if case.rule == "low_rank_optimum":
        found = decide_rank(association, case.width or 0, iterations=config.iterations).status is Status.FEASIBLE
    else:
        goal = 1.0 if config.criterion == "all" else config.criterion
        training = Training(config.trained.lr, config.trained.steps, goal)
        material = Material(association, generator(stream.seed, case.name, n), case.width or 0, training=training)
        found = TRAINERS[case.rule](material).recall >= goal
    return Status.FEASIBLE if found else Status.INFEASIBLE


def _half_point(config: CapacityConfig, case: Case, seed: int, guess: float, stopping: Callable[[], bool]) -> Bracket:
    """Where half of many streams are stored (criterion all), or their mean recall falls to the criterion."""
    streams = [_stream(config, case, seed, draw) for draw in range(config.draws)]
    build = BUILDERS[case.rule.removesuffix(DECOUPLED)]

    def succeed(n: int) -> Float[np.ndarray, "draws"]:
        recalls = []
        for draw, stream in enumerate(streams):
            _stop_if(stopping)
            problem = stream.problem(n)
            memory = build(Material(stream.prefix(n), generator(seed, case.name, draw), case.width or 0))
            outputs = problem.keys[0] @ memory.T if isinstance(memory, torch.Tensor) else memory(problem.keys[0])
            recalls.append(float((problem.margins(outputs[None]) > 0).float().mean()))
        return np.array(recalls) == 1.0 if config.criterion == "all" else np.array(recalls)

    steep = config.criterion == "all"
    level = 0.5 if config.criterion == "all" else config.criterion
    return Bracket(0, None, half_point(succeed, guess, level, steep=steep))


def _stop_if(stopping: Callable[[], bool]) -> None:
    if stopping():
        raise Interrupted("stopped")


def _exponents(config: CapacityConfig, seeds: pd.DataFrame) -> pd.DataFrame:
    """The power of d, and of the width, that capacity grows with: least squares in logarithms, seed by seed.

    `…/error` is the standard error of the slope, from how far the points are off the line.
    """
    fits = {}
    lines: dict[str, list[tuple[float, str]]] = {}
    for case in cases(config):
        suffix = f"_m{case.width}" if case.width else ""
        lines.setdefault(f"exponent/{case.rule}{suffix}", []).append((math.sqrt(case.d_in * case.d_out), case.name))
        if case.width:
            by_width = f"width_exponent/{Case(case.rule, case.size).name}"
            lines.setdefault(by_width, []).append((case.width, case.name))
    for name, points in lines.items():
        x = np.log([size for size, _ in points])
        if len(set(x)) > 1:
            for prefix in ("", "theory/"):
                columns = [f"{prefix}capacity/{case}" for _, case in points]
                if set(columns) <= set(seeds.columns) and (seeds[columns] > 0).all(axis=None):
                    y = np.log(seeds[columns].to_numpy().T)
                    slope, level = np.polyfit(x, y, 1)
                    fits[f"{prefix}{name}"] = slope
                    if len(points) > 2 and not prefix:
                        squares = ((y - slope * x[:, None] - level) ** 2).sum(0) / (len(points) - 2)
                        fits[f"{name}/error"] = np.sqrt(squares / ((x - x.mean()) ** 2).sum())
    return pd.DataFrame(fits, index=seeds.index)
