"""What can be had on a bigram batch without induction, and what the best predictor gets."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from toytf.measurement import Headline, Measurement, Reference
from toytf.task import FLOOR, Batch

HEURISTICS = {
    "most_frequent": "name the most frequent token so far",
    "repeat": "repeat the last token",
    "noise": "always name the noise token",
}
HEURISTIC = replace(
    FLOOR,
    meanings=(
        ("*/most_frequent", "Accuracy of naming the most frequent token so far; a model that has learned induction is "
         "above."),
        ("*/repeat", "Accuracy of repeating the last token; a model that has learned induction is above."),
        ("*/noise", "Accuracy of always naming the noise token; a model that follows the context is above, if noise is "
         "rare."),
        ("*/bigram_entropy", "Loss of knowing the bigrams of the text, in nats; no model can be below, and one that "
         "knows them is near."),
    ),
)  # fmt: skip
TO_BEAT = {"in_context": "to beat", "untrapped": "to beat, in sequences without such a loop"}


def most_frequent_so_far(tokens: Int[Tensor, "batch position"], n_tokens: int) -> Int[Tensor, "batch position"]:
    """argmax_k #{s ≤ t: z_s = k} at every position t."""
    counts = torch.zeros(len(tokens), n_tokens, device=tokens.device)
    one = torch.ones(len(tokens), 1, device=tokens.device)
    modes = []
    for t in range(tokens.shape[1]):
        counts.scatter_add_(1, tokens[:, t : t + 1], one)
        modes.append(counts.argmax(1))
    return torch.stack(modes, dim=1)


def heuristic_floors(batch: Batch, n_tokens: int, noise: tuple[float, int] | None = None) -> list[Measurement]:
    """Accuracy of the trivial heuristics on the positions that induction should solve; noise: always to name it."""
    repeat, frequent = batch.tokens, most_frequent_so_far(batch.tokens, n_tokens)
    guesses = [
        ("in_context", "repeat", repeat),  # on untrapped sequences a repeat is never right
        ("in_context", "most_frequent", frequent),
        ("untrapped", "most_frequent", frequent),
    ]
    if noise is not None and noise[0] > 0:
        guesses.append(("in_context", "noise", torch.full_like(batch.tokens, noise[1])))
    floors = []
    for role, heuristic, guess in guesses:
        asked = batch.roles[role]
        if asked.any():
            accuracy = float((guess == batch.targets)[asked].float().mean())
            floors.append(FLOOR.measurement(accuracy, role=role, quantity="accuracy", heuristic=heuristic))
    return floors


def to_beat(floors: Sequence[Measurement]) -> list[Measurement]:
    """The same; the short table shows the most accurate heuristic of each role, which the verdict is about too."""
    shown: list[Headline] = []
    said = ""
    for role, phrase in TO_BEAT.items():
        own = [one for one in floors if {"role": role, "quantity": "accuracy"}.items() <= one.quantity.at.items()]
        if own:
            best = max(own, key=lambda one: one.value or 0.0).quantity
            heuristic = HEURISTICS[str(best.at["heuristic"])]
            shown.append(Headline(best.label, phrase if heuristic == said else f"{phrase}: {heuristic}", 1))
            said = heuristic
    group = replace(HEURISTIC, headline=tuple(shown))
    return [replace(one, quantity=replace(one.quantity, group=group)) for one in floors]


def optimal_levels(
    batch: Batch,
    bigram: Float[Tensor, "token token"],
    output_distribution: Float[Tensor, "token token"],
    noise: tuple[float, int] | None = None,
) -> dict[tuple[str, str], Reference]:
    """The best loss and accuracy by role, knowing the triggers: copy, else p(output), else p(bigram).

    Averaged over the positions of a sample; chance is a uniform guess. With noise (α, τ), an output is known once the
    trigger has been followed by something else than τ; then the best loss is the entropy of α. (An output that is τ
    itself counts as unknown.)
    """
    known = batch.roles["in_context"]
    alpha, token = noise or (0.0, -1)
    if alpha:
        informative = batch.roles["trigger"] & (batch.targets != token)
        same = batch.tokens[:, :, None] == batch.tokens[:, None, :]
        known = known & (same & informative[:, None, :]).tril(-1).any(2)  # has been followed by something else
        output_distribution = (1 - alpha) * output_distribution
        output_distribution[:, token] += alpha
    p = torch.where(batch.roles["trigger"][..., None], output_distribution[batch.tokens], bigram[batch.tokens])
    copying = torch.tensor([alpha, 1 - alpha])
    loss = torch.special.entr(p).sum(-1).masked_fill(known, float(torch.special.entr(copying).sum()))
    accuracy = p.amax(-1).masked_fill(known, float(copying.max()))
    n = len(bigram)
    levels: dict[tuple[str, str], Reference] = {}
    for role, mask in batch.roles.items():
        if mask.any():
            levels[role, "loss"] = Reference(float(loss[mask].mean()), math.log(n))
            levels[role, "accuracy"] = Reference(float(accuracy[mask].mean()), 1 / n)
    return levels
