"""How much of what a model says about a pair is a sum of what it says about the subject and about the relation.

    L[s, r, a] = μ_a + α_{s,a} + β_{r,a} + γ_{sr,a}

L are the logits averaged over noise and centred over answers, since what all have in common changes no prediction; μ, α
and β are means over pairs. In the attention-only construction of Nichani, Lee, Bietti 2024 there is no interaction γ.
All of it is linear in the stream x that is read out, L = x U, so it is done there, in d dimensions instead of |A|.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probes.factual.config import AdditivityProbeConfig
from probes.factual.tables import FactProbe, accuracy, ideal_of_sums, missed
from tasks.factual.ideal import query_tokens
from tasks.factual.streams import by_pair, final_streams
from tasks.factual.tables import fact_tables, why_no_tables
from tasks.factual.task import FactualTask
from toytf.measurement import Group, Headline
from toytf.memory import exact
from toytf.models.transformer import ToyTransformer
from toytf.probe import ProbeResult

ADDITIVITY = Group(
    "additivity", "Logits as a sum over subject and relation", "If the interaction is small and the sum answers all "
    "facts, no memory of pairs is needed. If the sum fails, facts need a feed-forward part or competing heads.",
    section="memories", headline=(Headline("accuracy", "facts that a sum over subject and relation would answer", 1),),
    meanings=(
        ("subject*", "Share of the variance of the logits that the subject alone explains; with those of relation and "
         "interaction it makes 1."),
        ("relation*", "Share of the variance of the logits that the relation alone explains; with those of subject and "
         "interaction it makes 1."),
        ("interaction*", "Share of the variance of the logits that only the pair of subject and relation explains; "
         "near 0 if no pairs are stored."),
        ("accuracy*", "Fraction of the facts that the best sum of a part for the subject and one for the relation "
         "answers; at 1 no memory of pairs is needed."),
        ("table_accuracy*", "Fraction of the facts answered by adding what subject and relation contribute on average; "
         "1 if heads attend to each regardless of the other."),
    ),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class TwoWay:
    """Logits as a sum: a stream of the additive part μ + α + β, and which fractions of the variance α, β and γ have."""

    additive: Float[Tensor, "S R d"]
    subject: float
    relation: float
    interaction: float


def two_way(X: Float[Tensor, "S R d"], U: Float[Tensor, "d A"] | None = None) -> TwoWay | None:
    """The analysis of variance of logits L = X U by subject and relation, done in float64; None if they do not vary.

    Fractions of Σ (L − μ)², summed over pairs and answers: R Σ α², S Σ β² and Σ γ². Without U, X are the logits.
    With U centred over answers and (U − Ū)ᵀ = Q T, where QᵀQ = I, such sums are the same for X Tᵀ.
    """
    if U is not None and not bool(U.isfinite().all()):
        return None  # diverged
    x = exact(X)
    additive = (x.mean(1, keepdim=True) + x.mean(0, keepdim=True) - x.mean((0, 1), keepdim=True)).to(X)
    if U is None:
        x = x - x.mean(2, keepdim=True)
    else:
        x = x @ torch.linalg.qr((exact(U) - exact(U).mean(1, keepdim=True)).T, mode="r").R.T
    mean = x.mean((0, 1), keepdim=True)
    alpha, beta = x.mean(1, keepdim=True) - mean, x.mean(0, keepdim=True) - mean
    total = float((x - mean).square().sum())
    if not total > 0:
        return None
    S, R = X.shape[:2]
    parts = (R * alpha.square().sum(), S * beta.square().sum(), (x - mean - alpha - beta).square().sum())
    return TwoWay(additive, *(float(part) / total for part in parts))


def unknown_pairs(task: FactualTask) -> int:
    """About how many pairs the table says nothing."""
    return len(task.subjects) * len(task.relations) - len(task.pairs)


def sums(G: Float[Tensor, "token d"], model: ToyTransformer, task: FactualTask) -> Float[Tensor, "S R d"]:
    """G_s + G_r, plus e_q with a residual: q is the end token, or the relation where it comes last."""
    of_pairs = G[task.subjects][:, None] + G[task.relations]
    return model.attention(0).add(model.embed.W_E[query_tokens(task)], of_pairs)


class Additivity(FactProbe):
    """`additivity/subject`, `/relation` and `/interaction`: fractions of the variance of the logits, which sum to 1.

    `additivity/accuracy`          of the additive part μ + α + β
    `additivity/table_accuracy`    of (G_s + G_r)ᵀ u_a, with G as in `value_memory`, and with e_q of the token that asks
                                   in the sum if there is a residual: if attention to s did not depend on r; only for
                                   one layer without positions

    Chance: the fractions of independent random logits. Ideally sums know all facts without a feed-forward part; with
    one they need not. What remains of noise on average counts as interaction, which matters only for a model that has
    learned little. Nothing is measured on a table with gaps.
    """

    config: AdditivityProbeConfig

    def measure(self, model: ToyTransformer, task: FactualTask) -> ProbeResult:
        """Split the logits of every fact, averaged over fresh noise."""
        if unknown_pairs(task):
            return ProbeResult()
        U = model.unembed.W_U
        split = two_way(by_pair(final_streams(model, task, self.config.repeats).mean(1), task), U)
        if split is None:
            return ProbeResult()
        S, R, ideal, guess = len(task.subjects), len(task.relations), ideal_of_sums(model), 1 / len(task.output_names)
        freedom, additive = max(S * R - 1, 1), split.additive.flatten(0, 1)
        known = ADDITIVITY.measurement(accuracy(additive, task, U), "accuracy", ideal=ideal, chance=guess)
        found = [
            ADDITIVITY.measurement(split.subject, "subject", chance=(S - 1) / freedom),
            ADDITIVITY.measurement(split.relation, "relation", chance=(R - 1) / freedom),
            ADDITIVITY.measurement(split.interaction, "interaction", chance=(S - 1) * (R - 1) / freedom),
            known,
        ]
        if why_no_tables(model) is None:
            G = fact_tables(model, task, self.config.repeats).contributions
            by_tables = accuracy(sums(G, model, task).flatten(0, 1), task, U)
            found.append(ADDITIVITY.measurement(by_tables, "table_accuracy", ideal=ideal, chance=guess))
        return ProbeResult(found, {known.flat: missed(additive, task, self.config.failures, U)})
