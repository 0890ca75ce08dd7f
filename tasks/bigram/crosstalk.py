"""What the crosstalk of random vectors predicts for Hebbian matrices in a trained induction head (derived).

The prediction is an average over sequences: for each scored position, the positions before it are counted by their
token and by what layer 1 brought there, and `theory.attention_race` says how likely the best one holds the right token.
Vectors enter only by their lengths. The first position attends to itself, so a trigger there ties with the one after.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from toytf import theory
from toytf.holder import memories
from toytf.models.transformer import Kept, Slot, ToyTransformer
from toytf.sharing import shared
from toytf.task import Batch

if TYPE_CHECKING:
    from tasks.bigram.task import BigramTask

CASES = 1024
"""Scored positions that the average is taken over, at most."""
SIGNALS = np.linspace(0, 1, 9)
"""Signals that positions are counted at; one between two of them counts in part for both."""


@torch.no_grad()
def predicted_accuracy(
    task: "BigramTask", model: ToyTransformer, batch: Batch, ideal: Collection[str], strength: float
) -> float | None:
    """The accuracy with a Hebbian W_KQ2, and perhaps W_KQ1 and W_OV2; a learned W_OV2 copies what it attends to.

    None if W_KQ2 is as learned, or if there is more in the stream than tokens, positions and what layer 1 brings.
    """
    config = model.config
    plain = (config.n_layers, config.attention.n_heads, config.norm) == (2, 1, "none")
    softmax = config.attention.kind == "softmax" and config.attention.residual
    alone = config.feed_forward.kind == "none" and task.noise is None
    if "W_KQ2" not in ideal or model.pos_embed is None or not (plain and softmax and alone):
        return None
    stream = _lengths(task, model)
    if not (stream.remapped > 0 and batch.roles[task.goal].any()):
        return None
    found = _found(task, model, batch, strength if "W_KQ1" in ideal else None)
    if "W_OV2" in ideal:
        n_tokens = len(memories(model, task)["W_OV2"].association.keys)
        found *= theory.copy_accuracy(config.d_model, n_tokens, 1 + sum(stream))
    return found


@shared
def _found(task: "BigramTask", model: ToyTransformer, batch: Batch, strength: float | None) -> float:
    """How often the best position holds the right token; strength: of a Hebbian W_KQ1, None if it is as learned."""
    scored = batch.roles[task.goal].nonzero()
    scored = scored[:: -(-len(scored) // CASES)]
    if strength is None:  # as the model has learned it
        kept = Kept("blocks.0.attn.hook_pattern")
        model.stream(batch.tokens, kept, stop=1)
        attention = kept["blocks.0.attn.hook_pattern"][:, 0]
    else:
        attention = _hebbian_attention(task, model, batch, strength)
    stream, W = _lengths(task, model), model.W_OV(0)[0]
    C = W.T @ W
    noise = theory.trigger_noise(
        model.config.d_model,
        len(memories(model, task)["W_KQ2"].association.keys),
        stream.remapped,
        position=stream.position,
        position_remapped=stream.position_remapped,
        anisotropy=max(1.0, float(len(W) * C.square().sum() / C.trace() ** 2)),  # 1 for a rotation
        gathered=min(1.0, float(attention.square().sum(-1).mean())),
        others=float(task.unigram[task.trigger_frequency > 0].sum().clamp(0, 1)),
    )
    counts = _counts(batch, attention, scored, len(task.token_names))
    right = batch.targets[scored[:, 0], scored[:, 1]].cpu().numpy()
    return float(theory.attention_race(counts, SIGNALS, right, *noise).mean())


class _Lengths(NamedTuple):
    """|v|² of what is in the stream beside a token, in units of |e|²: ẽ, p, p̃."""

    remapped: float
    position: float
    position_remapped: float


def _lengths(task: "BigramTask", model: ToyTransformer) -> _Lengths:
    assert model.pos_embed is not None
    p, unit = model.pos_embed.W_pos[: task.n_positions], _length2(model.embed.W_E)
    triggers = memories(model, task)["W_KQ2"].association.values
    return _Lengths(*(_length2(vectors) / unit for vectors in (triggers, p, model.read(Slot("OV", 0), p))))


def _hebbian_attention(
    task: "BigramTask", model: ToyTransformer, batch: Batch, strength: float
) -> Float[Tensor, "batch query key"]:
    """The attention of layer 1 with a Hebbian W_KQ1 of the learned norm: so much to the previous position, by theory.

    The rest goes to all others alike. The score β of a stored pair follows from the norm.
    """
    memory, T = memories(model, task)["W_KQ1"], batch.tokens.shape[1]
    p2 = _length2(memory.association.keys)
    learned, hebbian = model.W_KQ(0)[0].norm(), memory.matrix("hebbian").norm()
    beta = float(strength * learned / hebbian) * p2**2 / model.attention(0).scale
    stream = 1 + _length2(model.embed.W_E) / p2
    d, n = model.config.d_model, len(memory.association.keys)
    attention = torch.zeros(T, T, device=batch.tokens.device)
    attention[0, 0] = 1.0
    others = np.arange(1, T)  # of query t: itself and those before the previous one
    masses = theory.previous_mass(d, n, others, beta, stream=stream) if beta > 0 else 1 / (others + 1)
    for t, mass in enumerate(masses.tolist(), start=1):
        attention[t, : t + 1] = (1 - mass) / t
        attention[t, t - 1] = mass
    return attention.expand(len(batch.tokens), T, T)


def _counts(
    batch: Batch, attention: Float[Tensor, "batch query key"], scored: Tensor, n_tokens: int
) -> Float[np.ndarray, "case token signal"]:
    """How many positions up to a scored one hold each token, by how much layer 1 brought there of the token asked."""
    z = batch.tokens[scored[:, 0]]
    asked = z.gather(1, scored[:, 1:])
    signal = torch.einsum("cst,ct->cs", attention[scored[:, 0]], (z == asked).to(attention))
    place = signal.clamp(0, 1) * (len(SIGNALS) - 1)
    low = place.floor().clamp_max(len(SIGNALS) - 2)
    before = (torch.arange(z.shape[1], device=z.device) <= scored[:, 1:]).to(place)
    counts = torch.zeros(len(z), n_tokens * len(SIGNALS), device=z.device)
    at = z * len(SIGNALS) + low.long()
    counts.scatter_add_(1, at, before * (1 - (place - low)))
    counts.scatter_add_(1, at + 1, before * (place - low))
    return counts.view(len(z), n_tokens, len(SIGNALS)).double().cpu().numpy()


def _length2(vectors: Float[Tensor, "n d"]) -> float:
    return float(vectors.square().sum(1).mean())
