"""How a bigram sequence is read: which tokens are triggers and outputs, and where an induction head should look."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from toytf.task import Annotation, Batch


def annotate(batch: Batch) -> Annotation:
    """Triggers and outputs; layer 1 should look from an output at its trigger, layer 2 from that at earlier outputs."""
    z, positions = batch.tokens, torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    in_context, holds_output = batch.roles["in_context"], z[:, None, :] == batch.targets[:, :, None]
    after_trigger = torch.nn.functional.pad(batch.roles["trigger"][:, :-1], (1, 0))
    previous = (positions[:, None] - 1 == positions) & after_trigger[:, :, None]
    return Annotation(
        {
            "trigger seen before: its output is asked": in_context,
            "trigger, first time": batch.roles["first_seen"],
            "output of the trigger before it": after_trigger,
        },
        {0: previous, 1: followed(batch) & holds_output & in_context[:, :, None]},
    )


def tokens_before(batch: Batch) -> Int[Tensor, "b t"]:
    """z_{t−1}; −1 before the first position, and for what the task merely shows in front: it is no occurrence."""
    return torch.nn.functional.pad(batch.tokens.masked_fill(~batch.roles["all"], -1)[:, :-1], (1, 0), value=-1)


def followed(batch: Batch) -> Bool[Tensor, "b t t"]:
    """[b, t, s]: does s ≤ t come right after a token z_t?"""
    return (tokens_before(batch)[:, None, :] == batch.tokens[:, :, None]).tril()
