"""What a model does without one of its heads or feed-forward parts.

a → ⟨a⟩, its mean over the sequences at each position, or a → 0;   a is z of a head, or what a feed-forward part adds

At its mean a part still adds what it always adds, but says nothing about the sequence; at 0 the rest of the model also
meets a stream that it has never seen.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from probes.config import AblationProbeConfig
from toytf.chunks import chunk_size, chunks
from toytf.evaluation import role_metrics
from toytf.measurement import Group, Headline, Measurement
from toytf.models.transformer import Hook, ToyTransformer, no_hook
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task

ABLATED = Group(
    "ablated", "Accuracy without one head or feed-forward part", "If accuracy stays the same, the model does not need "
    "that part, or another one does the same; if it falls to chance, the model cannot do without it. What the part "
    "adds is replaced by its mean over sequences, or by zero.",
    variants=("ablation",), section="interventions",
    headline=(Headline("*", "accuracy without {component}", 3),),
    meanings=(
        ("none*", "Accuracy at the task's goal of the whole model; those without one part are compared with it."),
        ("*/zero", "Accuracy at the task's goal with what this part adds set to 0; near that of the whole model if it "
         "does without the part."),
        ("*", "Accuracy at the task's goal with what this part adds held at its mean; near that of the whole model if "
         "it does without the part."),
    ),
)  # fmt: skip

PLAIN = "mean"
"""The ablation that goes without saying in the names of metrics."""


@dataclass(frozen=True)
class Component:
    """A head, or a feed-forward part as a whole, and the activation that holds what it says."""

    name: str
    activation: str
    head: int | None = None

    def replaced(self, by: Float[Tensor, "query *rest"]) -> Hook:
        """The hook that puts values in its place; they are those of the activation, the same for every sequence."""

        def hook(name: str, value: Tensor) -> Tensor:
            if name != self.activation:
                return value
            instead = by.expand_as(value)
            if self.head is None:
                return instead
            own = torch.arange(value.shape[2], device=value.device) == self.head
            return torch.where(own[:, None], instead, value)  # z is [batch query head d]

        return hook


def components(model: ToyTransformer) -> list[Component]:
    """L0H0, L0H1 …, counted as in TransformerLens, and FF1, FF2 …, as memories are; in the order of the layers."""
    found: list[Component] = []
    for layer in range(model.config.n_layers):
        z = f"blocks.{layer}.attn.hook_z"
        found += [Component(f"L{layer}H{head}", z, head) for head in range(model.attention(layer).n_heads)]
        if model.feed_forward(layer) is not None:
            found.append(Component(f"FF{layer + 1}", f"blocks.{layer}.hook_mlp_out"))
    return found


@torch.no_grad()
def mean_activations(model: ToyTransformer, batch: Batch) -> dict[str, Float[Tensor, "query *rest"]]:
    """What the components say on average over the sequences, by the name of the activation."""
    names = {component.activation for component in components(model)}
    totals: dict[str, Tensor] = {}
    for part in chunks(batch, chunk_size(model, batch.last)):
        for name, value in model.observe(part.tokens, *names, last=part.last)[1].items():
            total = value.sum(0)
            totals[name] = totals[name] + total if name in totals else total
    return {name: total / len(batch.tokens) for name, total in totals.items()}


def hooked_accuracy(model: ToyTransformer, task: Task, batch: Batch, hook: Hook) -> Measurement:
    """Accuracy at the task's goal, and what it can be read against, with a hook in every forward."""

    def forward(model: ToyTransformer, tokens: Tensor, last: int) -> Tensor:
        logits: Tensor = model(tokens, hook, last)
        return logits

    at = {"role": task.goal, "quantity": "accuracy"}
    return next(found for found in role_metrics(model, batch, forward, task) if found.quantity.at == at)


class Ablation(Probe):
    """`ablated/none`: accuracy at the task's goal; `ablated/L0H0`, `ablated/FF1` …: without that one; variant /zero."""

    config: AblationProbeConfig

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a task whose goal is no role of it."""
        task.check_goal()

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure the model without each component, one at a time; the model stays as it is."""
        if self.config.sequences < len(batch.tokens):
            batch = batch.part(0, self.config.sequences)
        diverged = not all(bool(weights.isfinite().all()) for weights in model.parameters())
        if diverged or not batch.roles[task.goal].any():
            return ProbeResult()
        whole = hooked_accuracy(model, task, batch, no_hook)
        found = [replace(ABLATED.measurement(whole.value, "none"), reference=whole.reference)]
        damaged = replace(whole.reference, ideal=None)  # of a model without a part nobody knows what is ideal
        means = mean_activations(model, batch)
        for component in components(model):
            mean = means[component.activation]
            for ablation, by in {"mean": mean, "zero": torch.zeros_like(mean)}.items():
                value = hooked_accuracy(model, task, batch, component.replaced(by)).value
                measured = ABLATED.measurement(value, component=component.name)
                placed = measured.placed({"ablation": ablation}, plain=("ablation",) if ablation == PLAIN else ())
                found.append(replace(placed, reference=damaged))
        return ProbeResult(found)
