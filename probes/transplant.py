"""Whether a learned matrix *is* its memory: the causal test.

Ŵ  →  c W*,   W* = Σ_z u_{f(z)} e_zᵀ,   c = strength · ‖Ŵ‖_F / ‖W*‖_F

If the task is solved as before with W* in place of Ŵ, what Ŵ holds beyond the ideal memory was not needed; if it is
solved worse, it was. Ŵ is the matrix that acts, such as W_KQ or W_OV, not a factor of it.
"""

import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probes.config import TransplantProbeConfig
from probes.matrices import Learned, have_diverged, learned_matrices, learned_memories
from probes.observed import at_goal
from toytf.errors import UserError
from toytf.evaluation import goal_metrics
from toytf.measurement import Group, Headline, Reference
from toytf.memory import hebbian
from toytf.models.transformer import Slot, ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task

TRANSPLANT = Group(
    "transplant", "Accuracy with ideal matrices in the trained model", "If accuracy stays the same with an ideal "
    "matrix, all that the model needs of the learned one is its memory; if it falls, the model needs more.",
    headline=(Headline("ideal_all", "accuracy with all ideal matrices in the trained model", 1),),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Graft:
    """The ideal matrix for a slot, and the memories it holds; those that share a slot are one sum."""

    memories: tuple[str, ...]
    slot: Slot
    W: Float[Tensor, "d_model d_model"]

    @property
    def name(self) -> str:
        """The name of its memory."""
        return "+".join(self.memories)


class Transplant(Probe):
    """The accuracy at the task's goal with ideal matrices in place of learned ones.

    `transplant/learned`                   no matrix is ideal
    `transplant/ideal_<memory>`            this one is
    `transplant/ideal_all`                 all are that solve the task together
    `transplant/ideal_all_but_<memory>`    the same with one learned matrix put back

    Only a matrix whose memories have single answers can be replaced: one head of full dimension, or a linear
    feed-forward part that holds no distribution besides. The rest of the model, layer norms included, stays as learned.
    """

    config: TransplantProbeConfig

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a model that can take no ideal matrix."""
        task.check_goal()
        _grafts(model, copy.deepcopy(model), task, self.config.strength)

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure a copy of the model on the batch, with one set of ideal matrices after the other."""
        if not batch.roles[task.goal].any() or have_diverged(learned_memories(model, task)):
            return ProbeResult()
        trial, learned = copy.deepcopy(model), model.state_dict()
        grafts = _grafts(model, trial, task, self.config.strength)
        together = [graft for graft in grafts if set(graft.memories) & set(task.solution)] or grafts

        def accuracy(chosen: list[_Graft]) -> float:
            trial.load_state_dict(learned)
            for graft in chosen:
                _implant(trial, graft)
            return goal_metrics(trial, task, batch)["accuracy"]

        known = task.references().get((task.goal, "accuracy"), Reference())
        levels = {"ideal": known.ideal, "chance": known.chance}
        found = [
            TRANSPLANT.measurement(at_goal(model, task, batch)["accuracy"], "learned", **levels),
            *(TRANSPLANT.measurement(accuracy([graft]), "ideal", memory=graft.name, **levels) for graft in grafts),
            TRANSPLANT.measurement(accuracy(together), "ideal_all", **levels),
        ]
        for graft in together:
            others = accuracy([other for other in together if other is not graft])
            found.append(TRANSPLANT.measurement(others, "ideal_all_but", memory=graft.name, **levels))
        return ProbeResult(found)


def _grafts(model: ToyTransformer, trial: ToyTransformer, task: Task, strength: float) -> list[_Graft]:
    """An ideal matrix for each slot that can take it; the trial, a copy, is written on to find out which can."""
    held_in: dict[Slot, list[Learned]] = {}
    norms: dict[Slot, Tensor] = {}
    for held, W in learned_matrices(model, task):
        held_in.setdefault(held.slot, []).append(held)
        norms[held.slot] = W.norm()
    grafts, reason = [], f"task {task.config.kind} has no memory with one answer per key that is a matrix of this model"
    for slot, memories in held_in.items():
        if any(held.conditional is not None for held in memories):
            continue
        ideal = torch.stack([hebbian(held.association) for held in memories]).sum(0)
        W = strength * norms[slot] / ideal.norm().clamp_min(1e-12) * ideal
        graft = _Graft(tuple(held.name for held in memories), slot, W)
        try:
            _implant(trial, graft)
        except UserError as refused:
            reason = str(refused)
        else:
            grafts.append(graft)
    if not grafts:
        raise UserError(f"probe transplant: {reason}")
    return grafts


def _implant(model: ToyTransformer, graft: _Graft) -> None:
    """Make W e_z what the slot answers to e_z; scores in KQ are scaled afterwards, as those of the learned matrix."""
    scale = model.attention(graft.slot.layer).scale if graft.slot.part == "KQ" else 1.0
    model.write(graft.slot, graft.W.T / scale)
