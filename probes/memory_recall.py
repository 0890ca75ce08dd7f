"""Recall of the ideal memories by the learned matrices.

R(Ŵ) = (1/n) Σ_z 1{f(z) = argmax_y u_yᵀ Ŵ e_z}, over the candidates of each memory (Bietti et al. 2023, §5).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from probes.config import MemoryRecallProbeConfig
from toytf.holder import memories
from toytf.measurement import Group, Headline, Measurement, Scalar
from toytf.memory import Association
from toytf.memory.association import Readable
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Task

RECALL = Group(
    "recall", "Recall, as a fraction of the pairs", "At 1 a learned matrix gives the right answer for every pair that "
    "it should store. The order in which memories leave chance is the order of learning.",
    variants=("criterion", "head"), timed="onset",
    meanings=(
        ("*_weighted/head*", "Fraction of the pairs that this head alone recalls, each pair counted by how often it is "
         "needed; 1 is all."),
        ("*/head*", "Fraction of the pairs that this head alone recalls; 1 is all."),
        ("*_weighted", "Fraction of the pairs that the learned part recalls, each pair counted by how often it is "
         "needed; 1 is all."),
        ("*_64/causal", "Fraction of the first 64 positions that recall the one before them, where only earlier "
         "positions and their own compete; 1 is all."),
        ("*_64", "Fraction of the first 64 positions that recall the one before them, where later positions compete "
         "too; 1 is all."),
        ("*/causal", "Fraction of the pairs recalled where only positions compete that attention can see, not later "
         "ones; 1 is all."),
        ("*", "Fraction of the pairs that the learned part recalls, the right value scoring above all others; 1 is "
         "all."),
    ),
)  # fmt: skip
KL = Group(
    "kl", "KL divergence from the distribution to be stored", "At 0 the model predicts what it should store; chance is "
    "one prediction for all keys.", unit="nats",
    headline=(Headline("*", "KL divergence from the distribution to be stored (nats)", 2),),
    meanings=(
        ("*", "KL divergence of what this part predicts from the distribution that it should store, in nats; 0 is "
         "perfect."),
    ),
)  # fmt: skip


class MemoryRecall(Probe):
    """`recall/<memory>`, and `kl/<memory>` where a distribution should be stored.

    `_weighted`       with pairs weighted by how often they come
    `_64`, `/causal`  the views that the task gives of a memory
    `/head0`          of one head, if there are several
    """

    config: MemoryRecallProbeConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure every memory of the task that the model has room for; the batch is not used."""
        found: list[Measurement] = []
        failures: dict[str, list[str]] = {}
        wanted = memories(model, task)
        headlines: list[Headline] = []  # what solves the task comes first, after all counts of pairs (probe `limits`)
        for name, memory in wanted.items():
            n, rank = len(memory.association.keys), int(bool(task.solution) and name not in task.solution)
            recall = f"recall of {n} pair{'s' if n > 1 else ''}"
            headlines.append(Headline(name, f"{memory.job}: {recall}" if memory.job else recall, rank + 2))
            if memory.job_weighted:  # it says why fewer pairs may suffice
                headlines.append(Headline(f"{name}_weighted", memory.job_weighted, rank))
        group = replace(RECALL, headline=tuple(headlines))
        for name, memory in wanted.items():
            stored, read = memory.association, partial(model.read, memory.slot)
            own = _recall(stored, read, {"memory": name}, group)
            failures[own[0].flat] = stored.failures(read, self.config.failures)
            found += own
            for view, association in memory.views:
                found += _recall(association, read, {"memory": name, **view}, group)
            n_heads = model.config.attention.n_heads
            if n_heads > 1 and memory.slot.part != "FF":
                for head in range(n_heads):
                    found += _recall(stored, partial(read, head=head), {"memory": name, "head": head}, group)
            if memory.conditional is not None:
                logits, wanted_p = stored.scores(read), memory.conditional
                learned, chance = (  # mean over keys of KL(conditional ‖ softmax(logits)), in nats
                    float(torch.nn.functional.kl_div(one.log_softmax(1), wanted_p, reduction="batchmean"))
                    for one in (logits, torch.zeros_like(logits))
                )
                found.append(KL.measurement(learned, ideal=0.0, chance=chance, memory=name))
        return ProbeResult(found, failures)


def _recall(association: Association, read: Readable, at: Mapping[str, Scalar], group: Group) -> list[Measurement]:
    """With every pair counted alike and, if pairs have weights, by weight."""
    chance = association.chance
    found = [group.measurement(float(association.recall(read)), ideal=1.0, chance=chance)]
    if association.weights is not None and association.weights.any():
        weighted = float(association.recall(read, weighted=True))
        found.append(group.measurement(weighted, ideal=1.0, chance=chance, weighted=True))
    return [measured.placed(at) for measured in found]
