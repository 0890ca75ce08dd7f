"""The feed-forward part as a memory of pairs: key κ_sr = what attention gives for (s, r), value u_{a*(s,r)} / |u|².

    FF(κ) = Vᵀ φ,   φ = relu(W_inᵀ κ + b_in),   V* = Φᵀ (ΦΦᵀ + λI)⁻¹ Y,   λ = 10⁻³ |Φ|² / n

Φ [n m] has the hidden units for the n facts, averaged over noise, Y [n d] the value of each. V* is the best V by least
squares for the hidden units that were learned (derived; capacity in Nichani, Lee, Bietti 2024).
"""

import torch
from einops import einsum
from jaxtyping import Bool, Int
from torch import Tensor

from probes.factual.config import PairMemoryProbeConfig
from probes.factual.tables import TableProbe, accuracy, feed_forward, fraction, missed
from tasks.factual.ideal_values import read_out
from tasks.factual.streams import answered
from tasks.factual.tables import fact_tables, in_chunks, width_of
from tasks.factual.task import FactualTask
from toytf.errors import UserError
from toytf.measurement import Group, Headline, Measurement
from toytf.models.transformer import FeedForward, ToyTransformer
from toytf.probe import ProbeResult
from toytf.task import Task

PAIR_MEMORY = Group(
    "pair_memory", "The feed-forward part as a memory of pairs", "If swapping the relation swaps the answer, the "
    "feed-forward part looks up pairs; if the cosine is near 1, it does so as least squares would.",
    variants=("relation",),
    section="memories", headline=(
        Headline("swap", "answers that change with the relation when it is swapped inside", 1),
    ),
    meanings=(
        ("cosine*", "Cosine between the learned output weights of the hidden units and those of least squares; 1 if "
         "training found the same."),
        ("accuracy*", "Fraction of the facts right with least-squares output weights of the hidden units; 1 if the "
         "hidden units tell all pairs apart."),
        ("swap*/same", "How often the answer stays right if the relation's part in the stream is replaced by its "
         "average; near 1 the swaps can be trusted."),
        ("swap*", "How often the answer follows if the relation's part in the stream is replaced by that of another; 1 "
         "if pairs are looked up there."),
    ),
)  # fmt: skip


class PairMemory(TableProbe):
    """`pair_memory/…` of a feed-forward part with hidden units; chance is a guess.

    `cosine`      ⟨V, V*⟩ / (|V| |V*|)
    `accuracy`    of the model with V*, brought to the norm of V, in place of V; facts it misses are named
    `swap`        how often the answer becomes that of (s, r'), when in the stream after attention what r has added is
                  replaced by what r' adds on average; each draw takes another r' with another answer
    `swap/same`   the same with r' = r: how often the answer stays right

    No relation is exchanged where it comes last: it asks as well, so another would change all attention.
    """

    config: PairMemoryProbeConfig

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a task without facts, and a model without hidden units that read what attention gives."""
        super().check(model, task)
        self._part(model)

    def _part(self, model: ToyTransformer) -> FeedForward:
        part = feed_forward(self.config.kind, model)
        if part is None or part.W_out is None:
            raise UserError(
                f'probe "{self.config.kind}" needs a feed-forward part with hidden units, model.feed_forward.kind = '
                f"relu, got {model.config.feed_forward.kind}"
            )
        return part

    def measure(self, model: ToyTransformer, task: FactualTask) -> ProbeResult:
        """Measure on every fact among fresh noise."""
        part, U = self._part(model), model.unembed.W_U
        tables = fact_tables(model, task, self.config.repeats)
        attended, V = tables.attended, part.W_out
        if not (V is not None and bool(attended.isfinite().all()) and bool(V.isfinite().all())):
            return ProbeResult()  # diverged
        width, guess = width_of(model), 1 / U.shape[1]
        best = read_out(part.hidden(attended.mean(1)), U.T, task.targets, "least_squares")
        sizes = V.norm(), best.norm()
        found: list[Measurement] = []
        failures: dict[str, list[str]] = {}
        if all(float(size) > 0 for size in sizes):
            W = best * (sizes[0] / sizes[1])
            stored = in_chunks(lambda a: part.hidden(a) @ W, width, attended.flatten(0, 1)).view_as(attended)
            x = part.add(attended, stored)
            cosine = float((V * best).sum() / (sizes[0] * sizes[1]))
            known = PAIR_MEMORY.measurement(accuracy(x, task, U), "accuracy", ideal=1.0, chance=guess)
            found += [PAIR_MEMORY.measurement(cosine, "cosine", ideal=1.0, chance=0.0), known]
            failures[known.flat] = missed(x.mean(1), task, self.config.failures, U)
        other, becomes, counts = swaps(task, self.config.repeats)
        same = task.pairs[:, 1:].expand_as(other), task.targets[:, None].expand_as(other), torch.ones_like(counts)
        relations = task.relations.start + task.pairs[:, 1]
        own = einsum(
            tables.relation_mass, tables.values[:, relations], "fact draw head, head fact d -> fact draw d"
        )  # Σ_h p_h(r) OV_h(r), which G_r' takes the place of
        for relation, (r, target, where) in {None: (other, becomes, counts), "same": same}.items():
            if task.end is not None and where.any():
                x = (attended + (tables.contributions[task.relations.start + r] - own))[where]
                stored = in_chunks(part, width, x)
                right = fraction(answered(part.add(x, stored), U, target[where]))
                found.append(PAIR_MEMORY.measurement(right, "swap", ideal=1.0, chance=guess, relation=relation))
        return ProbeResult(found, failures)


def swaps(
    task: FactualTask, draws: int
) -> tuple[Int[Tensor, "fact draw"], Int[Tensor, "fact draw"], Bool[Tensor, "fact draw"]]:
    """Another relation for every fact and draw, the subject's answer there, and whether it is known and another."""
    R, (s, r) = len(task.relations), task.pairs.unbind(1)
    shift = 1 + torch.arange(draws, device=task.device) % max(R - 1, 1)
    other = (r[:, None] + shift) % R
    answers = torch.tensor(task.table.answers, device=task.device)[s[:, None], other]
    known = torch.tensor(task.table.known, device=task.device)[s[:, None], other]
    return other, answers, known & (answers != task.targets[:, None])
