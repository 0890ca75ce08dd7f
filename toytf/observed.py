"""One forward of a model for all probes that look at it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.evaluation import goal_metrics
from toytf.models.transformer import ToyTransformer
from toytf.probe import shared
from toytf.task import Batch, Task


@dataclass(frozen=True, eq=False)
class Observed:
    """What a model does on a batch."""

    logits: Float[Tensor, "batch t output"]
    patterns: tuple[Float[Tensor, "batch head t t"], ...]
    """The attention of every layer."""


@shared
@torch.no_grad()
def observed(model: ToyTransformer, batch: Batch) -> Observed:
    """Logits and attention patterns, by one forward at all positions."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.config.n_layers)]
    logits, seen = model.observe(batch.tokens, *names)
    return Observed(logits, tuple(seen[name] for name in names))


@shared
def at_goal(model: ToyTransformer, task: Task, batch: Batch) -> Mapping[str, float]:
    """`goal_metrics` of the model as it is, which a changed one is compared with."""
    return goal_metrics(model, task, batch)
