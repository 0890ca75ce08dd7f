"""The memories of an induction head (Bietti et al. 2023), in the vectors of a given model.

    W_KQ1 = Σ_t p_t p_{t−1}ᵀ          layer 1 attends to the previous position
    W_KQ2 = Σ_{k ∈ Q} e_k ẽ_kᵀ        layer 2 attends to where the previous token was this trigger; ẽ = W_OV1 e
    W_OV2 = Σ_k u_k e_kᵀ              layer 2 copies the attended token to the output

Q is the trigger set, or every token of the text when triggers are random. The feed-forward part of layer 2, if any,
should hold the bigram table, softmax_y(u_yᵀ F(e_z)) = π_b(y|z), and with noise the pairs trigger → noise token
(FF2_noise).
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from toytf.memory import Association
from toytf.models.transformer import Slot, ToyTransformer
from toytf.task import Memory

if TYPE_CHECKING:
    from tasks.bigram.task import BigramTask

EARLY = 64
"""The positions that the view W_KQ1_64 is restricted to: early ones are learned first."""


def bigram_memories(task: "BigramTask", model: ToyTransformer) -> dict[str, Memory]:
    """The memories this model has room for: layer 1 needs positions, layer 2 a second layer."""
    memories: dict[str, Memory] = {}
    e, u = model.embed.W_E.detach(), model.unembed.W_U.detach().T
    p = e[:0]
    if model.pos_embed is not None:
        p = model.pos_embed.W_pos.detach()[: task.n_positions]  # a test may have shorter sequences than the model
        # how often a position holds the first output of a trigger: there the previous position must be found
        needed = torch.nn.functional.pad(task.survey.roles["first_seen"].float().mean(0)[:-1], (1, 0))
        rotated = model.config.position == "sinusoidal" and not model.config.trains("pos_embed.W_pos")
        memories["W_KQ1"] = Memory(
            previous_position(p, needed),
            Slot("KQ", 0),
            views=[
                ({"criterion": "causal"}, previous_position(p, causal=True)),
                ({"view": f"{EARLY}"}, previous_position(p[:EARLY])),
                ({"view": f"{EARLY}", "criterion": "causal"}, previous_position(p[:EARLY], causal=True)),
            ],
            job="look one position back",
            job_weighted="look one position back, weighted by how often that is needed: recall",
            beside_keys=torch.cat([p[:1], e]),
            beside_values=torch.cat([p[-1:], e]),
            unlimited="its values are its keys, rotated" if rotated else "",  # by one rotation
        )
    if model.config.n_layers < 2:
        return memories
    names = task.token_names
    everything = torch.arange(len(e), device=e.device)
    triggers = everything[task.unigram > 0] if task.fixed_triggers is None else task.fixed_triggers
    remapped, remapped_p = (model.read(Slot("OV", 0), x).detach() for x in (e, p))
    places = torch.cat([p, remapped_p])  # what else layer 2 reads, beside tokens and remapped tokens
    memories["W_KQ2"] = Memory(
        _same_token(e, remapped, triggers, names, task.trigger_frequency[triggers]),
        Slot("KQ", 1),
        job="find the token after the same trigger",
        beside_keys=torch.cat([_without(e, triggers), remapped, places]),
        beside_values=torch.cat([_without(remapped, triggers), e, places]),
        unlimited="its values are W_OV1 times its keys",
    )
    outputs = everything[(task.output_distribution > 0).any(0)]
    output_frequency = task.trigger_frequency / task.trigger_frequency.sum() @ task.output_distribution
    memories["W_OV2"] = Memory(
        _same_token(e, u, outputs, names, output_frequency[outputs]),
        Slot("OV", 1),
        job="copy the attended token to the output",
        beside_keys=torch.cat([_without(e, outputs), remapped, places]),
        beside_values=_without(u, outputs),
    )
    if model.feed_forward(1) is not None:
        used = torch.ones(len(e), dtype=torch.bool, device=e.device)
        if task.fixed_triggers is not None:
            used[task.fixed_triggers] = False
        conditional = task.bigram[used]
        likeliest = conditional.argmax(1)
        stored = Association(
            e[used],
            u,
            likeliest,
            weights=task.unigram[used],
            key_names=tuple(name for name, kept in zip(names, used.tolist(), strict=True) if kept),
            value_names=names,
        )
        memories["FF2"] = Memory(stored, Slot("FF", 1), conditional=conditional, job="know the bigrams of the text")
        if task.noise is not None:
            memories["FF2_noise"] = Memory(
                Association(
                    e[triggers],
                    u,
                    torch.full_like(triggers, task.noise[1]),
                    weights=task.trigger_frequency[triggers],
                    key_names=tuple(names[token] for token in triggers.tolist()),
                    value_names=names,
                ),
                Slot("FF", 1),
                job="answer a trigger with the noise token",
                unlimited="all pairs have the same value" if model.config.feed_forward.kind == "relu" else "",
            )
    return memories


def previous_position(
    p: Float[Tensor, "position d_model"], weights: Float[Tensor, "position"] | None = None, *, causal: bool = False
) -> Association:
    """Position t ≥ 2 recalls t − 1 among the positions 1 … T−1; causal: among those not after t."""
    T = len(p)
    query, key = torch.arange(1, T, device=p.device), torch.arange(T - 1, device=p.device)
    return Association(
        keys=p[1:],
        values=p[:-1],
        targets=key,
        weights=None if weights is None else weights[1:],
        candidates=key <= query[:, None] if causal else None,
        key_names=tuple(f"t={t}" for t in range(2, T + 1)),
        value_names=tuple(f"t={t}" for t in range(1, T)),
    )


def _same_token(
    keys: Float[Tensor, "token d"],
    values: Float[Tensor, "token d"],
    tokens: Int[Tensor, "n"],
    names: tuple[str, ...],
    weights: Float[Tensor, "n"],
) -> Association:
    """Each of the given tokens recalls itself among them."""
    chosen = tuple(names[token] for token in tokens.tolist())
    n = torch.arange(len(tokens), device=tokens.device)
    return Association(keys[tokens], values[tokens], n, weights, key_names=chosen, value_names=chosen)


def _without(vectors: Float[Tensor, "token d"], tokens: Int[Tensor, "n"]) -> Float[Tensor, "rest d"]:
    """The vectors of all other tokens."""
    kept = torch.ones(len(vectors), dtype=torch.bool, device=vectors.device)
    kept[tokens] = False
    return vectors[kept]
