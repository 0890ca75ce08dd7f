"""The experiments `fact_capacity` and `fact_grid`: how many facts a trained model holds, by its size.

One layer of H heads of dimension d_head and a feed-forward part of m hidden units, or none, is trained on tables of
facts (Nichani, Lee, Bietti 2024, Fig. 4). `fact_capacity` searches the largest table that models of each size learn;
`fact_grid` trains models of many sizes on one table.

A search asks whether a table can be learned, by training until an accuracy is reached. That it was not is no proof: a
longer training, another learning rate or other initial weights may do. So a capacity is what this training finds, and
a lower bound of what the model could hold.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isqrt

import numpy as np
import pandas as pd
import torch

from tasks.factual.capacity_config import (
    N_ANSWERS,
    FactCapacityConfig,
    FactGridConfig,
    FactTrainingsConfig,
    head_dimension,
    hidden_units,
)
from tasks.factual.config import FactualConfig
from toytf import theory
from toytf.compose import overlay, read_config
from toytf.errors import Interrupted
from toytf.experiments.jobs import Rows, run_jobs
from toytf.experiments.process import cpu_threads
from toytf.memory.search import Bracket, bisect, run_together
from toytf.memory.solver import Status
from toytf.models.config import ModelConfig
from toytf.randomness import generator
from toytf.runs import Run
from toytf.training.build import build_model, build_task
from toytf.training.config import AdamWConfig, TrainConfig
from toytf.training.evaluate import goal_metrics
from toytf.training.freezing import trainable_at
from toytf.training.learner import SeedLearner, build_optimizer
from toytf.training.loop import training_step

BEGIN = {True: 0.1, False: 0.05}
"""Facts per parameter from which a search begins, with and without a feed-forward part.

Below what is expected: what can be learned ends early, what cannot takes all steps at all learning rates.
"""

FEWEST = 2
"""The smallest S that is tried: if it fails, there is no capacity to report."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model."""

    d_model: int
    n_heads: int
    d_head: int
    width: int
    """Hidden units; 0: no feed-forward part."""

    @property
    def n_parameters(self) -> int:
        """4 H d_head d + 2 m d."""
        return theory.recall_parameters(self.n_heads, self.d_head, self.d_model, self.width)

    @property
    def model(self) -> ModelConfig:
        """The one-layer model of factual recall, configs/models/factual.yaml, in these sizes."""
        given = read_config("configs/models/factual.yaml")["model"]
        sizes = {"d_model": self.d_model, "attention": {"n_heads": self.n_heads, "d_head": self.d_head}}
        hidden = {**given["feed_forward"], "width": self.width} if self.width else {"kind": "none"}
        return ModelConfig.model_validate(overlay(given, sizes) | {"feed_forward": hidden})


@dataclass(frozen=True)
class TableSize:
    """S subjects, R relations, D answers of each relation."""

    S: int
    R: int
    D: int

    @property
    def n_facts(self) -> int:
        """S R."""
        return self.S * self.R


@dataclass(frozen=True)
class Trial:
    """A model and a table that it should learn; both are drawn by the seed."""

    sizes: Sizes
    table: TableSize
    seed: int


@dataclass(frozen=True)
class Case:
    """A dimension and a mix of attention and hidden units: what a row of the result table is about."""

    d_model: int
    alpha: float
    beta: float
    n_heads: int

    @property
    def mix(self) -> str:
        """Such as `a1_b2`."""
        return f"a{self.alpha:g}_b{self.beta:g}"

    @property
    def name(self) -> str:
        """Such as `d32_a1_b2`."""
        return f"d{self.d_model}_{self.mix}"

    @property
    def sizes(self) -> Sizes:
        """The model."""
        d_head = head_dimension(self.alpha, self.d_model, self.n_heads)
        return Sizes(self.d_model, self.n_heads, d_head, hidden_units(self.beta, self.d_model))


def cases(config: FactCapacityConfig) -> Iterator[Case]:
    """Every mix at every dimension."""
    for alpha, beta in config.mixes:
        yield from (Case(d, alpha, beta, config.n_heads) for d in config.dimensions)


def table_of(config: FactCapacityConfig, S: int) -> TableSize:
    """The table of S subjects, by how the config lets tables grow."""
    D = S if config.table == "distinct" else config.n_answers or N_ANSWERS
    return TableSize(S, isqrt(S) if config.table == "square" else S, D)


def run_fact_capacity(config: FactCapacityConfig, run: Run) -> None:
    """Search every capacity, then fit how they grow with the parameters."""
    jobs = {f"trainings/{case.name}": partial(_measure, config, case) for case in cases(config)}
    run_jobs(config, run, jobs, partial(_conclude, config))


def _measure(config: FactCapacityConfig, case: Case, seeds: Sequence[int], stopping: Callable[[], bool]) -> Rows:
    for seed in seeds:
        with cpu_threads(config.threads):
            bracket, n_trainings = search(config, case, seed, stopping)
        yield seed, {f"trainings/{case.name}": float(n_trainings), **_row(config, case, bracket)}


def search(config: FactCapacityConfig, case: Case, seed: int, stopping: Callable[[], bool]) -> tuple[Bracket, int]:
    """Bisection for the largest S whose table is learned, and how many trainings it took."""
    n_trainings = 0

    def ask(questions: dict[int, int]) -> dict[int, Status]:
        nonlocal n_trainings
        trial = Trial(case.sizes, table_of(config, questions[seed]), seed)
        accuracies = trained_accuracies(config, trial, stopping)
        n_trainings += len(accuracies)
        return {seed: Status.FEASIBLE if max(accuracies) >= config.goal else Status.INFEASIBLE}

    n_facts = BEGIN[case.beta > 0] * case.sizes.n_parameters
    guess = n_facts ** (2 / 3 if config.table == "square" else 1 / 2)  # S R = S^(3/2), or S²
    return run_together({seed: bisect(guess, config.resolution)}, ask)[seed], n_trainings


def _row(config: FactCapacityConfig, case: Case, bracket: Bracket) -> dict[str, float]:
    """The metrics of one case and seed; without a capacity if even the smallest table failed."""
    row, n_parameters = {}, case.sizes.n_parameters
    if bracket.infeasible is not None:
        row[f"capacity/{case.name}/not_found"] = float(table_of(config, bracket.infeasible).n_facts)
    if config.table == "equal" and config.n_answers in (None, N_ANSWERS) and case.beta > 0:
        row[f"theory/capacity/{case.name}"] = theory.FACTS_PER_PARAMETER * n_parameters
    if bracket.feasible < FEWEST:
        return row
    stored = table_of(config, bracket.feasible)
    ends = [stored.n_facts, row.get(f"capacity/{case.name}/not_found", stored.n_facts)]
    n_facts = sum(ends) / 2
    bits = theory.bits_to_store(round(n_facts), stored.D, error=1 - config.goal)
    return row | {
        f"capacity/{case.name}": n_facts,
        f"capacity/{case.name}/feasible": float(stored.n_facts),
        f"facts_per_parameter/{case.name}": n_facts / n_parameters,
        f"bits_per_parameter/{case.name}": bits / n_parameters,
    }


def trained_accuracies(config: FactTrainingsConfig, trial: Trial, stopping: Callable[[], bool]) -> list[float]:
    """The best accuracy of each training, one learning rate after the other until one reaches the goal."""
    found: list[float] = []
    for lr in config.learning_rates:
        found.append(_train(config, trial, lr, stopping))
        if found[-1] >= config.goal:
            break
    return found


def _train(config: FactTrainingsConfig, trial: Trial, lr: float, stopping: Callable[[], bool]) -> float:
    """The best accuracy of one training, which ends at the goal, after all steps, or with a loss that is not finite."""
    facts = FactualConfig(
        kind="factual",
        n_subjects=trial.table.S,
        n_relations=trial.table.R,
        n_answers=trial.table.D,
        table_seed=trial.seed % 2**32,  # seeds may be negative, those of tables not
        seq_len=config.seq_len,
    )
    task = build_task(facts, torch.device(config.device))
    train = TrainConfig(steps=config.steps, batch_size=config.batch_size, loss=task.goal, optimizer=AdamWConfig(lr=lr))
    learner = SeedLearner(build_model(trial.sizes.model, task, trial.seed), task, (), train, trial.seed)
    trainable = trainable_at(learner.model_config, learner.parameters, 0)
    for name, parameter in learner.parameters.items():
        parameter.requires_grad_(name in trainable)
    optimizer = build_optimizer(train, [learner.parameters[name] for name in sorted(trainable)])
    loss_sum, best = torch.zeros(1, device=task.device), 0.0
    for step in range(1, config.steps + 1):
        training_step(learner, optimizer, step - 1, loss_sum)
        if step % config.check_every == 0 or step == config.steps:
            if stopping():
                raise Interrupted("stopped")
            best = max(best, _accuracy(config, learner, step))
            if best >= config.goal or not bool(loss_sum.isfinite()):
                break
    return best


def _accuracy(config: FactTrainingsConfig, learner: SeedLearner, step: int) -> float:
    """On fresh sequences; what reaches the goal must do so on others too, or the luckiest of many looks would count."""
    lowest = 1.0
    for look in ("evaluation", "confirmation"):
        random = generator(learner.seed, look, step, device=learner.task.device)
        batch = learner.task.sample(config.check_sequences, random)
        lowest = min(lowest, goal_metrics(learner.model, learner.task, batch)["accuracy"])
        if lowest < config.goal:
            break
    return lowest


def _conclude(config: FactCapacityConfig, seeds: pd.DataFrame) -> pd.DataFrame:
    """What cases together say, seed by seed: powers of the parameters, the gain by hidden units, and what failed.

    parameter_exponent: slope of log facts against log parameters by least squares, over the cases that have a capacity:
    all, those with hidden units, and each mix; with its standard error. feed_forward_gain: mean facts per parameter
    with hidden units over those without, at one d.
    """
    found = pd.DataFrame([_conclusions(config, row.dropna()) for _, row in seeds.iterrows()], index=seeds.index)
    for case in cases(config):
        missing = seeds.get(f"capacity/{case.name}", pd.Series(np.nan, seeds.index)).isna()
        if missing.any():
            found[f"failed/{case.name}"] = missing.astype(float)
    return found


def _conclusions(config: FactCapacityConfig, row: "pd.Series[float]") -> dict[str, float]:
    everything, found = list(cases(config)), dict[str, float]()
    groups = {"all": everything, "feed_forward": [case for case in everything if case.beta > 0]}
    if len(config.mixes) > 1:
        groups |= {case.mix: [other for other in everything if other.mix == case.mix] for case in everything}
    for label, group in groups.items():
        points = [
            (case.sizes.n_parameters, row[f"capacity/{case.name}"]) for case in group if f"capacity/{case.name}" in row
        ]
        if len({n_parameters for n_parameters, _ in points}) > 2:
            found |= _power(f"parameter_exponent/{label}", np.log(points))
    gains = {
        f"feed_forward_gain/d{d}": _gain([case for case in everything if case.d_model == d], row)
        for d in config.dimensions
    }
    known = {name: gain for name, gain in gains.items() if gain is not None}
    if known:
        known["feed_forward_gain/all"] = float(np.exp(np.mean(np.log([*known.values()]))))
    return found | known


def _power(name: str, points: np.ndarray) -> dict[str, float]:
    """The slope through points (x, y) with its standard error; by theory facts and parameters are proportional."""
    from scipy.stats import linregress

    fit = linregress(*points.T)
    return {name: float(fit.slope), f"{name}/error": float(fit.stderr), f"theory/{name}": 1.0}


def _gain(of_one_dimension: Sequence[Case], row: "pd.Series[float]") -> float | None:
    """Facts per parameter with hidden units over those without; None if there are none of a kind, or one failed."""
    by_kind: dict[bool, list[float]] = {True: [], False: []}
    for case in of_one_dimension:
        by_kind[case.beta > 0].append(float(row.get(f"facts_per_parameter/{case.name}", np.nan)))
    gain = float(np.mean(by_kind[True]) / np.mean(by_kind[False])) if all(by_kind.values()) else np.nan
    return None if np.isnan(gain) else gain


@dataclass(frozen=True)
class Cell:
    """Numbers of heads and hidden units: a cell of the grid."""

    n_heads: int
    width: int

    @property
    def name(self) -> str:
        """Such as `H4_m32`."""
        return f"H{self.n_heads}_m{self.width}"


def run_fact_grid(config: FactGridConfig, run: Run) -> None:
    """Train every model of the grid on the table."""
    cells = [Cell(n_heads, width) for n_heads in config.heads for width in config.widths]
    run_jobs(config, run, {f"accuracy/{cell.name}": partial(_measure_cell, config, cell) for cell in cells})


def _measure_cell(config: FactGridConfig, cell: Cell, seeds: Sequence[int], stopping: Callable[[], bool]) -> Rows:
    sizes = Sizes(config.d_model, cell.n_heads, config.d_head, cell.width)
    table = TableSize(config.n_subjects, config.n_relations, config.n_answers)
    for seed in seeds:
        with cpu_threads(config.threads):
            best = max(trained_accuracies(config, Trial(sizes, table, seed), stopping))
        yield seed, {f"accuracy/{cell.name}": best}
