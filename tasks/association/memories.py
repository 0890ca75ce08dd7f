"""Which part of a model should store the associations, and with what it is asked (Cabannes, Dohmatob, Bietti 2024).

A sequence is one token, which attends to itself with weight 1. So the stream after attention, and the logits, are

    x' = x + x W_OV,    logits = (x' + FF(x')) W_U      x = e_z (+ p_1), each residual path only if there is one

    W_OV1 = {x → f(z)}      if what attention gives can reach the outputs without a feed-forward part
    FF1   = {x' → f(z)}     if there is such a part; {x → f(z)} if it is parallel to attention

Without residual paths and feed-forward part the model is the memory: logits_y = u_yᵀ W e_z with W = W_OV1ᵀ. Of several
layers, the last one stores.
"""

from typing import TYPE_CHECKING

import torch

from toytf.memory import Association
from toytf.models.transformer import Slot, ToyTransformer
from toytf.task import Memory

if TYPE_CHECKING:
    from tasks.association.task import AssociationTask


@torch.no_grad()
def association_memories(task: "AssociationTask", model: ToyTransformer) -> dict[str, Memory]:
    """The memories of the last layer; none of a model whose LayerNorm or linear attention no matrix can stand for."""
    config, last = model.config, model.config.n_layers - 1
    if config.norm != "none" or config.attention.kind != "softmax":
        return {}
    attn, part = model.attention(last), model.feed_forward(last)
    x = model.stream(task.inputs, stop=last)[:, 0]
    job = "answer each input"

    def memory(keys: torch.Tensor, slot: Slot, job: str) -> Memory:
        stored = Association(
            keys,
            model.unembed.W_U.detach().T,
            task.targets,
            weights=torch.tensor(task.frequencies, dtype=keys.dtype, device=keys.device),
            key_names=task.token_names,
            value_names=task.output_names,
        )
        return Memory(stored, slot, job=job, job_weighted=f"{job}, weighted by how often it comes: recall")

    found = {}
    if part is None or part.residual:
        own = job if part is None else f"{job}, unless FF{last + 1} does"
        found[f"W_OV{last + 1}"] = memory(x, Slot("OV", last), own)
    if part is not None:
        parallel = config.feed_forward.reads == "block_input"
        keys = x if parallel else attn.add(x, model.read(Slot("OV", last), x))
        found[f"FF{last + 1}"] = memory(keys, Slot("FF", last), job)
    return found
