"""Ideal parts that can take the place of learned ones in a trained model."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from toytf.errors import UserError
from toytf.holder import memories
from toytf.models.transformer import Slot, ToyTransformer
from toytf.task import Memory, Task


@dataclass(frozen=True, eq=False)
class Graft:
    """An ideal part of a model: which memories it holds, and how it is put into a copy of the model it is made for."""

    memories: tuple[str, ...]
    implant: Callable[[ToyTransformer], None]

    @property
    def name(self) -> str:
        """The name of its memory; those that share a part are one."""
        return "+".join(self.memories)


@torch.no_grad()
def matrix_grafts(task: Task, model: ToyTransformer, rule: str, strength: float) -> list[Graft]:
    """The matrix of a rule for every slot that holds memories with one answer for each key, and can be written.

    Hebbian:        Ŵ  →  c W*,   c = strength · ‖Ŵ‖_F / ‖W*‖_F
    others:         Ŵ  →  c' W,   with the c' that gives stored pairs, on average, the same score as c W* does

    Ŵ is the matrix that acts, such as W_KQ or W_OV, not a factor of it. Memories that share a slot are one sum. Equal
    scores are an equal temperature, so that rules differ in crosstalk only: duals of nearly dependent vectors are long,
    and their matrix has a large norm without scoring any higher.
    """
    held: dict[Slot, dict[str, Memory]] = {}
    for name, memory in memories(model, task).items():
        held.setdefault(memory.slot, {})[name] = memory
    trial, identity = copy.deepcopy(model), torch.eye(model.config.d_model, device=model.device)
    found, reason = [], f"task {task.config.kind} has no memory with one answer per key that is a matrix of this model"
    for slot, in_slot in held.items():
        feed_forward = model.feed_forward(slot.layer) if slot.part == "FF" else None
        if any(memory.conditional is not None for memory in in_slot.values()) or (
            feed_forward is not None and not feed_forward.linear
        ):
            continue
        hebbian, ideal = (
            torch.stack([memory.matrix(of) for memory in in_slot.values()]).sum(0) for of in ("hebbian", rule)
        )
        size = strength * model.read(slot, identity).norm() / hebbian.norm().clamp_min(1e-12)
        if rule != "hebbian":
            size = size * _stored_score(in_slot.values(), hebbian) / _stored_score(in_slot.values(), ideal)
        graft = Graft(tuple(in_slot), partial(_write, slot=slot, W=size * ideal))
        try:
            graft.implant(trial)
        except UserError as refused:
            reason = str(refused)
        else:
            found.append(graft)
    if not found:
        raise UserError(reason)
    return found


def _stored_score(memories: Iterable[Memory], W: Float[Tensor, "d_out d_in"]) -> Float[Tensor, ""]:
    """⟨u_{f(z)}ᵀ W e_z⟩ over all pairs."""
    stored = [memory.association for memory in memories]
    of_pairs = [(pairs.keys @ W.T * pairs.values[pairs.targets]).sum(1) for pairs in stored]
    return torch.cat(of_pairs).mean()


def _write(model: ToyTransformer, slot: Slot, W: Float[Tensor, "d_model d_model"]) -> None:
    """Make W e_z what the slot answers to e_z; scores in KQ are scaled afterwards, as those of the learned matrix."""
    model.write(slot, W.T / (model.attention(slot.layer).scale if slot.part == "KQ" else 1.0))
