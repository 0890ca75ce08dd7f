"""The learned memories of a model as matrices, and measures of them as metrics."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.memory import Association
from toytf.memory.association import Readable
from toytf.memory.measures import Measured
from toytf.models.transformer import Slot, ToyTransformer
from toytf.task import Reference, Task


@dataclass(frozen=True, eq=False)
class Learned:
    """What a model holds where an Association should be: W [d_out d_in], all heads summed, or a non-linear map.

    rank is the width that W passes through: all heads together when it is factored; slot is where the model has it; law
    is what should be stored instead of single answers, if anything (see `toytf.task.Memory`).
    """

    name: str
    association: Association
    memory: Readable
    rank: int
    slot: Slot
    law: Float[Tensor, "n m"] | None = None


def learned_memories(model: ToyTransformer, task: Task) -> list[Learned]:
    """Every memory of the task that the model has room for; a feed-forward part is a matrix only if linear."""
    identity = torch.eye(model.config.d_model, device=model.device)
    found = []
    for name, wanted in task.memories(model).items():
        read: Readable = partial(model.read, wanted.slot)
        if _is_linear(model, wanted.slot):
            read = model.read(wanted.slot, identity).T  # the model has x @ W, an Association W e
        rank = _width(model, wanted.slot)
        found.append(Learned(name, wanted.association, read, rank, wanted.slot, wanted.law))
    return found


def learned_matrices(model: ToyTransformer, task: Task) -> list[tuple[Learned, Tensor]]:
    """Those of the learned memories that are a matrix, and the matrix."""
    return [(held, held.memory) for held in learned_memories(model, task) if isinstance(held.memory, Tensor)]


def have_diverged(learned: Iterable[Learned]) -> bool:
    """Are there vectors that are not numbers? Then no ideal matrix is known to compare with."""
    return not all(
        bool(x.isfinite().all()) for held in learned for x in (held.association.keys, held.association.values)
    )


def as_metrics(measured: Iterable[tuple[str, Measured]]) -> tuple[dict[str, float], dict[str, Reference]]:
    """Metrics named `<prefix>_<measure>` with their predictions, for pairs of a prefix and measures."""
    metrics: dict[str, float] = {}
    references: dict[str, Reference] = {}
    for prefix, found in measured:
        metrics |= {f"{prefix}_{name}": value for name, value in found.metrics.items()}
        references |= {f"{prefix}_{name}": Reference(theory=value) for name, value in found.theory.items()}
    return metrics, references


def worst_pairs(held: Learned, unit: float, limit: int) -> list[str]:
    """The pairs with the smallest margins, as "key → target: margin 0.12 before rival"; behind it, if not recalled."""
    stored = held.association
    margins = stored.margins(held.memory) / unit
    rivals = stored.scores(held.memory).scatter(1, stored.targets[:, None], -torch.inf).argmax(1)
    return [
        f"{stored.key_name(z)} → {stored.value_name(int(stored.targets[z]))}: margin {float(margins[z]):.2f} "
        f"{'before' if margins[z] > 0 else 'behind'} {stored.value_name(int(rivals[z]))}"
        for z in margins.argsort().tolist()[:limit]
        if margins[z].isfinite()
    ]


def _is_linear(model: ToyTransformer, slot: Slot) -> bool:
    feed_forward = model.feed_forward(slot.layer) if slot.part == "FF" else None
    return feed_forward is None or feed_forward.linear


def _width(model: ToyTransformer, slot: Slot) -> int:
    attention, d = model.config.attention, model.config.d_model
    factored = {"KQ": attention.kq == "factored", "OV": attention.ov == "factored", "FF": False}[slot.part]
    return min(d, attention.n_heads * model.config.d_head) if factored else d
