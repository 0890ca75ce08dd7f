"""Where a model holds a memory: what should be stored there, what was learned, and how much fits."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from toytf.errors import UserError
from toytf.memory import Association
from toytf.memory.association import Readable
from toytf.memory.limits import Limits, competing
from toytf.models.config import ModelConfig
from toytf.models.transformer import Slot, ToyTransformer
from toytf.sharing import shared
from toytf.task import Memory, Task
from toytf.theory import mlp_capacity


@dataclass(frozen=True, eq=False)
class Holder:
    """A part of a model that should hold a memory.

    The association is in the vectors that the part itself reads and writes: of a feed-forward part with hidden units,
    the keys are what those give, and the memory is the matrix that reads them. A `name` has one holder for the whole
    and one for each head, or only those of the heads: then the heads together are the whole.
    """

    name: str
    association: Association
    memory: Readable
    """What was learned: W [d_out d_in], or any map."""
    n_parameters: int
    """How many numbers of it training can choose (`freedom`); 0: nobody asks how many bits each holds."""
    rank: int | None = None
    """The width that W passes through; None: it has full rank."""
    head: int | None = None
    job: str = ""
    """What it is for, in a phrase."""
    limits: Limits | None = None
    """How many pairs fit; None: as many as in a matrix of this shape and rank (`matrix_limits`)."""
    unlimited: str = ""
    """Why any number of pairs fits, in a phrase; empty: it does not."""


def is_finite(holder: Holder) -> bool:
    """Are all its vectors and answers numbers?"""
    stored, memory = holder.association, holder.memory
    answers = memory if isinstance(memory, torch.Tensor) else memory(stored.keys)
    return all(bool(x.isfinite().all()) for x in (stored.keys, stored.values, answers))


def by_name(held: Iterable[Holder]) -> dict[str, tuple[list[Holder], list[Holder]]]:
    """For each name the holders that together are the whole, and those of single heads."""
    found: dict[str, list[Holder]] = {}
    for holder in held:
        found.setdefault(holder.name, []).append(holder)
    parts = {}
    for name, own in found.items():
        heads = [holder for holder in own if holder.head is not None]
        parts[name] = ([holder for holder in own if holder.head is None] or heads, heads)
    return parts


@shared
@torch.no_grad()
def memories(model: ToyTransformer, task: Task) -> Mapping[str, Memory]:
    """The memories of the task that the model has room for."""
    return fitting(task, model)


def fitting(task: Task, model: ToyTransformer) -> Mapping[str, Memory]:
    """`task.memories`; refuses one whose vectors are not as wide as the stream that its slot reads and writes."""
    found = task.memories(model)
    for name, memory in found.items():
        slot, d = memory.slot, model.config.d_model
        says = f"task {task.config.kind}: its memory {name}"
        if slot.layer not in range(model.config.n_layers):
            raise UserError(f"{says} is in layer {slot.layer}, expected 0 to {model.config.n_layers - 1}")
        for what, vectors in (("keys", memory.association.keys), ("values", memory.association.values)):
            if vectors.shape[1] != d:
                raise UserError(f"{says} has {what} of {vectors.shape[1]} numbers, expected {d}, as model.d_model")
    return found


@torch.no_grad()
def holders(wanted: Mapping[str, Memory], model: ToyTransformer) -> Iterator[Holder]:
    """The parts of a model that should hold these memories: all heads summed, each head, or a feed-forward part.

    A memory that is a distribution has no pairs to count, and is left out.
    """
    d, n_heads = model.config.d_model, model.config.attention.n_heads
    for name, memory in wanted.items():
        slot = memory.slot
        if memory.conditional is not None:
            continue
        if slot.part == "FF":
            yield _feed_forward(name, memory, model)
            continue
        joint = model.config.attention.kq if slot.part == "KQ" else model.config.attention.ov
        width = d if joint == "joint" else model.config.d_head
        for head in (None, *range(n_heads)) if n_heads > 1 else (None,):
            together = n_heads if head is None else 1
            # The model has x @ W, an Association W e.
            W = model.read(slot, torch.eye(d, device=model.device), head=head).T
            rank = min(d, together * width)
            free, narrow = freedom(model.config, slot, together), rank if rank < d else None
            yield Holder(name, memory.association, W, free, narrow, head, memory.job, unlimited=memory.unlimited)


def freedom(config: ModelConfig, slot: Slot, n_heads: int = 1) -> int:
    """How many numbers of the sum of some heads' matrices, or of a feed-forward part, training can choose.

    W = Σ_h A_h B_hᵀ has rank r = min(d, n_heads · d_head) and 2 d r − r² degrees of freedom, d r if A or B is frozen,
    d² if it is one matrix. Of hidden units, all weights that are not frozen. A part that is frozen as a whole was
    written, and counts as if it were trained.
    """
    d = config.d_model
    if slot.part == "FF":
        both = ("W_in",) if config.feed_forward.kind == "linear" else ("W_in", "W_out")
        trained = sum(config.trains(f"blocks.{slot.layer}.mlp.{name}") for name in both)
        return d * config.width * (trained or len(both))
    joint, names = (config.attention.kq, ("W_K", "W_Q")) if slot.part == "KQ" else (config.attention.ov, ("W_V", "W_O"))
    if joint == "joint":
        return d * d
    rank = min(d, n_heads * config.d_head)
    trained = sum(config.trains(f"blocks.{slot.layer}.attn.{name}") for name in names)
    return d * rank if trained == 1 else 2 * d * rank - rank**2


def _feed_forward(name: str, memory: Memory, model: ToyTransformer) -> Holder:
    """The one matrix of a linear part, or the second of two, asked with the hidden units of each key."""
    part, stored = model.feed_forward(memory.slot.layer), memory.association
    if part is None:
        raise ValueError(f"layer {memory.slot.layer} has no feed-forward part")
    n_parameters = freedom(model.config, memory.slot)
    if part.W_out is None:
        return Holder(name, stored, part.W_in.T, n_parameters, job=memory.job, unlimited=memory.unlimited)
    hidden = replace(stored, keys=part.hidden(stored.keys))
    d, width = part.W_in.shape
    limits = None
    if competing(stored) > 1:
        limits = Limits(mlp_capacity(d, d, width, n_values=competing(stored)), mlp_capacity(d, d, width))
    return Holder(
        name, hidden, part.W_out.T, n_parameters, job=memory.job, limits=limits, unlimited=memory.unlimited
    )  # fmt: skip
