"""How much of what a model says about a pair is a sum of what it says about the subject and about the relation.

    L[s, r, a] = μ_a + α_{s,a} + β_{r,a} + γ_{sr,a}

L are the logits in the mean over noise, centred over answers, since what all have in common changes no prediction; μ, α
and β are means over pairs. In the attention-only construction of Nichani, Lee, Bietti 2024 there is no interaction γ.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probes.config import AdditivityConfig
from probes.fact_tables import accuracy, by_pair, fact_logits, fact_tables, factual, missed, why_no_tables
from tasks.factual.task import FactualTask
from toytf.models.transformer import ToyTransformer
from toytf.probe import Probe, ProbeResult
from toytf.task import Batch, Reference, Task


@dataclass(frozen=True, eq=False)
class TwoWay:
    """Logits as a sum: the additive part μ + α + β, and which fractions of the variance α, β and γ have."""

    additive: Float[Tensor, "S R A"]
    subject: float
    relation: float
    interaction: float


def two_way(L: Float[Tensor, "S R A"]) -> TwoWay | None:
    """The analysis of variance of logits by subject and relation, in float64; None if they do not vary.

    Fractions of Σ (L − μ)², summed over pairs and answers: R Σ α², S Σ β² and Σ γ².
    """
    L = L.cpu().double()
    L = L - L.mean(2, keepdim=True)
    mean = L.mean((0, 1), keepdim=True)
    alpha, beta = L.mean(1, keepdim=True) - mean, L.mean(0, keepdim=True) - mean
    additive = mean + alpha + beta
    total = float((L - mean).square().sum())
    if not total > 0:
        return None
    S, R = L.shape[:2]
    parts = (R * alpha.square().sum(), S * beta.square().sum(), (L - additive).square().sum())
    return TwoWay(additive, *(float(part) / total for part in parts))


def unknown_pairs(task: FactualTask) -> int:
    """About how many pairs the table says nothing."""
    return len(task.subjects) * len(task.relations) - len(task.pairs)


class Additivity(Probe):
    """`additivity/subject`, `/relation` and `/interaction`: fractions of the variance of the logits, which sum to 1.

    `additivity/accuracy`          of the additive part μ + α + β
    `additivity/table_accuracy`    of (G_s + G_r)ᵀ u_a, with G as in `value_memory`: if attention to s did not depend
                                   on r; only for one layer without positions

    Chance: the fractions of independent random logits. What noise leaves in the mean counts as interaction, which
    matters only for a model that has learned little. Nothing is measured on a table with gaps.
    """

    config: AdditivityConfig

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a task without facts."""
        factual(self.config.kind, task)

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Split the logits of every fact, in the mean over fresh noise; the batch is not used."""
        task = factual(self.config.kind, task)
        if unknown_pairs(task):
            return ProbeResult({})
        split = two_way(by_pair(fact_logits(model, task, self.config.repeats).mean(1), task))
        if split is None:
            return ProbeResult({})
        S, R, guess = len(task.subjects), len(task.relations), 1 / len(task.output_names)
        additive = split.additive.flatten(0, 1).to(task.device)
        metrics = {
            "additivity/subject": split.subject,
            "additivity/relation": split.relation,
            "additivity/interaction": split.interaction,
            "additivity/accuracy": accuracy(additive, task),
        }
        references = {
            "additivity/subject": Reference(chance=(S - 1) / max(S * R - 1, 1)),
            "additivity/relation": Reference(chance=(R - 1) / max(S * R - 1, 1)),
            "additivity/interaction": Reference(chance=(S - 1) * (R - 1) / max(S * R - 1, 1)),
            "additivity/accuracy": Reference(1.0, guess),
        }
        if why_no_tables(model) is None:
            G = fact_tables(model, task, self.config.repeats).contributions
            tables = G[task.subjects][:, None] + G[task.relations]
            metrics["additivity/table_accuracy"] = accuracy((tables @ model.unembed.W_U).flatten(0, 1), task)
            references["additivity/table_accuracy"] = Reference(1.0, guess)
        wrong = missed(additive, task, self.config.failures)
        return ProbeResult(metrics, references, {"additivity/accuracy": wrong})
