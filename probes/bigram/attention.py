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
from jaxtyping import Bool, Float
from torch import Tensor

from probes.bigram.config import AttentionProbeConfig
from tasks.bigram.task import followed, tokens_before
from toytf.measurement import Group, Headline, Measurement
from toytf.models.transformer import ToyTransformer
from toytf.observed import observed
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task

ATTENTION = Group(
    "attention", "Where the two layers attend", "An induction head attends to the previous token in layer 1, and in "
    "layer 2 to what followed the trigger before. Chance is uniform attention over the past.", variants=("where",),
    section="attention",
    headline=(
        Headline("induction", "layer 2 attends to what followed the same trigger before", 1),
        Headline("previous_token", "layer 1, right after a trigger, attends to it", 1),
    ),
    meanings=(
        ("previous_token_first*", "How often layer 1, right after the first occurrence of a trigger, attends most to "
         "that trigger; 1 in a working induction head."),
        ("previous_token_mass*", "Mean attention of layer 1 on the position before, over all positions; 1 if the layer "
         "does nothing but look one position back."),
        ("previous_token*", "How often layer 1, at the position after a trigger, attends most to that trigger; 1 in a "
         "working induction head."),
        ("induction*/repeat", "How often layer 2, at a trigger seen before that is its own output, attends most to a "
         "position after that trigger; 1 in a working induction head."),
        ("induction*", "How often layer 2, at a trigger seen before, attends most to a position right after that "
         "trigger; 1 in a working induction head."),
        ("attends_to_output*/repeat", "How often layer 2, at a trigger seen before that is its own output, attends "
         "most to a position that holds it; 1 in a working induction head."),
        ("attends_to_output*", "How often layer 2, at a trigger seen before, attends most to a position that holds the "
         "output; 1 in a working induction head."),
        ("predicts_attended*/repeat", "How often the model predicts what layer 2 attends to most, at a trigger seen "
         "before that is its own output; 1 if it copies what it finds."),
        ("predicts_attended*", "How often the model predicts what layer 2 attends to most, at a trigger seen before; 1 "
         "if it copies what it finds."),
        ("uses_previous_token*/repeat", "How often layer 1 looks one position back where layer 2 attends most, at a "
         "trigger seen before that is its own output; 1 if the layers work together."),
        ("uses_previous_token*", "How often layer 1 looks one position back where layer 2 attends most, at a trigger "
         "seen before; 1 if the layers work together."),
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
