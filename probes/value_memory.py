"""What the values of subjects and relations say by themselves, before any feed-forward part.

    G_z = Σ_h E[p_h(z) | z is there] OV_h(z),   score of answer a: G_zᵀ u_a

With attention only, G_s holds the answers of s under all relations, and G_r the set A_r (Nichani, Lee, Bietti 2024).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probes.config import ValueMemoryConfig
from probes.fact_tables import TableProbe, fact_tables, factual, ideal_of_sums, missed, subject_answers
from toytf.models.transformer import ToyTransformer
from toytf.probe import ProbeResult
from toytf.task import Batch, Reference, Task

SHOWN = 64
"""How many answers the figure shows at most."""


class ValueMemory(TableProbe):
    """`value_memory/…`; chance is a random order of answers.

    `subject_recall`     the fraction of the k answers that s has which are among the k highest of G_s
    `within_set`         how often G_s prefers the right answer among A_r
    `relation_recall`    the fraction of A_r that is among the |A_r| highest of G_r

    Without a feed-forward part the ideal is the Hebbian construction, 1. Optimised values know all facts as well, but
    decide together, and have .77 to .95. With a feed-forward part there is no ideal: values need not know anything.
    """

    config: ValueMemoryConfig

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure the values with the masses over every fact among fresh noise; the batch is not used."""
        task = factual(self.config.kind, task)
        scores = fact_tables(model, task, self.config.repeats).contributions @ model.unembed.W_U
        by_subject, by_relation = scores[task.subjects], scores[task.relations]
        of_subject, of_relation = subject_answers(task), task.sets
        s, r = task.pairs.unbind(1)
        in_set = of_relation[r]
        chosen = by_subject[s].masked_fill(~in_set, -torch.inf)
        metrics = {
            "value_memory/subject_recall": recall_at_size(by_subject, of_subject),
            "value_memory/within_set": float((chosen.argmax(1) == task.targets).float().mean()),
            "value_memory/relation_recall": recall_at_size(by_relation, of_relation),
        }
        ideal = ideal_of_sums(model)
        references = {
            "value_memory/subject_recall": Reference(ideal, float(of_subject.float().mean())),
            "value_memory/within_set": Reference(ideal, float((1 / in_set.sum(1).float()).mean())),
            "value_memory/relation_recall": Reference(ideal, float(of_relation.float().mean())),
        }
        panels = {
            "subjects": (by_subject[:, :SHOWN].cpu().numpy(), task.table.subject_names),
            "relations": (by_relation[:, :SHOWN].cpu().numpy(), task.table.relation_names),
        }

        def draw() -> object:
            from toytf.figures import heat_maps

            names = task.table.answer_names[:SHOWN]
            shown = {panel: (values, rows, names) for panel, (values, rows) in panels.items()}
            return heat_maps(shown, f"What values say (at most {SHOWN} answers shown)", x="answer", y="token")

        wrong = missed(chosen, task, self.config.failures)
        return ProbeResult(metrics, references, {"value_memory/within_set": wrong}, draw)


def recall_at_size(scores: Float[Tensor, "n A"], sets: Bool[Tensor, "n A"]) -> float:
    """|top_k ∩ set| / k with k = |set|, in the mean over rows."""
    size = sets.sum(1)
    ranked = sets.gather(1, scores.argsort(1, descending=True))
    is_top = torch.arange(sets.shape[1], device=sets.device) < size[:, None]
    return float(((ranked & is_top).sum(1) / size).float().mean())
