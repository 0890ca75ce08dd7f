"""Which path to the logits knows the facts: the direct one from attention, or the one through the feed-forward part.

L = L_direct + L_FF as in `tasks.factual.streams`.
"""

from probes.factual.additivity import two_way, unknown_pairs
from probes.factual.config import FactStorageProbeConfig
from probes.factual.tables import TableProbe, accuracy, feed_forward, fraction
from tasks.factual.streams import Paths, by_pair
from tasks.factual.tables import fact_tables
from tasks.factual.task import FactualTask
from toytf.measurement import Group, Headline
from toytf.models.transformer import ToyTransformer
from toytf.probe import ProbeResult
from toytf.task import Task

FACT_STORAGE = Group(
    "fact_storage", "Accuracy by path", "Facts are stored in the path that answers them by itself, and without which "
    "the model forgets them. Chance is a guess.", section="interventions",
    headline=(
        Headline("without_feed_forward", "facts still right without the feed-forward part", 1),
        Headline("without_direct", "facts still right without the direct path from attention", 1),
    ),
    meanings=(
        ("direct*", "Fraction of the facts that the direct path from attention to the logits answers by itself; 1 if "
         "all are stored there."),
        ("feed_forward_interaction*", "Share of the variance of the feed-forward part's logits that only pairs "
         "explain; near 0 if it stores no pairs."),
        ("feed_forward*", "Fraction of the facts that the path through the feed-forward part answers by itself; 1 if "
         "all are stored there."),
        ("without_direct*", "Fraction of the facts still right with the direct path held at its mean; near chance if "
         "they are stored there, 1 if it is not needed."),
        ("without_feed_forward*", "Fraction of the facts still right with the feed-forward part held at its mean; near "
         "chance if they are stored there."),
        ("additive_feed_forward*", "Fraction of the facts still right if the feed-forward part knows subjects and "
         "relations but no pairs; low if it stores pairs."),
    ),
)  # fmt: skip
FACT_MARGIN = Group(
    "fact_margin", "Margin of the right answer over the mean answer by path", "How much each path adds to the logit of "
    "the right answer.", unit="logits",
    section="memories", headline=(),
    meanings=(
        ("direct*", "By how much the direct path from attention lifts the right answer above the mean answer, in "
         "logits; the more, the more it knows."),
        ("feed_forward*", "By how much the feed-forward part lifts the right answer above the mean answer, in logits; "
         "the more, the more it knows."),
    ),
)  # fmt: skip


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

    config: FactStorageProbeConfig

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a task without facts, and a model whose paths cannot be told apart."""
        super().check(model, task)
        feed_forward(self.config.kind, model)

    def measure(self, model: ToyTransformer, task: FactualTask) -> ProbeResult:
        """Measure the paths on every fact among fresh noise."""
        U = model.unembed.W_U
        attended = fact_tables(model, task, self.config.repeats).attended
        part = feed_forward(self.config.kind, model)
        alone, accuracies, interaction = {"direct": attended}, {}, None
        if part is not None:
            paths = Paths(part, attended)
            through = paths.through
            direct = {} if paths.direct is None else {"direct": paths.direct}
            alone = {**direct, "feed_forward": through}
            without = paths.right_without(task, U)
            accuracies = {f"without_{path}": fraction(right) for path, right in without.items()}
            split = None if unknown_pairs(task) else two_way(by_pair(through.mean(1), task), U)
            if split is not None:
                additive = split.additive.flatten(0, 1)[:, None].expand_as(through)
                accuracies["additive_feed_forward"] = accuracy(part.add(attended, additive), task, U)
                interaction = split.interaction
        accuracies |= {name: accuracy(path, task, U) for name, path in alone.items()}
        found = [FACT_STORAGE.measurement(value, name, chance=1 / U.shape[1]) for name, value in accuracies.items()]
        against = U.T[task.targets] - U.mean(1)  # with L = x U, E[L_{a*} − mean_a L] is E[xᵀ (u_{a*} − ū)]
        for name, path in alone.items():
            margin = float((path.mean(1) * against).sum(1).mean())
            found.append(FACT_MARGIN.measurement(margin, name, chance=0.0))
        if interaction is not None:
            found.append(FACT_STORAGE.measurement(interaction, "feed_forward_interaction"))
        return ProbeResult(found)
