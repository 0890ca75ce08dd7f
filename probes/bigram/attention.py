"""Where the two layers of an induction head attend.

With j = argmax_s a_ts, over the allowed keys, and on sequences with triggers (Bietti et al. 2023, App.):

    previous_token        layer 1 at the position after a trigger attends to that trigger
    induction             layer 2 at a known trigger attends to a position whose previous token is that trigger
    attends_to_output     … to a position that holds the output
    predicts_attended     … and the model predicts the attended token
    uses_previous_token   … and layer 1 at the attended position attends to its previous position
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probes.bigram.config import AttentionProbeConfig
from probes.observed import observed
from toytf.measurement import Group, Headline, Measurement
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task

ATTENTION = Group(
    "attention", "Where the two layers attend", "An induction head attends to the previous token in layer 1, and in "
    "layer 2 to what followed the trigger before. Chance is uniform attention over the past.", variants=("where",),
    headline=(
        Headline("induction", "layer 2 attends to what followed the same trigger before"),
        Headline("previous_token", "layer 1, right after a trigger, attends to it", 1),
    ),
)  # fmt: skip


class AttentionProbe(Probe):
    """`attention/…` by the mean pattern of all heads; variants `/repeat`: where the output is the trigger itself.

    The chance value is what uniform attention over the past would get. `predicts_attended` has none: what a guess would
    get depends on the model's own predictions.
    """

    config: AttentionProbeConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure both layers on the batch; a one-layer model has only the previous-token part."""
        seen = observed(model, batch)
        patterns = [pattern.mean(1) for pattern in seen.patterns[:2]]
        z, T = batch.tokens, batch.tokens.shape[1]
        positions = torch.arange(T, device=z.device)
        fraction = 1 / (positions + 1.0)
        one_of_the_past = fraction.expand_as(z)
        attended = [pattern.argmax(-1) for pattern in patterns]
        to_previous = attended[0] == positions - 1
        after = {name: torch.nn.functional.pad(batch.roles[name][:, :-1], (1, 0)) for name in ("trigger", "first_seen")}
        mass = float(patterns[0].diagonal(-1, 1, 2).mean())
        found = [
            *_fraction("previous_token", to_previous, after["trigger"], one_of_the_past),
            *_fraction("previous_token_first", to_previous, after["first_seen"], one_of_the_past),
            ATTENTION.measurement(mass, "previous_token_mass", ideal=1.0, chance=float(one_of_the_past[:, 1:].mean())),
        ]
        if len(patterns) < 2:
            return ProbeResult(found)

        j = attended[1]
        past = positions[:, None] >= positions
        after_trigger = followed(batch).sum(2) * fraction
        holds_output = ((z[:, None, :] == batch.targets[:, :, None]) & past).sum(2) * fraction
        follows, token_attended = tokens_before(batch).gather(1, j) == z, z.gather(1, j)
        predicted, previous = seen.logits.argmax(-1), one_of_the_past.gather(1, j)
        scored = batch.roles["in_context"]
        for where, at in {None: scored, "repeat": scored & (z == batch.targets)}.items():
            found += [
                *_fraction("induction", follows, at, after_trigger, where),
                *_fraction("attends_to_output", token_attended == batch.targets, at, holds_output, where),
                *_fraction("predicts_attended", token_attended == predicted, at, None, where),
                *_fraction("uses_previous_token", to_previous.gather(1, j), at & (j > 0), previous, where),
            ]
        return ProbeResult(found)


def tokens_before(batch: Batch) -> Int[Tensor, "b t"]:
    """z_{t−1}; −1 before the first position, and for what the task merely shows in front: it is no occurrence."""
    return torch.nn.functional.pad(batch.tokens.masked_fill(~batch.roles["all"], -1)[:, :-1], (1, 0), value=-1)


def followed(batch: Batch) -> Bool[Tensor, "b t t"]:
    """[b, t, s]: does s ≤ t come right after a token z_t?"""
    return (tokens_before(batch)[:, None, :] == batch.tokens[:, :, None]).tril()


def _fraction(
    name: str,
    right: Bool[Tensor, "b t"],
    scored: Bool[Tensor, "b t"],
    chance: Float[Tensor, "b t"] | None,
    where: str | None = None,
) -> Iterator[Measurement]:
    """The fraction of the scored positions that are right; nothing if there are none."""
    if scored.any():
        by_chance = None if chance is None else float(chance[scored].mean())
        value = float(right[scored].float().mean())
        yield ATTENTION.measurement(value, name, ideal=1.0, chance=by_chance, where=where)
