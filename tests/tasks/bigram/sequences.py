"""Sequences of the bigram task, what follows their triggers by brute force, and models that read them."""

from typing import Any

import torch

from tasks.bigram.config import BigramConfig
from tasks.bigram.task import BigramTask, count_triggers
from toytf.models import ToyTransformer
from toytf.models.config import ModelConfig
from toytf.randomness import generator
from toytf.task import Batch

N = 65


def make(**fields: Any) -> BigramTask:
    return BigramTask(BigramConfig(kind="bigram", **fields), torch.device("cpu"))


def sample(n: int = 200, seed: int = 0, **fields: Any) -> Batch:
    return make(**fields).sample(n, generator(seed, "batch"))


def drawn_by_hand(task: BigramTask) -> Batch:
    """The sequence that the module of the task draws: its triggers are e and t, which drew k and e."""
    z, triggers = (torch.tensor([[task.token_names.index(name) for name in names]]) for names in ("hekatek␣teka", "et"))
    counter = count_triggers(z[:, :-1], triggers)
    roles = {
        "all": counter >= 0,
        "in_context": counter >= 2,
        "first_seen": counter == 1,
        "trigger": counter >= 1,
        "global": counter == 0,
    }
    return Batch(z[:, :-1], z[:, 1:], roles, {"triggers": triggers, "counter": counter})


def output_maps(batch: Batch) -> list[dict[int, int]]:
    triggers, outputs = batch.latents["triggers"].tolist(), batch.latents["outputs"].tolist()
    return [dict(zip(q, o, strict=True)) for q, o in zip(triggers, outputs, strict=True)]


def is_trapped(token: int, output_of: dict[int, int]) -> bool:
    """Does following outputs from this trigger lead through triggers for ever?"""
    visited: set[int] = set()
    while token in output_of:
        if token in visited:
            return True
        visited.add(token)
        token = output_of[token]
    return False


def model_for(task: BigramTask, **fields: Any) -> ToyTransformer:
    config, n = ModelConfig.model_validate({"d_model": 16, **fields}), len(task.token_names)
    return ToyTransformer(
        config, n_tokens=n, n_positions=task.n_positions, n_outputs=n, generator=generator(0, "model")
    )
