"""Which head attends to which subject and relation, and by how much (Nichani, Lee, Bietti 2024).

A head owns a token if it puts more than half of its attention on it, averaged over the sequences that have it. In
the construction every subject and every relation is owned, each head attends by one vector k_h, and one that owns
neither token of a sequence falls back on the end token:

    ℓ_h(z) = k_hᵀ e_z,   k_h = W_KQ^hᵀ e_q / scale,   k*_h by least squares with
    k*_hᵀ e_z ≈ 1 for the tokens that the head owns, ½ for the end token, 0 for all others
"""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probes.factual.config import OwnershipProbeConfig
from probes.factual.tables import TableProbe
from tasks.factual.grafts import owned
from tasks.factual.ideal import key_vector, query_tokens
from tasks.factual.tables import FactTables, fact_tables
from tasks.factual.task import FactualTask
from toytf.measurement import Group, Headline, Measurement
from toytf.memory import exact
from toytf.models.transformer import ToyTransformer
from toytf.probe import ProbeResult

OWNERSHIP = Group(
    "ownership", "Which tokens heads attend to", "A head that owns a token puts more than half of its attention on it: "
    "are all subjects and relations owned, or does attention go to noise?", variants=("head",),
    section="attention", headline=(
        Headline("subjects", "subjects that get over half of some head's attention", 1),
        Headline("relations", "relations that get over half of some head's attention", 1),
    ),
    meanings=(
        ("subjects*/head*", "How many subjects this head gives over half of its attention; all heads together should "
         "reach all subjects."),
        ("relations*/head*", "How many relations this head gives over half of its attention; all heads together should "
         "reach all relations."),
        ("noise_mass*/head*", "Attention of this head on noise tokens; 0 is best."),
        ("end_mass*/head*", "Attention of this head on the end token, where a head rests that has nothing to find."),
        ("key_cosine*/head*", "Cosine of what this head looks for with the ideal vector for the tokens it owns; 1 as "
         "in the construction."),
        ("subjects*", "Fraction of the subjects that get over half of some head's attention; 1 if none is overlooked."),
        ("relations*", "Fraction of the relations that get over half of some head's attention; 1 if none is "
         "overlooked."),
        ("subject_mass*", "Attention on a subject by the head that attends to it most, averaged over subjects; 1 is "
         "all of it."),
        ("relation_mass*", "Attention on a relation by the head that attends to it most, averaged over relations; 1 is "
         "all of it."),
        ("noise_mass*", "Attention on noise tokens, averaged over heads; 0 is best."),
        ("end_mass*", "Attention on the end token, averaged over heads: where heads rest that have nothing to find."),
        ("key_cosine*", "Cosine of what heads look for with the ideal vectors for the tokens they own, averaged over "
         "heads; 1 as in the construction."),
    ),
)  # fmt: skip
KEY_GAP = Group(
    "key_gap", "Score of a token above all noise, in the head that attends to it most", "Above 0, that head attends "
    "more to the token than to all noise tokens of a sequence together.",
    section="attention", headline=(),
    meanings=(
        ("subjects*", "Log odds of a subject against all noise of a sequence, in the head that attends to it most; "
         "above 0 the subject wins."),
        ("relations*", "Log odds of a relation against all noise of a sequence, in the head that attends to it most; "
         "above 0 the relation wins."),
    ),
)  # fmt: skip


class Ownership(TableProbe):
    """`ownership/…`; chance is attention to all positions alike. Variants `/head3`: of one head.

    `subjects`, `relations`                  the fraction that some head owns; by head: how many it owns
    `subject_mass`, `relation_mass`          the mass on a token by the head that has most of it, given that it is there
    `noise_mass`, `end_mass`                 the mass on all noise tokens and on the end token, averaged over heads
    `key_gap/subjects`, `key_gap/relations`  ℓ_h(z) − ln E Σ_noise e^ℓ_h(z'), of that head: z against all the noise
    `key_cosine`                             cos(k_h, k*_h), averaged over heads that own tokens

    Where the relation comes last, it is the token that heads fall back on: nobody owns it, and what needs an end token
    is left out.
    """

    config: OwnershipProbeConfig

    def measure(self, model: ToyTransformer, task: FactualTask) -> ProbeResult:
        """Measure the masses over every fact among fresh noise."""
        tables = fact_tables(model, task, self.config.repeats)
        owns, T = owned(tables.mass_given, task), task.n_positions
        found: list[Measurement] = []
        places = T - (2 if task.end is None else 3)
        gap = key_gap(tables, task) if places and task.end is not None else None
        for name, tokens in {"subject": task.subjects, "relation": task.relations}.items():
            these, mass = owns[:, tokens], tables.mass_given[:, tokens]
            if name == "subject" or task.end is not None:
                covered = float(these.any(0).float().mean())
                found.append(OWNERSHIP.measurement(covered, f"{name}s", ideal=1.0, chance=0.0))
                found += _by_head(f"{name}s", dict(enumerate(these.sum(1).float().tolist())))
            most = float(mass.max(0).values.mean())
            found.append(OWNERSHIP.measurement(most, f"{name}_mass", ideal=1.0, chance=1 / T))
            if gap is not None:
                of_best = gap[:, tokens].gather(0, mass.argmax(0, keepdim=True))
                found.append(KEY_GAP.measurement(float(of_best.mean()), f"{name}s", chance=-math.log(places)))
        on_noise = tables.mass[:, task.noise].sum(1)
        found.append(OWNERSHIP.measurement(float(on_noise.mean()), "noise_mass", ideal=0.0, chance=places / T))
        found += _by_head("noise_mass", dict(enumerate(on_noise.tolist())))
        if task.end is not None:
            on_end = tables.mass[:, task.end]
            found.append(OWNERSHIP.measurement(float(on_end.mean()), "end_mass", chance=1 / T))
            found += _by_head("end_mass", dict(enumerate(on_end.tolist())))
            cosines = key_cosines(model, task, owns)
            if cosines:
                mean = sum(cosines.values()) / len(cosines)
                found.append(OWNERSHIP.measurement(mean, "key_cosine", ideal=1.0, chance=0.0))
                found += _by_head("key_cosine", cosines)
        mass_given = tables.mass_given.cpu().numpy()

        def draw() -> object:
            from toytf.figures import heat_maps

            heads = [f"L0H{head}" for head in range(len(mass_given))]
            title = "Attention of each head to each token, in sequences that contain it"
            return heat_maps({"": (mass_given, heads, task.token_names)}, title, x="token", y="")

        return ProbeResult(found, draw=draw)


def _by_head(name: str, values: Mapping[int, float]) -> list[Measurement]:
    return [OWNERSHIP.measurement(value, name, head=head) for head, value in values.items()]


def key_gap(tables: FactTables, task: FactualTask) -> Float[Tensor, "head token"]:
    """ℓ_h(z) − ln((T−3)/n_noise Σ_{z' noise} e^ℓ_h(z')): the log odds of z against all the noise of a sequence."""
    scores = tables.scores[0]
    noise = scores[:, task.noise].logsumexp(1, keepdim=True)
    return scores - noise - math.log((task.n_positions - 3) / len(task.noise))


def key_cosines(model: ToyTransformer, task: FactualTask, owns: Bool[Tensor, "head token"]) -> dict[int, float]:
    """cos(k_h, k*_h) of every head that owns tokens."""
    E, W_KQ = exact(model.embed.W_E), exact(model.W_KQ(0))
    asking, cosines = query_tokens(task), {}
    for head in owns.any(1).nonzero()[:, 0].tolist():
        ideal = key_vector(E, owns[head].nonzero()[:, 0].tolist(), asking, "least_squares")
        learned = E[asking[0]] @ W_KQ[head]
        cosines[head] = float(torch.nn.functional.cosine_similarity(learned, ideal, dim=0))
    return cosines
