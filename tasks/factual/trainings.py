"""Does a model of some size learn a table of some size? One training after another until one does.

One layer of H heads of dimension d_head and a feed-forward part of m hidden units, or none, is trained on tables of
facts (Nichani, Lee, Bietti 2024, Fig. 4). That a table was not learned is no proof: a longer training, another learning
rate or other initial weights may do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tasks.factual.capacity.config import FactTrainingsConfig
from tasks.factual.config import FactualConfig
from toytf import theory
from toytf.build import build_model, build_task
from toytf.config.compose import overlay, read_config
from toytf.evaluation import goal_metrics
from toytf.models.config import ModelConfig
from toytf.randomness import generator
from toytf.stopping import check_stop
from toytf.training.config import AdamWConfig, TrainConfig
from toytf.training.learner import SeedLearner, StackedLearner
from toytf.training.loop import Trainer
from toytf.training.stacking import even_parts, worth_stacking


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


def trained_accuracies(config: FactTrainingsConfig, trials: Sequence[Trial]) -> list[list[float]]:
    """The best accuracy of each training of every trial, one learning rate after the other until one reaches the goal.

    Trials differ only in their seeds; where steps are small, they are trained as one tensor program.
    """
    found: list[list[float]] = [[] for _ in trials]
    for lr in config.learning_rates:
        left = [i for i, accuracies in enumerate(found) if max(accuracies, default=0.0) < config.goal]
        if left:
            learners = [_learner(config, trials[i], lr) for i in left]
            stacks = even_parts(learners, math.ceil(len(left) / _worth_stacking(learners[0])))
            bests = [best for stack in stacks for best in _train(config, stack)]
            for i, best in zip(left, bests, strict=True):
                found[i].append(best)
    return found


def _learner(config: FactTrainingsConfig, trial: Trial, lr: float) -> SeedLearner:
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
    return SeedLearner(build_model(trial.sizes.model, task, trial.seed), task, (), train, trial.seed)


def _worth_stacking(learner: SeedLearner) -> int:
    sizes = learner.task.config.sizes()
    return 1 if sizes is None else worth_stacking(learner.config, learner.model_config, sizes)


def _train(config: FactTrainingsConfig, learners: Sequence[SeedLearner]) -> list[float]:
    """The best accuracy of each; a training ends at the goal, after all steps, or with a loss that is not finite."""
    best = dict.fromkeys(learners, 0.0)
    stacked = _worth_stacking(learners[0]) > 1  # however many are left: bits depend on it
    trainer = Trainer(StackedLearner(learners) if stacked else learners[0], learners[0].config)
    while trainer.step < config.steps:
        for step in trainer.steps():
            if step % config.check_every == 0 or step == config.steps:
                check_stop()
                finite = trainer.loss_sum.isfinite().tolist()
                for learner in trainer.learner.members:
                    best[learner] = max(best[learner], _accuracy(config, learner, step))
                members = enumerate(trainer.learner.members)
                left = [i for i, learner in members if best[learner] < config.goal and finite[i]]
                if not left:
                    return [*best.values()]
                if len(left) < len(finite):
                    trainer = trainer.of(left)
                    break
    return [*best.values()]


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
