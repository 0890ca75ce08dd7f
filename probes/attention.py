"""Where the two layers of an induction head attend.

With j = argmax_s a_ts, over the allowed keys, and on sequences with triggers (Bietti et al. 2023, App.):

    previous_token        layer 1 at the position after a trigger attends to that trigger
    induction             layer 2 at a known trigger attends to a position whose previous token is that trigger
    attends_to_output     … to a position that holds the output
    predicts_attended     … and the model predicts the attended token
    uses_previous_token   … and layer 1 at the attended position attends to its previous position
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probes.config import AttentionConfig
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Reference, Task


class Attention(Probe):
    """`attention/…` over heads' mean pattern; the chance value is what uniform attention over the past would get.

    `predicts_attended` has none: what a guess would get depends on the model's own predictions.
    """

    config: AttentionConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure both layers on the batch; a one-layer model has only the previous-token part."""
        layers = range(min(model.config.n_layers, 2))
        logits, seen = model.observe(batch.tokens, *(f"blocks.{layer}.attn.hook_pattern" for layer in layers))
        patterns = [seen[f"blocks.{layer}.attn.hook_pattern"].mean(1) for layer in layers]
        z, T = batch.tokens, batch.tokens.shape[1]
        positions = torch.arange(T, device=z.device)
        found: dict[str, float] = {}
        references: dict[str, Reference] = {}

        def add(
            name: str, right: Bool[Tensor, "b t"], where: Bool[Tensor, "b t"], chance: Float[Tensor, "b t"] | None
        ) -> None:
            if where.any():
                found[f"attention/{name}"] = float(right[where].float().mean())
                references[f"attention/{name}"] = Reference(
                    1.0, None if chance is None else float(chance[where].mean())
                )

        one_of_the_past = (1 / (positions + 1.0)).expand_as(z)
        attended = [pattern.argmax(-1) for pattern in patterns]
        to_previous = attended[0] == positions - 1
        after = {name: torch.nn.functional.pad(batch.roles[name][:, :-1], (1, 0)) for name in ("trigger", "first_seen")}
        add("previous_token", to_previous, after["trigger"], one_of_the_past)
        add("previous_token_first", to_previous, after["first_seen"], one_of_the_past)
        mass = patterns[0].diagonal(-1, 1, 2).mean()
        found["attention/previous_token_mass"] = float(mass)
        references["attention/previous_token_mass"] = Reference(1.0, float(one_of_the_past[:, 1:].mean()))
        if len(patterns) < 2:
            return ProbeResult(found, references)

        j = attended[1]
        # No token stands before the first, and what the task merely shows in front is no occurrence of a trigger.
        before = torch.nn.functional.pad(z.masked_fill(~batch.roles["all"], -1)[:, :-1], (1, 0), value=-1)
        past = positions[:, None] >= positions
        fraction = 1 / (positions + 1.0)
        followed_trigger = ((before[:, None, :] == z[:, :, None]) & past).sum(2) * fraction
        holds_output = ((z[:, None, :] == batch.targets[:, :, None]) & past).sum(2) * fraction
        token_attended = z.gather(1, j)
        scored = batch.roles["in_context"]
        for suffix, where in {"": scored, "/repeat": scored & (z == batch.targets)}.items():
            add(f"induction{suffix}", before.gather(1, j) == z, where, followed_trigger)
            add(f"attends_to_output{suffix}", token_attended == batch.targets, where, holds_output)
            add(f"predicts_attended{suffix}", token_attended == logits.argmax(-1), where, None)
            add(f"uses_previous_token{suffix}", to_previous.gather(1, j), where & (j > 0), one_of_the_past.gather(1, j))
        return ProbeResult(found, references)
