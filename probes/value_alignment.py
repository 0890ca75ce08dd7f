"""The values of subjects and relations beside those of the constructions (Nichani, Lee, Bietti 2024).

    attention only                g_s = Σ_r u_{a*(s,r)} / |u|²,   g_r = Σ_{a∈A_r} u_a / |u|²
    with a feed-forward part      g_z = e_z, a copy

Both are projected on the span of the output vectors u, outside of which nothing reaches the logits directly; with more
answers than dimensions that is everything. A copy is not projected, as it is meant for the feed-forward part.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from probes.config import ValueAlignmentConfig
from probes.fact_tables import TableProbe, fact_tables, factual
from probes.ownership import owned
from tasks.factual.ideal import exact
from tasks.factual.ideal_values import answers_of_tokens
from tasks.factual.task import FactualTask
from toytf.models.transformer import ToyTransformer
from toytf.probe import ProbeResult
from toytf.task import Batch, Reference, Task


class ValueAlignment(TableProbe):
    """`value_alignment/…`, cosines ⟨X, X*⟩ / (|X| |X*|) of sets of vectors with the ideal ones; 0 for random values.

    `subjects`, `relations`    of G_z = Σ_h E[p_h(z) | z is there] OV_h(z), all heads together
    `owned`                    of OV_h(z) for every head and the tokens it owns (see `ownership`; where the relation
                               stands last, only subjects are owned); `/head3`: of one head

    Copies and sums have 1. Optimised values, which know all facts as well, are not sums and have about .7.
    """

    config: ValueAlignmentConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Compare the values, with the masses over every fact among fresh noise; the batch is not used."""
        task = factual(self.config.kind, task)
        tables = fact_tables(model, task, self.config.repeats)
        ideal, seen = ideal_values(model, task), visible(model)
        G, n = tables.contributions, task.relations.stop
        found = {
            "subjects": cosine(G[task.subjects.start : task.subjects.stop] @ seen, ideal[: task.subjects.stop]),
            "relations": cosine(G[task.relations.start : n] @ seen, ideal[task.relations.start :]),
        }
        owns = owned(tables.mass_given, task)[:, :n]
        head, token = owns.nonzero().unbind(1)
        values = tables.values[head, token] @ seen
        found["owned"] = cosine(values, ideal[token])
        for h in owns.any(1).nonzero()[:, 0].tolist():
            found[f"owned/head{h}"] = cosine(values[head == h], ideal[token[head == h]])
        metrics = {f"value_alignment/{name}": value for name, value in found.items() if value is not None}
        return ProbeResult(metrics, dict.fromkeys(metrics, Reference(1.0, 0.0)))


def ideal_values(model: ToyTransformer, task: FactualTask) -> Float[Tensor, "token d"]:
    """g of every subject and relation."""
    if model.feed_forward(0) is not None:
        return model.embed.W_E[: task.relations.stop]
    U = model.unembed.W_U
    return answers_of_tokens(task.table, exact(U.T), "hebbian", steps=0).to(U)


def visible(model: ToyTransformer) -> Float[Tensor, "d d"]:
    """The projection on what the logits can see: the span of the output vectors, or all for a feed-forward part."""
    U = model.unembed.W_U
    if model.feed_forward(0) is not None:
        return torch.eye(len(U)).to(U)
    projection: Tensor = exact(U) @ torch.linalg.pinv(exact(U))
    return projection.to(U)


def cosine(X: Float[Tensor, "n d"], ideal: Float[Tensor, "n d"]) -> float | None:
    """⟨X, X*⟩ / (|X| |X*|); None if one of the two is 0."""
    norms = float(X.norm() * ideal.norm())
    return float((X * ideal).sum()) / norms if norms > 0 else None
