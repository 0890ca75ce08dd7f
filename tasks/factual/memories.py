"""What the feed-forward part should store (Nichani, Lee, Bietti 2024): pairs of a subject and a relation.

FF1 = {κ_sr → a*(s, r)},   κ_sr = what attention gives for subject s and relation r, on average over noise
"""

from typing import TYPE_CHECKING

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from tasks.factual.tables import at_the_end, fact_tables, why_no_tables
from toytf.memory import Association
from toytf.models.transformer import Slot, ToyTransformer
from toytf.probe import shared
from toytf.task import Memory

if TYPE_CHECKING:
    from tasks.factual.task import FactualTask

DRAWS = 8
"""Sequences per fact that a mean over noise is taken over."""


def factual_memories(task: "FactualTask", model: ToyTransformer) -> dict[str, Memory]:
    """FF1, if the first layer has a feed-forward part that reads what attention gives."""
    if model.feed_forward(0) is None or model.config.feed_forward.reads != "attention" or model.config.norm != "none":
        return {}
    table = task.table
    stored = Association(
        _attended(task, model),
        model.unembed.W_U.detach().T,
        task.targets,
        weights=None,
        key_names=tuple(f"{table.subject_names[s]}, {table.relation_names[r]}" for s, r in table.pairs),
        value_names=table.answer_names,
    )
    return {"FF1": Memory(stored, Slot("FF", 0), job="answer each pair of a subject and a relation")}


@shared
@torch.no_grad()
def _attended(task: "FactualTask", model: ToyTransformer) -> Float[Tensor, "fact d"]:
    """The stream after attention for every fact, on average over noise."""
    if why_no_tables(model) is None:
        return fact_tables(model, task, DRAWS).attended.mean(1)
    x = at_the_end(model, "blocks.0.hook_resid_mid", task.facts_among_noise(DRAWS).tokens)
    return rearrange(x, "(fact draw) d -> fact draw d", draw=DRAWS).mean(1)
