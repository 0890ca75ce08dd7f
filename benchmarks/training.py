"""One training step of a config, to be timed."""

from collections.abc import Callable
from typing import Any

import torch

from toytf.build import build_model, build_task
from toytf.training.freezing import freeze
from toytf.training.learner import SeedLearner, build_optimizer
from toytf.updates import updates


def learner_of(config: Any, **changes: Any) -> SeedLearner:
    """A model of its own, frozen as the config says; changes are those of its section `train`."""
    task = build_task(config.task, torch.device("cpu"))
    train = config.train.model_copy(update=changes)
    learner = SeedLearner(build_model(config.model, task, 0), task, [], train, 0)
    freeze(config.model, learner.parameters, 0)
    return learner


def step_of(learner: SeedLearner) -> Callable[[], object]:
    """One training step, data and update included, to be called again and again."""
    optimizer = build_optimizer(learner.config, learner.parameters.values())
    return lambda: next(updates(optimizer, learner.backward, 1))
