"""Which path to the logits knows the facts: the direct one from attention, or the one through the feed-forward part.

    L = L_direct + L_FF,   L_direct = aᵀ U,   L_FF = FF(a)ᵀ U,   a = the stream after attention

A path is removed by putting its mean over all facts in its place.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from probes.additivity import two_way, unknown_pairs
from probes.config import FactStorageConfig
from probes.fact_tables import (
    TableProbe,
    accuracy,
    by_pair,
    fact_tables,
    factual,
    feed_forward,
    in_chunks,
    width_of,
)
from tasks.factual.task import FactualTask
from toytf.models.transformer import ToyTransformer
from toytf.probe import ProbeResult
from toytf.task import Batch, Reference, Task


class FactStorage(TableProbe):
    """`fact_storage/…`, accuracies over every fact among fresh noise, and margins; without feed-forward part, direct's.

    `direct`, `feed_forward`                    each path alone
    `without_direct`, `without_feed_forward`    with the mean of a path in its place
    `additive_feed_forward`                     with the additive part of L_FF in its place, so that the feed-forward
                                                part knows subjects and relations, but no pairs
    `fact_margin/direct`, `…/feed_forward`      L_{a*} − mean_a L of each path (logits)
    `feed_forward_interaction`                  the fraction of the variance of L_FF that only pairs explain

    What is about pairs needs a table without gaps, and is left out otherwise.
    """

    config: FactStorageConfig

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a task without facts, and a model whose paths cannot be told apart."""
        super().check(model, task)
        feed_forward(self.config.kind, model)

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure the paths on every fact among fresh noise; the batch is not used."""
        task, U = factual(self.config.kind, task), model.unembed.W_U
        attended = fact_tables(model, task, self.config.repeats).attended
        part = feed_forward(self.config.kind, model)
        has_direct = part is None or model.config.feed_forward.residual
        direct = attended if has_direct else torch.zeros_like(attended)
        metrics: dict[str, float] = {}
        if has_direct:
            metrics["fact_storage/direct"] = accuracy(direct, task, U)
            metrics["fact_margin/direct"] = mean_margin(direct, task, U)
        if part is not None:
            through = in_chunks(part, width_of(model), attended.flatten(0, 1)).view_as(attended)
            metrics |= {
                "fact_storage/feed_forward": accuracy(through, task, U),
                "fact_margin/feed_forward": mean_margin(through, task, U),
                "fact_storage/without_feed_forward": accuracy(direct + through.mean((0, 1)), task, U),
            }
            if has_direct:
                metrics["fact_storage/without_direct"] = accuracy(through + direct.mean((0, 1)), task, U)
            split = None if unknown_pairs(task) else two_way(by_pair(through.mean(1), task), U)
            if split is not None:
                additive = split.additive.flatten(0, 1)[:, None]
                metrics["fact_storage/additive_feed_forward"] = accuracy(direct + additive, task, U)
                metrics["fact_storage/feed_forward_interaction"] = split.interaction
        references = {
            name: Reference(chance=0.0 if name.startswith("fact_margin/") else 1 / U.shape[1])
            for name in metrics
            if not name.endswith("interaction")
        }
        return ProbeResult(metrics, references)


def mean_margin(x: Float[Tensor, "fact draw d"], task: FactualTask, U: Float[Tensor, "d A"]) -> float:
    """E[L_{a*} − mean_a L] with L = x U, so E[xᵀ (u_{a*} − ū)]."""
    against = U.T[task.targets] - U.mean(1)
    return float((x.mean(1) * against).sum(1).mean())
