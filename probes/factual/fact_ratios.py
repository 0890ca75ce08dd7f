"""How full a model of one layer is, and which theorem says that it is large enough (Nichani, Lee, Bietti 2024)."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from probes.factual.config import FactRatiosProbeConfig
from probes.factual.tables import FactProbe
from tasks.factual.ideal import first_obstacle
from tasks.factual.streams import final_streams
from tasks.factual.tables import in_chunks
from tasks.factual.task import FactualTask
from toytf import theory
from toytf.errors import UserError
from toytf.measurement import Group, Headline
from toytf.models.transformer import ToyTransformer
from toytf.probe import ProbeResult
from toytf.task import Task

RATIO = Group(
    "ratio", "Facts relative to model size", "How much each parameter, head or dimension has to hold. Facts per "
    "parameter near the value of theory mean that the model is full; a dimension above it means room to spare.",
    headline=(Headline("facts_per_parameter", "facts per parameter (theory: where a model is full)", 1),),
    meanings=(
        ("facts_per_parameter*", "Facts in the table per parameter; at the value of theory trained models are full, "
         "and below it there is room."),
        ("bits_per_parameter*", "Bits per parameter that the model knows of the facts, by its loss; ideal if it knows "
         "all, 0 for a guess."),
        ("attention*", "Facts in the table over H d_head d, the size of attention; the smaller, the more room there "
         "is."),
        ("feed_forward*", "Facts in the table over m d, the size of the feed-forward part; up to 1 the theorem finds "
         "room for all."),
        ("heads*", "Total width of the heads over the number of subjects and relations; from 1 on each token can have "
         "its direction in some head."),
        ("dimension*", "Dimension over relations plus answers per relation; from the value of theory on, sums of "
         "random vectors answer all facts."),
    ),
)  # fmt: skip
THEOREM = Group(
    "theorem", "Conditions of the theorems, with constants set to 1 (1: it holds)", "If one holds, weights that know "
    "all facts exist, whether training finds them or not.",
    headline=(),
    meanings=(
        ("attention_mlp*", "Whether a theorem finds room for all facts in attention and hidden units, its constants "
         "set to 1; 1 if so, else 0."),
        ("attention_only*", "Whether a theorem finds room for all facts in attention alone, its constants set to 1; 1 "
         "if so, else 0."),
    ),
)  # fmt: skip


class FactRatios(FactProbe):
    """`ratio/…` of S R facts to sizes, and `theorem/…`: 1 if its conditions hold with all constants 1, else 0.

    `facts_per_parameter`    S R / (4 H d_h d + 2 m d); theory: the line that trainings reach at their limit
    `bits_per_parameter`     Σ_r S (log₂ |A_r| − loss / ln 2) / parameters, with the loss over every fact
    `attention`              S R / (H d_h d)
    `feed_forward`           S R / (m d), if there is a feed-forward part
    `heads`                  H d_h / (S + R), at least 1 if every token has its direction in some head
    `dimension`              d / (R + D); theory: from where sums of random output vectors answer all facts

    `theorem/attention_mlp`     H d_h ≥ S + R, m d ≥ S R, m ≥ the number of facts of any one answer
    `theorem/attention_only`    H d_h ≥ S + R, d ≥ R + D, no answer belongs to two relations

    Pairs about which nothing is said are no facts.
    """

    config: FactRatiosProbeConfig

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a task without facts, and a model whose parameters the theorems do not count."""
        super().check(model, task)
        config = model.config
        what = first_obstacle(
            {
                f"n_layers = {config.n_layers}": config.n_layers > 1,
                "joint matrices": "joint" in (config.attention.kq, config.attention.ov),
                "a linear feed-forward part": config.feed_forward.kind == "linear",
            }
        )
        if what:
            raise UserError(
                f'probe "{self.config.kind}" counts the parameters of one layer with factored heads and hidden units, '
                f"but this model has {what}"
            )

    def measure(self, model: ToyTransformer, task: FactualTask) -> ProbeResult:
        """Count, and take the loss over every fact among fresh noise."""
        config, part = model.config, model.feed_forward(0)
        table = task.table
        S, R, D, facts = table.n_subjects, table.n_relations, int(table.sets.sum(1).max()), len(task.pairs)
        d, heads, d_head = config.d_model, config.attention.n_heads, config.d_head
        m = 0 if part is None else part.W_in.shape[1]
        parameters = theory.recall_parameters(heads, d_head, d, m)
        size = {"d_model": d, "n_heads": heads, "d_head": d_head}
        most_frequent = int(task.targets.bincount().max())
        disjoint = bool((table.sets.sum(0) <= 1).all())
        x = final_streams(model, task, self.config.repeats)
        losses = losses_of(x, model.unembed.W_U, task.targets).mean(1)
        bits, all_bits = (bits_known(task, loss) / parameters for loss in (losses, torch.zeros_like(losses)))
        found = [
            RATIO.measurement(facts / parameters, "facts_per_parameter", theory=theory.FACTS_PER_PARAMETER),
            RATIO.measurement(bits, "bits_per_parameter", ideal=all_bits, chance=0.0),
            RATIO.measurement(facts / (heads * d_head * d), "attention"),
            RATIO.measurement(heads * d_head / (S + R), "heads"),
            RATIO.measurement(d / (R + D), "dimension", theory=theory.additive_dimension(S, R, D) / (R + D)),
            THEOREM.measurement(theory.attention_suffices(S, R, D, **size, disjoint=disjoint), "attention_only"),
        ]
        if part is not None:
            suffice = theory.attention_and_mlp_suffice(S, R, **size, width=m, most_frequent=most_frequent)
            found += [RATIO.measurement(facts / (m * d), "feed_forward"), THEOREM.measurement(suffice, "attention_mlp")]
        return ProbeResult(found)


def losses_of(
    x: Float[Tensor, "fact draw d"], U: Float[Tensor, "d answer"], targets: Int[Tensor, "fact"]
) -> Float[Tensor, "fact draw"]:
    """−ln p(a*) with logits x U."""
    own = targets.repeat_interleave(x.shape[1])
    return in_chunks(
        lambda part, target: cross_entropy(part @ U, target, reduction="none"), U.shape[1], x.flatten(0, 1), own
    ).view(x.shape[:2])


def bits_known(task: FactualTask, losses: Float[Tensor, "fact"]) -> float:
    """Σ_r n_r (log₂ |A_r| − loss_r / ln 2), none below 0: a relation has n_r facts, known up to a mean loss in nats."""
    if not bool(losses.isfinite().all()):
        return math.nan  # diverged, which is for the loop to say
    r = task.pairs[:, 1]
    n = torch.bincount(r, minlength=len(task.relations))
    of_relation = losses.new_zeros(len(n)).index_add(0, r, losses) / n
    each = zip(n.tolist(), task.sets.sum(1).tolist(), of_relation.clamp_min(0).tolist(), strict=True)
    return sum(theory.bits_of_facts(facts, answers, loss) for facts, answers, loss in each)
