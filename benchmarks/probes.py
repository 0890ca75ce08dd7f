"""Evaluations with their probes, against training steps."""

from typing import Any

import torch

from toytf.bench import in_turns
from toytf.build import build_probe
from toytf.config.plugins import load_config

from .training import learner_of, step_of

MANY_FACTS = {"task.n_subjects": 1250, "task.n_relations": 4, "task.n_answers": 1250, "train.steps": 20}
"""A table of 5,000 facts and 5,000 answers, the largest that probes have to look at; it is not trained to its end."""

CASES: dict[str, tuple[str, dict[str, int], int]] = {
    "bigram": ("configs/quickstart.yaml", {}, 4),
    "factual": ("configs/factual/quick.yaml", {}, 4),
    "many_facts": ("configs/factual/quick.yaml", MANY_FACTS, 2),
}
"""By name: a config, how it is changed, and rounds."""


def measure() -> dict[str, float]:
    """Evaluations in training steps, on one thread, of a model after the steps that its config says.

    ratio: the largest …_ratio. …_ratio: the last evaluation of a run, with all its probes, in training steps;
    …_seconds: the same in seconds. …_of_training (bigram, factual): all evaluations of a run over all its steps.
    """
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    for name in CASES:
        found |= _case(name)
    return {"ratio": max(found[f"{name}_ratio"] for name in CASES), **found}


def _case(name: str) -> dict[str, float]:
    path, overrides, rounds = CASES[name]
    config: Any = load_config(path, overrides)
    learner, train = learner_of(config), config.train
    learner.probes = tuple(build_probe(probe) for probe in config.probes)
    step = step_of(learner)
    for _ in range(train.steps):
        step()
    seconds = in_turns({"step": step, "last": lambda: learner.evaluate(train.steps)}, rounds)
    found = {f"{name}_ratio": seconds["last"] / seconds["step"], f"{name}_seconds": seconds["last"]}
    if not overrides:
        every = train.evaluation.every
        seconds |= in_turns({"step": step, "evaluation": lambda: learner.evaluate(every)}, rounds, calls=5)
        before = -(-train.steps // every)  # those ahead of the last, with the one of step 0
        evaluations = before * seconds["evaluation"] + seconds["last"]
        found[f"{name}_of_training"] = evaluations / (train.steps * seconds["step"])
    return found
