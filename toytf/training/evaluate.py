"""Loss and accuracy by role, and the probes, on a held-out batch."""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe
from toytf.task import Batch, Reference, Task


def token_loss(logits: Float[Tensor, "b t output"], batch: Batch) -> Float[Tensor, "b t"]:
    """Cross-entropy −log p(target) at every position."""
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none")


def role_mean(values: Float[Tensor, "b t"], role: Bool[Tensor, "b t"]) -> Float[Tensor, ""]:
    """Mean over the positions of a role, by multiplication so that no shape depends on data; 0 if there are none."""
    return (values * role).sum() / role.sum().clamp(min=1)


@torch.no_grad()
def role_metrics(model: ToyTransformer, batch: Batch) -> dict[str, float]:
    """`eval/<role>_loss` and `eval/<role>_accuracy` for the roles that occur in the batch."""
    logits = model(batch.tokens)
    loss = token_loss(logits, batch)
    right = (logits.argmax(-1) == batch.targets).to(loss.dtype)
    names = list(batch.roles)
    values = [
        torch.stack([role_mean(loss, role), role_mean(right, role), role.sum().to(loss.dtype)])
        for role in batch.roles.values()
    ]
    metrics: dict[str, float] = {}
    for name, (role_loss, accuracy, n) in zip(names, torch.stack(values).tolist(), strict=True):
        if n:
            metrics[f"eval/{name}_loss"] = role_loss
            metrics[f"eval/{name}_accuracy"] = accuracy
    return metrics


def measure(
    model: ToyTransformer, task: Task, probes: Iterable[Probe], batch: Batch
) -> tuple[dict[str, float], dict[str, Reference]]:
    """All metrics of a model on a batch, and what each can be read against."""
    metrics = role_metrics(model, batch) | {f"data/{name}": value for name, value in task.statistics(batch).items()}
    references = dict(task.references())
    for probe in probes:
        result = probe(model, task, batch)
        metrics |= result.metrics
        references |= result.references
    return metrics, references


def reference_metrics(references: Mapping[str, Reference], measured: Iterable[str]) -> dict[str, float]:
    """`ideal/<metric>`, `chance/<metric>` and `theory/<metric>` of what was measured."""
    levels: dict[str, float] = {}
    for name in measured:
        reference = references.get(name, Reference())
        for kind, level in {
            "ideal": reference.ideal,
            "chance": reference.chance,
            "theory": reference.theory,
        }.items():
            if level is not None:
                levels[f"{kind}/{name}"] = level
    return levels
