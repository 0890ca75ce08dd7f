"""What one layer does with every fact, as tables over tokens (Nichani, Lee, Bietti 2024).

Without positions and LayerNorm everything that attention does at the last position is in two tables over tokens z,

    ℓ_h(z) = e_qᵀ W_KQ^h e_z / scale,   OV_h(z) = e_zᵀ W_OV^h,   q = the token that stands last;

the mass p_h(z) on a token is a softmax over the sequence, and a = Σ_h Σ_z p_h(z) OV_h(z), plus e_q with a residual.
"""

from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from tasks.factual.ideal import tokens_that_ask
from tasks.factual.memories import facts_among_noise
from tasks.factual.task import FactualTask
from toytf.errors import UserError
from toytf.models.tables import fast_forward
from toytf.models.transformer import FeedForward, ToyTransformer
from toytf.probe import Probe
from toytf.task import Task
from toytf.training.chunks import chunk_size, chunks


@dataclass(frozen=True, eq=False)
class FactTables:
    """What attention does with every fact, in so many draws of the noise and the places."""

    scores: Float[Tensor, "query head token"]
    """ℓ_h(z); the one query is the end token, or there is one for every relation."""
    values: Float[Tensor, "head token d"]
    """OV_h(z)."""
    mass: Float[Tensor, "head token"]
    """p_h(z), in the mean over all sequences."""
    mass_given: Float[Tensor, "head token"]
    """p_h(z) in the mean over all sequences that have z in them; 0 if none has."""
    relation_mass: Float[Tensor, "fact draw head"]
    """p_h of the relation in each sequence."""
    attended: Float[Tensor, "fact draw d"]
    """a: the stream after attention."""

    @property
    def contributions(self) -> Float[Tensor, "token d"]:
        """G_z = Σ_h E[p_h(z) | z is there] OV_h(z): what a token adds to the stream, in the mean."""
        return einsum(self.mass_given, self.values, "head token, head token d -> token d")


def factual(kind: str, task: Task) -> FactualTask:
    """The task, if it has facts."""
    if not isinstance(task, FactualTask):
        raise UserError(f'probe "{kind}" measures facts: it needs task.kind = factual, got {task.config.kind}')
    return task


def require_tables(kind: str, model: ToyTransformer) -> None:
    """Refuse a model whose attention is not a function of tokens alone."""
    reason = why_no_tables(model)
    if reason:
        raise UserError(
            f'probe "{kind}" reads attention as tables over tokens: it needs one layer of softmax attention without '
            f"positions and LayerNorm, and this model has {reason}"
        )


def why_no_tables(model: ToyTransformer) -> str | None:
    """What keeps the attention of a model from being a function of tokens alone; None if nothing does."""
    config = model.config
    obstacles = {
        f"n_layers = {config.n_layers}": config.n_layers > 1,
        f"attention.kind = {config.attention.kind}": config.attention.kind != "softmax",
        f"position = {config.position}": config.position != "none",
        f"norm = {config.norm}": config.norm != "none",
    }
    return next((what for what, found in obstacles.items() if found), None)


class TableProbe(Probe):
    """A probe of what attention does with facts."""

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a task without facts, and a model whose attention is no table over tokens."""
        factual(self.config.kind, task)
        require_tables(self.config.kind, model)


def feed_forward(kind: str, model: ToyTransformer) -> FeedForward | None:
    """The feed-forward part, if there is one; one that does not read what attention gives is refused."""
    part = model.feed_forward(0)
    if part is not None and model.config.feed_forward.reads != "attention":
        raise UserError(
            f'probe "{kind}" needs a feed-forward part that reads what attention gives: feed_forward.reads = attention'
        )
    return part


def fact_logits(model: ToyTransformer, task: FactualTask, draws: int) -> Float[Tensor, "fact draw answer"]:
    """The logits at the last position for every fact; for any model."""
    batch = facts_among_noise(task, draws)
    parts = chunks(batch, chunk_size(model, batch.last))
    logits = torch.cat([fast_forward(model, part.tokens, 1)[:, -1] for part in parts])
    return rearrange(logits, "(fact draw) answer -> fact draw answer", draw=draws)


def fact_tables(model: ToyTransformer, task: FactualTask, draws: int) -> FactTables:
    """The tables of a model that `require_tables` accepts."""
    E = model.embed.W_E
    asking = tokens_that_ask(task)
    scores = einsum(E[asking], model.W_KQ(0), E, "query i, head i j, token j -> query head token")
    scores = scores / model.attention(0).scale
    values = E @ model.W_OV(0)
    tokens = rearrange(facts_among_noise(task, draws).tokens, "(fact draw) t -> draw fact t", draw=draws)
    relation = task.pairs[:, 1] + task.relations.start

    heads, nothing = scores.shape[1], torch.zeros_like(scores[:1]).expand(len(relation), -1, -1)
    mass_of, sequences_with = torch.zeros_like(scores[0]), torch.zeros_like(scores[0, 0])
    relation_mass, attended = [], []
    for z in tokens:  # a draw at a time, as the masses on all tokens are many
        at = z[:, None].expand(-1, heads, -1)
        mass = nothing.scatter_add(2, at, scores[z[:, -1] - asking[0]].gather(2, at).softmax(-1))
        mass_of += mass.sum(0)
        sequences_with += nothing[:, 0].scatter(1, z, 1.0).sum(0)
        relation_mass.append(mass.gather(2, relation[:, None, None].expand(-1, heads, 1))[..., 0])
        a = mass.flatten(1) @ values.flatten(0, 1)
        attended.append(a + E[z[:, -1]] if model.config.attention.residual else a)
    return FactTables(
        scores,
        values,
        mass_of / (len(relation) * draws),
        mass_of / sequences_with.clamp_min(1),
        torch.stack(relation_mass, 1),
        torch.stack(attended, 1),
    )


def ideal_of_sums(model: ToyTransformer) -> float | None:
    """How much of the facts subject and relation know as a sum: 1 with attention only; else pairs may be stored."""
    return 1.0 if model.feed_forward(0) is None else None


def subject_answers(task: FactualTask) -> Bool[Tensor, "S A"]:
    """Which answers each subject has, under any relation."""
    s, sets = task.pairs[:, 0], task.sets
    found = torch.zeros(len(task.subjects), sets.shape[1], dtype=torch.bool, device=task.device)
    found[s, task.targets] = True
    return found


def accuracy(logits: Float[Tensor, "fact *draw answer"], task: FactualTask) -> float:
    """How often the likeliest answer is right, over facts and draws."""
    targets = task.targets.reshape(-1, *(1,) * (logits.ndim - 2))
    return float((logits.argmax(-1) == targets).float().mean())


def missed(logits: Float[Tensor, "fact answer"], task: FactualTask, limit: int) -> list[str]:
    """Facts that are answered wrongly, as "s3, r5: says r5a2, is r5a7"."""
    said = logits.argmax(-1)
    return [wrong_fact(task, i, int(said[i])) for i in (said != task.targets).nonzero()[:limit, 0].tolist()]


def wrong_fact(task: FactualTask, fact: int, said: int) -> str:
    """A fact that is answered wrongly, in words."""
    (s, r), names = task.pairs[fact].tolist(), task.table.answer_names
    pair = f"{task.table.subject_names[s]}, {task.table.relation_names[r]}"
    return f"{pair}: says {names[said]}, is {names[int(task.targets[fact])]}"


def by_pair(values: Float[Tensor, "fact *answer"], task: FactualTask) -> Float[Tensor, "S R *answer"]:
    """Facts as a table of subjects and relations; not a number where nothing is known."""
    s, r = task.pairs.unbind(1)
    table = values.new_full((len(task.subjects), len(task.relations), *values.shape[1:]), torch.nan)
    table[s, r] = values
    return table
