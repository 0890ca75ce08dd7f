"""Noise against context, at triggers that have been seen before (Chen, Bruna, Bietti 2024).

- p_noise, p_correct: the probability of the noise token τ, and of the target
- noise_margin/FF2: u_τᵀ F(e_q) − max_{y ≠ τ} u_yᵀ F(e_q) of the feed-forward part of layer 2, mean over triggers q
- attention_output, attention_noise: attention of layer 2 to where the trigger was followed by its output, and by τ
- predicted_noise: how often τ is predicted; /noise and /output: where τ comes, and where something else does
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probes.bigram.config import NoiseProbeConfig
from tasks.bigram.task import followed
from toytf.holder import memories
from toytf.measurement import Group, Headline, Measurement
from toytf.models.transformer import ToyTransformer
from toytf.observed import observed
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task

NOISE = Group(
    "noise", "Noise token or context", "At a trigger that was seen before: does the model predict the noise token or "
    "the output, and to which of the two does layer 2 attend?", variants=("where",),
    section="attention", headline=(Headline("p_noise", "probability of the noise token at a trigger seen before"),),
    meanings=(
        ("p_noise*", "Mean probability of the noise token at a trigger seen before; the ideal is how often noise "
         "comes, and 0 means that the model filters it out."),
        ("p_correct*", "Mean probability of the token that really comes, at a trigger seen before; the higher the "
         "better."),
        ("predicted_noise*/noise", "How often the noise token is predicted at a trigger seen before, where noise does "
         "come; low if the model follows the context."),
        ("predicted_noise*/output", "How often the noise token is predicted at a trigger seen before, where something "
         "else comes; 0 is best, as each is an error."),
        ("predicted_noise*", "How often the noise token is predicted at a trigger seen before; low if the model "
         "follows the context."),
        ("attention_output*", "Attention of layer 2, at a trigger seen before, on what followed it before and is no "
         "noise; 1 if all of it is there."),
        ("attention_noise*", "Attention of layer 2, at a trigger seen before, on noise that followed it before; near 0 "
         "if the layer avoids noise."),
    ),
)  # fmt: skip
NOISE_MARGIN = Group(
    "noise_margin", "Margin of the noise token in the feed-forward part", "By how much the feed-forward part alone "
    "prefers the noise token to all others after a trigger; above 0 the noise is stored there.", unit="logits",
    headline=(),
)  # fmt: skip


class Noise(Probe):
    """`noise/…` and `noise_margin/FF2`; the chance value is a uniform guess, or uniform attention over the past."""

    config: NoiseProbeConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure on the batch; the feed-forward margin needs a feed-forward part, attention a second layer."""
        seen = observed(model, batch)
        p, scored, z = seen.logits.softmax(-1), batch.roles["in_context"], batch.tokens
        noise = task.rivals(batch)["noise"]
        guess = 1 / len(task.output_names)
        alpha = task.config.noise.probability
        is_noise, predicted = batch.targets == noise, (seen.logits.argmax(-1) == noise).float()
        found = [
            *_mean("p_noise", p.gather(2, noise[..., None])[..., 0], scored, ideal=alpha, chance=guess),
            *_mean("p_correct", p.gather(2, batch.targets[..., None])[..., 0], scored, chance=guess),
            *_mean("predicted_noise", predicted, scored, chance=guess),
            *_mean("predicted_noise", predicted, scored & is_noise, chance=guess, where="noise"),
            *_mean("predicted_noise", predicted, scored & ~is_noise, chance=guess, where="output"),
        ]
        stored = memories(model, task).get("FF2_noise")
        if stored is not None:
            margins = stored.association.margins(lambda keys: model.read(stored.slot, keys))
            found.append(NOISE_MARGIN.measurement(float(margins.mean()), part="FF2"))
        if len(seen.patterns) > 1:
            pattern, after_trigger = seen.patterns[1].mean(1), followed(batch)
            holds_noise = (z == noise)[:, None, :]
            fraction = 1 / torch.arange(1.0, z.shape[1] + 1, device=z.device)
            split = {"attention_output": after_trigger & ~holds_noise, "attention_noise": after_trigger & holds_noise}
            for name, keys in split.items():
                uniformly = float((keys.sum(2) * fraction)[scored].mean()) if scored.any() else None
                found += _mean(name, (pattern * keys).sum(2), scored, chance=uniformly)
        return ProbeResult(found)


def _mean(
    name: str,
    values: Float[Tensor, "b t"],
    scored: Bool[Tensor, "b t"],
    *,
    ideal: float | None = None,
    chance: float | None = None,
    where: str | None = None,
) -> Iterator[Measurement]:
    """The mean over the scored positions; nothing if there are none."""
    if scored.any():
        yield NOISE.measurement(float(values[scored].mean()), name, ideal=ideal, chance=chance, where=where)
