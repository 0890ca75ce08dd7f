"""Does a model of some size learn a table of some size? One training after another until one does.

One layer of H heads of dimension d_head and a feed-forward part of m hidden units, or none, is trained on tables of
facts (Nichani, Lee, Bietti 2024, Fig. 4), from several initialisations at once. That a table was not learned is no
proof: a longer training, another learning rate or still other initial weights may do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from tasks.factual.capacity.config import FactCapacityConfig
from tasks.factual.config import FactualConfig
from toytf import theory
from toytf.build import build_model, build_task
from toytf.config.compose import overlay, read_config
from toytf.evaluation import goal_metrics
from toytf.models.config import ModelConfig
from toytf.randomness import generator
from toytf.training.config import AdamWConfig, TrainConfig
from toytf.training.driver import Trainer, drive
from toytf.training.learner import SeedLearner, StackedLearner
from toytf.training.stacking import MOST, even_parts, worth_stacking


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


def trained_accuracies(config: FactCapacityConfig, trials: Sequence[Trial]) -> list[list[float]]:
    """The best accuracy of each training of every trial: all initialisations at one learning rate, then at the next.

    It goes on until one reaches the goal. Trials differ only in their seeds; where steps are small, they are trained as
    one tensor program.
    """
    found: list[list[float]] = [[] for _ in trials]
    for lr in config.learning_rates:
        left = [i for i, accuracies in enumerate(found) if max(accuracies, default=0.0) < config.goal]
        at_once = max(1, MOST // config.initializations)
        for some in even_parts(left, math.ceil(len(left) / at_once)):
            for i, accuracies in zip(some, _train(config, [trials[i] for i in some], lr), strict=True):
                found[i] += accuracies
    return found


def initialization_seed(seed: int, number: int) -> int:
    """The seed by which an initialisation draws its model and its sequences; that of the first is the seed itself."""
    return generator(seed, "initialization", number).initial_seed() if number else seed


def _learners(config: FactCapacityConfig, trial: Trial, lr: float) -> list[SeedLearner]:
    """All initialisations of a trial: models of their own that learn the same table."""
    facts = FactualConfig(
        kind="factual",
        n_subjects=trial.table.S,
        n_relations=trial.table.R,
        n_answers=trial.table.D,
        table_seed=trial.seed % 2**32,  # seeds may be negative, those of tables not
        seq_len=config.seq_len,
    )
    task = build_task(facts, torch.device(config.device))
    optimizer = AdamWConfig(lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)  # as in the code of the paper
    train = TrainConfig(steps=config.steps, batch_size=config.batch_size, loss=task.goal, optimizer=optimizer)
    seeds = [initialization_seed(trial.seed, number) for number in range(config.initializations)]
    return [SeedLearner(build_model(trial.sizes.model, task, seed), task, (), train, seed) for seed in seeds]


def _train(config: FactCapacityConfig, trials: Sequence[Trial], lr: float) -> list[list[float]]:
    """The best accuracy of every initialisation of each trial, all trained side by side.

    At every look those of a table that one of them has learned end; so does one that has diverged. From `prune_at` on
    only the best of each table goes on.
    """
    rivals = [_learners(config, trial, lr) for trial in trials]
    learners = [learner for of_table in rivals for learner in of_table]
    first, sizes = learners[0], learners[0].task.config.sizes()
    stacked = sizes is not None and worth_stacking(first.config, first.model_config, sizes) > 1
    programs = [StackedLearner(learners)] if stacked else learners  # however many there are: bits depend on it
    trainers = [Trainer(program, first.config) for program in programs]
    best, diverged = dict.fromkeys(learners, 0.0), set[SeedLearner]()
    for step in chain(range(config.check_every, config.steps, config.check_every), [config.steps]):
        for trainer in trainers:
            drive(trainer, until=step)
        for trainer in trainers:
            for learner, wrong in zip(trainer.learner.members, trainer.diverged(), strict=True):
                best[learner] = max(best[learner], _accuracy(config, learner, step))
                if wrong is not None:
                    diverged.add(learner)
        going = set[SeedLearner]()
        for of_table in rivals:
            able = [learner for learner in of_table if learner not in diverged]
            if step >= config.prune_at * config.steps:
                able = sorted(able, key=lambda learner: -best[learner])[:1]
            if max(best[learner] for learner in of_table) < config.goal:
                going.update(able)
        kept = [[i for i, one in enumerate(trainer.learner.members) if one in going] for trainer in trainers]
        trainers = [
            trainer if len(left) == len(trainer.learner.members) else trainer.of(left)
            for trainer, left in zip(trainers, kept, strict=True)
            if left
        ]
        if not trainers:
            break
    return [[best[learner] for learner in of_table] for of_table in rivals]


def _accuracy(config: FactCapacityConfig, learner: SeedLearner, step: int) -> float:
    """On fresh sequences; what reaches the goal must do so on others too, or the luckiest of many looks would count."""
    lowest = 1.0
    for look in ("evaluation", "confirmation"):
        random = generator(learner.seed, look, step, device=learner.task.device)
        batch = learner.task.sample(config.check_sequences, random)
        lowest = min(lowest, goal_metrics(learner.model, learner.task, batch)["accuracy"])
        if lowest < config.goal:
            break
    return lowest
