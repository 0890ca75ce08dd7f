"""The learned memories of a model as matrices."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.holder import memories
from toytf.measurement import Measurement
from toytf.memory import Association
from toytf.memory.association import Readable, right_and_rivals
from toytf.models.transformer import Slot, ToyTransformer
from toytf.probe import shared
from toytf.task import Task


@dataclass(frozen=True, eq=False)
class Learned:
    """What a model holds where an Association should be: W [d_out d_in], all heads summed, or a non-linear map.

    slot is where the model has it; conditional is p(y|z), if that should be stored instead of single answers (see
    `toytf.task.Memory`).
    """

    name: str
    association: Association
    memory: Readable
    slot: Slot
    conditional: Float[Tensor, "n m"] | None = None

    def named(self, measured: Iterable[Measurement]) -> list[Measurement]:
        """Measurements as those of this memory."""
        return [one.placed({"memory": self.name}) for one in measured]


@shared
@torch.no_grad()
def learned_memories(model: ToyTransformer, task: Task) -> list[Learned]:
    """Every memory of the task that the model has room for; a feed-forward part is a matrix only if linear."""
    identity = torch.eye(model.config.d_model, device=model.device)
    found = []
    for name, wanted in memories(model, task).items():
        read: Readable = partial(model.read, wanted.slot)
        feed_forward = model.feed_forward(wanted.slot.layer) if wanted.slot.part == "FF" else None
        if feed_forward is None or feed_forward.linear:
            read = model.read(wanted.slot, identity).T  # the model has x @ W, an Association W e
        found.append(Learned(name, wanted.association, read, wanted.slot, wanted.conditional))
    return found


def cosine(X: Float[Tensor, "n m"], ideal: Float[Tensor, "n m"]) -> float | None:
    """⟨X, X*⟩ / (|X| |X*|) over the entries of X above −∞; None if one of the two is 0 or ∞."""
    competes = ~X.isneginf()
    x, y = X[competes], ideal[competes]
    norms = float(x.norm() * y.norm())
    return float((x * y).sum()) / norms if 0 < norms < math.inf else None


def worst_pairs(stored: Association, memory: Readable, unit: float, limit: int) -> list[str]:
    """The pairs with the smallest margins, as "key → target: margin 0.12 before rival"; behind it, if not recalled."""
    margins = stored.margins(memory) / unit
    rivals = right_and_rivals(stored.scores(memory), stored.targets)[1].argmax(1)
    return [
        f"{stored.key_name(z)} → {stored.value_name(int(stored.targets[z]))}: margin {float(margins[z]):.2f} "
        f"{'ahead of' if margins[z] > 0 else 'behind'} {stored.value_name(int(rivals[z]))}"
        for z in margins.argsort().tolist()[:limit]
        if margins[z].isfinite()
    ]
