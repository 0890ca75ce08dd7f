"""The values of subjects and relations beside those of the constructions (Nichani, Lee, Bietti 2024).

    attention only                g_s = Σ_r u_{a*(s,r)} / |u|²,   g_r = Σ_{a∈A_r} u_a / |u|²
    with a feed-forward part      g_z = e_z, a copy

Both are projected on the span of the output vectors u, outside of which nothing reaches the logits directly; with more
answers than dimensions that is everything. A copy is not projected, as it is meant for the feed-forward part.
"""

import torch

from probes.factual.config import ValueAlignmentProbeConfig
from probes.factual.tables import TableProbe
from probes.matrices import cosine
from tasks.factual.grafts import owned
from tasks.factual.ideal_values import answers_of_tokens
from tasks.factual.tables import fact_tables
from tasks.factual.task import FactualTask
from toytf.measurement import Group
from toytf.memory import exact
from toytf.models.transformer import ToyTransformer
from toytf.probe import ProbeResult

VALUE_ALIGNMENT = Group(
    "value_alignment", "Values compared with the construction", "At 1 training has found the values of the "
    "construction; other values can know the facts as well.", unit="cosine", variants=("head",),
    section="memories", headline=(),
    meanings=(
        ("subjects*", "Cosine of what attention adds for subjects with the values of the construction; 1 if training "
         "found these, 0 by chance."),
        ("relations*", "Cosine of what attention adds for relations with the values of the construction; 1 if training "
         "found these, 0 by chance."),
        ("owned*/head*", "Cosine of this head's values for the tokens it owns with those of the construction; 1 if "
         "training found these, 0 by chance."),
        ("owned*", "Cosine of all heads' values for the tokens they own with those of the construction; 1 if training "
         "found these, 0 by chance."),
    ),
)  # fmt: skip


class ValueAlignment(TableProbe):
    """`value_alignment/…`, cosines ⟨X, X*⟩ / (|X| |X*|) of sets of vectors with the ideal ones; 0 for random values.

    `subjects`, `relations`    of G_z = Σ_h E[p_h(z) | z is there] OV_h(z), all heads together
    `owned`                    of OV_h(z) for every head and the tokens it owns (see `ownership`; where the relation
                               comes last, only subjects are owned); `/head3`: of one head

    Copies and sums have 1. Optimised values, which know all facts as well, are not sums and have about .7.
    """

    config: ValueAlignmentProbeConfig

    def measure(self, model: ToyTransformer, task: FactualTask) -> ProbeResult:
        """Compare the values, with the masses over every fact among fresh noise."""
        tables = fact_tables(model, task, self.config.repeats)
        G, n, U = tables.contributions, task.relations.stop, model.unembed.W_U
        if model.feed_forward(0) is not None:
            ideal, seen = model.embed.W_E[:n], torch.eye(len(U)).to(U)
        else:  # logits can only see the span of the output vectors
            ideal = answers_of_tokens(task.table, exact(U.T), "hebbian", steps=0).to(U)
            seen = (exact(U) @ torch.linalg.pinv(exact(U))).to(U)
        cosines: dict[tuple[str, int | None], float | None] = {
            ("subjects", None): cosine(G[task.subjects.start : task.subjects.stop] @ seen, ideal[: task.subjects.stop]),
            ("relations", None): cosine(G[task.relations.start : n] @ seen, ideal[task.relations.start :]),
        }
        owns = owned(tables.mass_given, task)[:, :n]
        head, token = owns.nonzero().unbind(1)
        values = tables.values[head, token] @ seen
        cosines["owned", None] = cosine(values, ideal[token])
        for h in owns.any(1).nonzero()[:, 0].tolist():
            cosines["owned", h] = cosine(values[head == h], ideal[token[head == h]])
        return ProbeResult(
            [
                VALUE_ALIGNMENT.measurement(value, name, ideal=1.0, chance=0.0, head=h)
                for (name, h), value in cosines.items()
                if value is not None
            ]
        )
