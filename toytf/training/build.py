"""From configs to the things they configure."""

from typing import cast

import torch

from toytf.errors import UserError, nearest
from toytf.models.config import ModelConfig
from toytf.models.transformer import ToyTransformer
from toytf.plugins import ProbeConfig, TaskConfig, implementation
from toytf.probe import Probe
from toytf.randomness import generator
from toytf.task import Task


def pick_device(name: str) -> torch.device:
    """The named device, with its index if it has one; `auto` is a GPU if there is one."""
    if name == "auto":
        name = str(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    kinds = ("cpu", "cuda", "mps", "xpu")
    if name.partition(":")[0] not in kinds:
        raise UserError(f'device = "{name}" is not known: {nearest(name, ("auto", *kinds))}')
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        raise UserError(f'device = "{name}": there is none here') from None


def build_task(config: TaskConfig, device: torch.device) -> Task:
    """A task on a device."""
    return cast(Task, implementation(config)(config, device))


def build_probe(config: ProbeConfig) -> Probe:
    """A probe."""
    return cast(Probe, implementation(config)(config))


def build_model(config: ModelConfig, task: Task, seed: int) -> ToyTransformer:
    """A model of the task's sizes on the task's device; drawn on the CPU, so that a seed is the same everywhere."""
    model = ToyTransformer(
        config,
        n_tokens=len(task.token_names),
        n_positions=task.n_positions,
        n_outputs=len(task.output_names),
        generator=generator(seed, "model"),
    ).to(task.device)
    if config.init == "ideal":
        task.ideal(model, config.beta)
    return model
