"""Training steps of a config, to be timed."""

import sys
from collections.abc import Callable
from typing import Any

import torch

from toytf.build import build_model, build_task
from toytf.process import keep_freed_memory
from toytf.training.freezing import freeze
from toytf.training.learner import Learner, SeedLearner, build_optimizer
from toytf.updates import updates


def learner_of(config: Any, **changes: Any) -> SeedLearner:
    """A model of its own, frozen as the config says; changes are those of its section `train`."""
    task = build_task(config.task, torch.device("cpu"))
    train = config.train.model_copy(update=changes)
    learner = SeedLearner(build_model(config.model, task, 0), task, [], train, 0)
    freeze(config.model, learner.parameters, 0)
    return learner


def step_of(learner: Learner) -> Callable[[], object]:
    """The next step of a training at every call, data and update included.

    A step on the same data again and again would fit one batch, and its scores would leave the range of a training.
    """
    keep_freed_memory()  # as a training does
    optimizer = build_optimizer(learner, learner.parameters.values())
    steps = updates(optimizer, learner.backward, sys.maxsize)
    return lambda: next(steps)
