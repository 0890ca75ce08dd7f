"""What the values of subjects and relations say by themselves, before any feed-forward part.

    G_z = Σ_h E[p_h(z) | z is there] OV_h(z),   score of answer a: G_zᵀ u_a

With attention only, G_s holds the answers of s under all relations, and G_r the set A_r (Nichani, Lee, Bietti 2024).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probes.factual.config import ValueMemoryProbeConfig
from probes.factual.tables import TableProbe, ideal_of_sums, wrong_facts
from tasks.factual.tables import fact_tables, in_chunks, subject_answers
from tasks.factual.task import FactualTask
from toytf.measurement import Group
from toytf.models.transformer import ToyTransformer
from toytf.probe import ProbeResult

VALUE_MEMORY = Group(
    "value_memory", "Which answers the values of subjects and relations predict", "Near 1, the values that attention "
    "reads already know the answers; near chance, they only serve as keys for the feed-forward part.",
    section="memories", headline=(),
    meanings=(
        ("subject_recall*", "Fraction of a subject's answers that score highest in what attention adds for it; 1 if "
         "values know them before any hidden unit."),
        ("within_set*", "How often what attention adds for the subject prefers the right answer among those of the "
         "relation; 1 if values know the facts."),
        ("relation_recall*", "Fraction of a relation's answers that score highest in what attention adds for it; 1 if "
         "values know them before any hidden unit."),
    ),
)  # fmt: skip

MAX_SHOWN = 64
"""How many answers the figure shows at most."""


class ValueMemory(TableProbe):
    """`value_memory/…`; chance is a random order of answers.

    `subject_recall`     the fraction of the k answers that s has which are among the k highest of G_s
    `within_set`         how often G_s prefers the right answer among A_r
    `relation_recall`    the fraction of A_r that is among the |A_r| highest of G_r

    Without a feed-forward part the ideal is the Hebbian construction, 1. Optimised values know all facts as well, but
    decide together, and have .77 to .95. With a feed-forward part there is no ideal: values need not know anything.
    """

    config: ValueMemoryProbeConfig

    def measure(self, model: ToyTransformer, task: FactualTask) -> ProbeResult:
        """Measure the values with the masses over every fact among fresh noise."""
        G, U = fact_tables(model, task, self.config.repeats).contributions, model.unembed.W_U
        by_subject, by_relation = (G[tokens.start : tokens.stop] @ U for tokens in (task.subjects, task.relations))
        of_subject, of_relation = subject_answers(task), task.sets
        said = in_chunks(  # for every fact, the answer of A_r that the subject prefers
            lambda s, r: by_subject[s].masked_fill(~of_relation[r], -torch.inf).argmax(1),
            of_relation.shape[1],
            *task.pairs.unbind(1),
        )
        ideal, in_set = ideal_of_sums(model), of_relation.sum(1)[task.pairs[:, 1]]
        guess = {
            "subject_recall": float(of_subject.float().mean()),
            "within_set": float((1 / in_set.float()).mean()),
            "relation_recall": float(of_relation.float().mean()),
        }
        values = {
            "subject_recall": recall_at_size(by_subject, of_subject),
            "within_set": float((said == task.targets).float().mean()),
            "relation_recall": recall_at_size(by_relation, of_relation),
        }
        found = {
            name: VALUE_MEMORY.measurement(value, name, ideal=ideal, chance=guess[name])
            for name, value in values.items()
        }
        panels = {
            "subjects": (by_subject[:, :MAX_SHOWN].cpu().numpy(), task.table.subject_names),
            "relations": (by_relation[:, :MAX_SHOWN].cpu().numpy(), task.table.relation_names),
        }

        def draw() -> object:
            from toytf.figures import heat_maps

            names = task.table.answer_names[:MAX_SHOWN]
            shown = {panel: (values, rows, names) for panel, (values, rows) in panels.items()}
            return heat_maps(
                shown, f"What the values of tokens predict (at most {MAX_SHOWN} answers shown)", x="answer", y="token"
            )

        wrong = {found["within_set"].flat: wrong_facts(said, task, self.config.failures)}
        return ProbeResult([*found.values()], wrong, draw)


def recall_at_size(scores: Float[Tensor, "n A"], sets: Bool[Tensor, "n A"]) -> float:
    """|top_k ∩ set| / k with k = |set|, averaged over rows."""
    size = sets.sum(1)
    largest = int(size.max())
    ranked = sets.gather(1, scores.topk(largest, dim=1).indices)
    is_top = torch.arange(largest, device=sets.device) < size[:, None]
    return float(((ranked & is_top).sum(1) / size).float().mean())
