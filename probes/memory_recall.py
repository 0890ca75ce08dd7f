"""Recall of the ideal memories by the learned matrices.

R(Ŵ) = (1/n) Σ_z 1{f(z) = argmax_y u_yᵀ Ŵ e_z}, over the candidates of each memory (Bietti et al. 2023, §5).
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from probes.config import MemoryRecallConfig
from toytf.memory import Association
from toytf.memory.association import Readable
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Reference, Task


class MemoryRecall(Probe):
    """`recall/<memory>`, its views and weighted form; one per head when there are several; `kl/<memory>` for laws."""

    config: MemoryRecallConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure every memory of the task that the model has room for; the batch is not used."""
        metrics: dict[str, float] = {}
        references: dict[str, Reference] = {}
        failures: dict[str, list[str]] = {}

        def add(name: str, value: float, reference: Reference) -> None:
            metrics[name], references[name] = value, reference

        def add_recall(name: str, association: Association, read: Readable) -> None:
            reference = Reference(1.0, association.chance)
            add(name, float(association.recall(read)), reference)
            if association.weights is not None and association.weights.any():
                add(f"{name}_weighted", float(association.recall(read, weighted=True)), reference)

        for name, memory in task.memories(model).items():
            stored, read = memory.association, partial(model.read, memory.slot)
            add_recall(f"recall/{name}", stored, read)
            failures[f"recall/{name}"] = stored.failures(read, self.config.failures)
            for view, association in memory.views.items():
                add_recall(f"recall/{name}{view}", association, read)
            n_heads = model.config.attention.n_heads
            if n_heads > 1 and memory.slot.part != "FF":
                for head in range(n_heads):
                    add_recall(f"recall/{name}/head{head}", stored, partial(read, head=head))
            if memory.law is not None:
                logits = stored.scores(read)
                reference = Reference(0.0, _divergence(memory.law, torch.zeros_like(logits)))
                add(f"kl/{name}", _divergence(memory.law, logits), reference)
        return ProbeResult(metrics, references, failures)


def _divergence(law: Float[Tensor, "n m"], logits: Float[Tensor, "n m"]) -> float:
    """Mean over keys of KL(law ‖ softmax(logits)), in nats."""
    return float(torch.nn.functional.kl_div(logits.log_softmax(1), law, reduction="batchmean"))
