"""Seeds of a training stacked into one tensor program, against one after the other: whole steps, data included."""

from typing import Any

import torch

from toytf.bench import in_turns
from toytf.build import build_model, build_task
from toytf.config.plugins import load_config
from toytf.training.freezing import freeze
from toytf.training.learner import SeedLearner, StackedLearner

from .training import learner_of, step_of

MEMBERS = 16
ROUNDS = 10
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ratio": ("factual/quick", {"train.batch_size": 1024}),
    "ratio_256": ("factual/quick", {"train.batch_size": 256}),
    "ratio_64": ("factual/quick", {"train.batch_size": 64}),
    "attention_only_256": ("factual/quick", {"train.batch_size": 256, "model.feed_forward": {"kind": "none"}}),
    "bigram_small": ("quickstart", {"task.seq_len": 16, "train.batch_size": 8, "model.d_model": 32}),
}


def measure() -> dict[str, float]:
    """Steps of 16 seeds one by one, over one step of their stack, on one thread.

    ratio: factual quick at its batch of 1024; ratio_256, ratio_64: at smaller ones; attention_only_256: without hidden
    units; bigram_small: a quickstart of sequences of 16, a batch of 8 and d = 32.
    """
    torch.set_num_threads(1)
    return {name: _ratio(*case) for name, case in CASES.items()}


def _ratio(path: str, overrides: dict[str, Any]) -> float:
    config: Any = load_config(path, overrides)
    ways = {"alone": step_of(learner_of(config)), "stacked": step_of(stack_of(config, MEMBERS))}
    seconds = in_turns(ways, ROUNDS, calls=4)
    return MEMBERS * seconds["alone"] / seconds["stacked"]


def stack_of(config: Any, n_members: int) -> StackedLearner:
    """So many seeds, frozen as the config says."""
    task = build_task(config.task, torch.device("cpu"))
    members = [
        SeedLearner(build_model(config.model, task, seed), task, [], config.train, seed) for seed in range(n_members)
    ]
    for member in members:
        freeze(config.model, member.parameters, 0)
    learner = StackedLearner(members)
    freeze(config.model, learner.parameters, 0)
    return learner
