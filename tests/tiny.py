"""Configs made as small as can be: the names of their metrics, or how their runs end, do not depend on sizes."""

from pathlib import Path
from typing import Any

from tasks.bigram.noise_learning.config import NoiseLearningConfig
from tasks.bigram.three_steps.config import ThreeStepsConfig
from tasks.factual.capacity.config import FactCapacityConfig
from tasks.factual.dynamics.config import FactDynamicsConfig
from toytf.config.compose import overlay
from toytf.config.plugins import ExperimentConfig
from toytf.experiments.capacity.config import CapacityConfig
from toytf.experiments.dynamics.config import DynamicsConfig
from toytf.experiments.filling.config import FillingConfig
from toytf.experiments.optimisers.config import OptimisersConfig
from toytf.experiments.storage.config import StorageConfig
from toytf.experiments.train.config import TrainExperimentConfig

THIRD_PARTY = Path(__file__).parent / "third_party"
"""A package of strangers."""
COPY = """
experiment: train
task: {kind: copy, n_tokens: 5, seq_len: 8}
model: {d_model: 16, n_layers: 1, attention: {kq: joint, ov: joint, scale: 1}}
train: {steps: 2, batch_size: 4, evaluation: {every: 1, sequences: 16}}
probes: [memory_recall, agreement]
threads: 1
"""
"""A training of its task."""

TRAINING = {
    # enough sequences for rare triggers to come twice
    "train": {"steps": 2, "batch_size": 8, "evaluation": {"every": 1, "sequences": 64}},
    "model": {"d_model": 16},
}
LOOKED_BACK_ON = {
    "steps": 8, "batch_size": 16, "evaluation": {"every": 1, "sequences": 64}, "checkpoints": {"every": 1},
}  # fmt: skip
"""A training with a slope over its last part, and at the rates of the claims with spikes."""
TASKS: dict[str, dict[str, Any]] = {
    "association": {"n_inputs": 24},
    "bigram": {"seq_len": 32},
    "factual": {"n_subjects": 4, "n_relations": 4, "n_answers": 2, "construction": {"steps": 1}},
}
FEW_STEPS = {
    "goal": 0.15, "initializations": 1, "learning_rates": [5e-2], "steps": 10, "check_every": 5, "batch_size": 64,
    "check_sequences": 64,
}  # fmt: skip
STUDIES: dict[type, dict[str, Any]] = {
    DynamicsConfig: {"points": 2},  # small already, and a token that is never right has no metric
    NoiseLearningConfig: {"repeats": 1},
    ThreeStepsConfig: {"evaluation_samples": 64},
    # a table that is never learned has no metric: ten steps learn some more than 1 in 8, at every size
    FactCapacityConfig: {**FEW_STEPS, "resolution": 0.9, "seq_len": 3},
    # a stage that does not come has no metric: with these sizes all come, in every run
    FactDynamicsConfig: {
        "n_subjects": 8, "n_relations": 2, "n_answers": 2, "lr": 1.0, "steps": 600, "evaluate_every": 8,
    },
    OptimisersConfig: {"n_inputs": 8},  # all other sizes are in the names
}  # fmt: skip
STORAGE = {"dimension": 4, "width": 3, "n": 4, "noise_vectors": 2, "pairs": {"first": 2, "second": 2, "answers": 2}}


def tiny(config: ExperimentConfig, **more: Any) -> ExperimentConfig:
    """A config with one seed and small sizes; more: other values, as in a config file."""
    content = config.model_dump(mode="json", exclude_unset=False)
    changes: dict[str, Any] = STUDIES.get(type(config), {})
    if isinstance(config, TrainExperimentConfig):
        changes = {**TRAINING, "task": TASKS[config.task.kind]}
        if any(probe.kind == "margins_over_time" for probe in config.probes):
            changes["train"] = LOOKED_BACK_ON
        else:
            content["train"]["optimizer"] = {"kind": "sgd", "lr": 0.1}  # no metric has its name from these
            if config.model.init == "ideal":
                changes["train"] = {**TRAINING["train"], "steps": 0}  # a step on so few sequences would spoil it
    if isinstance(config, CapacityConfig):
        small = small_sizes(config)
        changes = {"dimensions": [*small["d"]], "draws": 1, "resolution": 0.9, "trained": {"steps": 50}}
        changes |= {"widths": [*small["width"]]} if config.widths else {}
    if isinstance(config, StorageConfig):
        changes = {name: value for name, value in STORAGE.items() if content[name] is not None}
    if isinstance(config, FillingConfig):
        content |= {"sizes": first_sizes(content["sizes"])}
        changes = {"train": {"steps": 2, "batch_size": 16, "evaluation": {"sequences": 64}}}
    content |= {"seeds": [0], "threads": 1, "device": "cpu", "logging": {"wandb": "off"}}
    return type(config).model_validate(overlay(overlay(content, changes), more))


def first_sizes(sizes: dict[str, Any], n: int = 2) -> dict[str, Any]:
    """The first values of every key that fills a model."""
    return {key: first_sizes(inner, n) if isinstance(inner, dict) else inner[:n] for key, inner in sizes.items()}


def small_sizes(config: CapacityConfig) -> dict[str, dict[Any, Any]]:
    """Small sizes in place of those of a capacity, by factor: what each stands for."""
    sizes = dict(zip(range(5, 12), config.dimensions, strict=False))
    widths = dict(zip(range(2, 5), config.widths, strict=False))
    assert (len(sizes), len(widths)) == (len(config.dimensions), len(config.widths))
    if config.width_ratios:
        pairs = [zip(config.widths_at(small), config.widths_at(size), strict=True) for small, size in sizes.items()]
        widths = dict(pair for of_size in pairs for pair in of_size)
        assert len(widths) == len(sizes) * len(config.width_ratios)  # no small width stands for two
    return {"d": sizes, "width": widths}
