"""From configs to the things they configure."""

from collections.abc import Mapping
from typing import cast

import torch

from toytf.config.plugins import ProbeConfig, TaskConfig, implementation
from toytf.errors import UserError, nearest, shortened
from toytf.models.config import ModelConfig
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe
from toytf.randomness import generator
from toytf.task import Task


def pick_device(name: str) -> torch.device:
    """The named device, with its index if it has one; `auto` is a GPU if there is one."""
    if name == "auto":
        name = str(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    kinds = ("cpu", "cuda", "mps", "xpu")
    if name.partition(":")[0] not in kinds:
        raise UserError(f'device = "{shortened(name)}" is not known: {nearest(name, ("auto", *kinds))}')
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):
        why = ""
        if name.startswith("cuda") and torch.version.cuda is None:
            install = "install a build with CUDA, as the PyTorch site says"
            why = f" (torch {torch.__version__} is built without CUDA: {install})"
        raise UserError(f'device = "{name}": this machine has none{why}') from None


def build_task(config: TaskConfig, device: torch.device) -> Task:
    """A task on a device."""
    return cast(Task, implementation(config)(config, device))


def build_evaluate_on(configs: Mapping[str, TaskConfig], task: Task) -> dict[str, Task]:
    """The task as each entry of `evaluate_on` changes it; the model must be able to read and answer them all."""
    found: dict[str, Task] = {}
    for name, config in configs.items():
        try:
            other = found[name] = build_task(config, task.device)
        except UserError as error:
            raise UserError(f"evaluate_on.{name}: {error}") from None
        if (other.token_names, other.output_names) != (task.token_names, task.output_names):
            raise UserError(f"evaluate_on.{name} changes the vocabulary: it must stay that of the task")
        if other.n_positions > task.n_positions:
            raise UserError(
                f"evaluate_on.{name} has sequences of {other.n_positions} tokens: "
                f"at most {task.n_positions}, as in the task"
            )
    return found


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
        task.ideal(model, config.beta, config.ideal_memories)
    return model
