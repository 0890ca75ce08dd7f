"""The learned memories of a model as matrices, and measures of them as metrics."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from toytf.memory import Association
from toytf.memory.association import Readable
from toytf.memory.measures import Measured
from toytf.models.transformer import Slot, ToyTransformer
from toytf.task import Reference, Task


@dataclass(frozen=True, eq=False)
class Learned:
    """What a model holds where an Association should be: W [d_out d_in], all heads summed, or a non-linear map.

    rank is the width that W passes through: all heads together when it is factored.
    """

    name: str
    association: Association
    memory: Readable
    rank: int


def learned_memories(model: ToyTransformer, task: Task) -> list[Learned]:
    """Every memory of the task that the model has room for; a feed-forward part is a matrix only if linear."""
    identity = torch.eye(model.config.d_model, device=model.device)
    found = []
    for name, wanted in task.memories(model).items():
        read: Readable = partial(model.read, wanted.slot)
        if _is_linear(model, wanted.slot):
            read = model.read(wanted.slot, identity).T  # the model has x @ W, an Association W e
        found.append(Learned(name, wanted.association, read, _width(model, wanted.slot)))
    return found


def learned_matrices(model: ToyTransformer, task: Task) -> list[tuple[Learned, Tensor]]:
    """Those of the learned memories that are a matrix, and the matrix."""
    return [(held, held.memory) for held in learned_memories(model, task) if isinstance(held.memory, Tensor)]


def as_metrics(measured: Iterable[tuple[str, Measured]]) -> tuple[dict[str, float], dict[str, Reference]]:
    """Metrics named `<prefix>_<measure>` with their predictions, for pairs of a prefix and measures."""
    metrics: dict[str, float] = {}
    references: dict[str, Reference] = {}
    for prefix, found in measured:
        metrics |= {f"{prefix}_{name}": value for name, value in found.metrics.items()}
        references |= {f"{prefix}_{name}": Reference(theory=value) for name, value in found.theory.items()}
    return metrics, references


def _is_linear(model: ToyTransformer, slot: Slot) -> bool:
    feed_forward = model.feed_forward(slot.layer) if slot.part == "FF" else None
    return feed_forward is None or feed_forward.linear


def _width(model: ToyTransformer, slot: Slot) -> int:
    attention, d = model.config.attention, model.config.d_model
    factored = {"KQ": attention.kq == "factored", "OV": attention.ov == "factored", "FF": False}[slot.part]
    return min(d, attention.n_heads * model.config.d_head) if factored else d
