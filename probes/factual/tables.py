"""What one layer does with every fact, as tables over tokens (Nichani, Lee, Bietti 2024).

Without positions and LayerNorm everything that attention does at the last position is in two tables over tokens z,

    ℓ_h(z) = k_hᵀ e_z,   k_h = W_KQ^hᵀ e_q / scale,   OV_h(z) = e_zᵀ W_OV^h,   q = the token that comes last;

the mass p_h(z) on a token is a softmax over the sequence, and a = Σ_h Σ_z p_h(z) OV_h(z), plus e_q with a residual.
Probes of one evaluation share them, and what they look at beyond is taken in chunks: with thousands of facts, neither
masses on all tokens nor logits of all answers are ever held for all sequences.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from probes.factual.config import MANY_FACTS
from tasks.factual.ideal import first_obstacle, query_tokens
from tasks.factual.task import FactualTask
from toytf.errors import UserError
from toytf.models.transformer import Block, FeedForward, ToyTransformer, no_hook
from toytf.probe import Probe, ProbeResult, shared
from toytf.task import Batch, Task

CHUNK = 2**20
"""Floats that are held at a time where every fact meets every answer, token or hidden unit (4 MB)."""


@dataclass(frozen=True, eq=False)
class FactTables:
    """What attention does with every fact, in so many draws of the noise and the places."""

    keys: Float[Tensor, "query head d"]
    """k_h; the one query is the end token, or there is one for every relation."""
    vectors: Float[Tensor, "token d"]
    """e_z."""
    values: Float[Tensor, "head token d"]
    """OV_h(z)."""
    mass: Float[Tensor, "head token"]
    """p_h(z), averaged over all sequences."""
    mass_given: Float[Tensor, "head token"]
    """p_h(z), averaged over all sequences that have z in them; 0 if none has."""
    relation_mass: Float[Tensor, "fact draw head"]
    """p_h of the relation in each sequence."""
    attended: Float[Tensor, "fact draw d"]
    """a: the stream after attention."""

    @property
    def scores(self) -> Float[Tensor, "query head token"]:
        """ℓ_h(z)."""
        return self.keys @ self.vectors.T

    @cached_property
    def contributions(self) -> Float[Tensor, "token d"]:
        """G_z = Σ_h E[p_h(z) | z is there] OV_h(z): what a token adds to the stream on average."""
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
            f"positions and LayerNorm, but this model has {reason}"
        )


def why_no_tables(model: ToyTransformer) -> str | None:
    """What keeps the attention of a model from being a function of tokens alone; None if nothing does."""
    config = model.config
    return first_obstacle(
        {
            f"n_layers = {config.n_layers}": config.n_layers > 1,
            f"attention.kind = {config.attention.kind}": config.attention.kind != "softmax",
            f"position = {config.position}": config.position != "none",
            f"norm = {config.norm}": config.norm != "none",
            "an option that these tables do not support": "counts" not in model.fast_paths,
        }
    )


class FactProbe(Probe):
    """A probe of facts: it asks for every fact among fresh noise, and uses no batch."""

    @torch.no_grad()
    def __call__(self, model: ToyTransformer, task: Task, batch: Batch) -> ProbeResult:
        """Measure every fact; the batch is not used."""
        return self.measure(model, factual(self.config.kind, task))

    @abstractmethod
    def measure(self, model: ToyTransformer, task: FactualTask) -> ProbeResult:
        """Measure the model on every fact of the task."""

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a task without facts."""
        factual(self.config.kind, task)

    def at_every_evaluation(self, task: Task) -> bool:
        """With `when: auto`: unless there are many facts."""
        if self.config.when == "auto":
            return len(factual(self.config.kind, task).pairs) <= MANY_FACTS
        return super().at_every_evaluation(task)


class TableProbe(FactProbe):
    """A probe of what attention does with facts."""

    def check(self, model: ToyTransformer, task: Task) -> None:
        """Refuse a task without facts, and a model whose attention is no table over tokens."""
        super().check(model, task)
        require_tables(self.config.kind, model)


def feed_forward(kind: str, model: ToyTransformer) -> FeedForward | None:
    """The feed-forward part, if there is one; one that does not read what attention gives is refused."""
    part = model.feed_forward(0)
    if part is not None and model.config.feed_forward.reads != "attention":
        raise UserError(
            f'probe "{kind}" needs a feed-forward part that reads what attention gives: feed_forward.reads = attention'
        )
    return part


# Tables and streams


@shared
@torch.no_grad()
def fact_tables(model: ToyTransformer, task: FactualTask, draws: int) -> FactTables:
    """The tables of a model that `require_tables` accepts."""
    E, asking, attention = model.embed.W_E, query_tokens(task), model.attention(0)
    keys = einsum(E[asking], model.W_KQ(0), "query i, head i j -> query head j") / attention.scale
    values = E @ model.W_OV(0)
    batch = task.facts_among_noise(draws)
    tokens, relation = batch.tokens, (task.pairs[:, 1] + task.relations.start).repeat_interleave(draws)
    (heads, V, d), T = values.shape, tokens.shape[1]
    starts = V * torch.arange(heads, device=task.device)[:, None]  # of each head, in a table over heads and tokens

    mass_of = values.new_zeros(V, heads)
    relation_mass, attended = values.new_empty(len(tokens), heads), values.new_empty(len(tokens), d)
    width = T if task.end is not None else max(T, V // draws)  # where relations ask, there is a query for every fact
    for z, r, on_relation, a in some_at_a_time(heads * width, tokens, relation, relation_mass, attended):
        last, query = torch.unique(z[:, -1], return_inverse=True)
        scores = (E @ keys[last - asking[0]].mT).flatten(0, 1)  # of all tokens for the first query, then the second …
        p = embedding(z + V * query[:, None], scores).mT.softmax(-1)  # of every head and position
        mass_of.index_add_(0, z.flatten(), p.mT.flatten(0, 1))
        on_relation.copy_((p * (z == r[:, None])[:, None]).sum(-1))
        at = (starts + z[:, None]).flatten(1)
        added = embedding_bag(at, values.flatten(0, 1), mode="sum", per_sample_weights=p.flatten(1))
        a.copy_(attention.add(E[z[:, -1]], added))
    return FactTables(
        keys,
        E,
        values,
        mass_of.T / len(tokens),
        mass_of.T / sequences_with_each_token(batch, V).clamp_min(1),
        rearrange(relation_mass, "(fact draw) head -> fact draw head", draw=draws),
        rearrange(attended, "(fact draw) d -> fact draw d", draw=draws),
    )


_present: WeakKeyDictionary[Batch, Tensor] = WeakKeyDictionary()


def sequences_with_each_token(batch: Batch, n_tokens: int) -> Int[Tensor, "token"]:
    """In how many sequences of a batch each token occurs; counted once for a batch."""
    found = _present.get(batch)
    if found is None:
        ordered = batch.tokens.sort(1).values
        different = torch.cat([ordered[:, 0], ordered[:, 1:][ordered.diff(dim=1) > 0]])
        found = _present[batch] = torch.bincount(different, minlength=n_tokens)
    return found


@shared
@torch.no_grad()
def final_streams(model: ToyTransformer, task: FactualTask, draws: int) -> Float[Tensor, "fact draw d"]:
    """x at the last position for every fact, whose logits are x U; for any model."""
    tokens = task.facts_among_noise(draws).tokens
    if why_no_tables(model) is None:
        block: Block = model.blocks[0]  # type: ignore[assignment]
        attended = fact_tables(model, task, draws).attended.flatten(0, 1)
        x = in_chunks(block.finish, width_of(model), model.embed.W_E[tokens[:, -1]], attended)
    else:
        name = f"blocks.{model.config.n_layers - 1}.hook_resid_post"
        width = tokens.shape[1] * width_of(model)
        x = in_chunks(lambda part: model.observe(part, name, last=1)[1][name][:, -1], width, tokens)
        x = x if model.ln_final is None else model.ln_final(x, no_hook)
    return rearrange(x, "(fact draw) d -> fact draw d", draw=draws)


def width_of(model: ToyTransformer) -> int:
    """The floats of a vector in the first layer where there are most: hidden units, or the stream."""
    part = model.feed_forward(0)
    return model.config.d_model if part is None else max(part.W_in.shape)


# Answers


def some_at_a_time(width: int, *rows: Shaped[Tensor, "n *_"]) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of several tensors, as many at a time as may be held; width: the floats that become of one."""
    n_parts = -(-len(rows[0]) * width // CHUNK)
    yield from zip(*(of_all.chunk(max(1, n_parts)) for of_all in rows), strict=True)


def in_chunks(f: Callable[..., Tensor], width: int, *rows: Shaped[Tensor, "n *_"]) -> Shaped[Tensor, "n *_"]:
    """f of all rows, some at a time; width: the floats that f makes of one on its way."""
    none = f(*(of_all[:0] for of_all in rows))
    found = none.new_empty(len(rows[0]), *none.shape[1:])  # many small ones would pin the memory between them
    for some, *parts in some_at_a_time(width, found, *rows):
        some.copy_(f(*parts))
    return found


def answers(x: Float[Tensor, "*n d"], U: Float[Tensor, "d answer"] | None = None) -> Int[Tensor, "*n"]:
    """argmax_a xᵀ u_a; without U, x are the logits themselves."""
    if U is None:
        return x.argmax(-1)
    return in_chunks(lambda part: (part @ U).argmax(1), U.shape[1], x.flatten(0, -2)).view(x.shape[:-1])


def margins(x: Float[Tensor, "n d"], U: Float[Tensor, "d answer"], targets: Int[Tensor, "n"]) -> Float[Tensor, "n"]:
    """xᵀ u_{a*} − max_{a ≠ a*} xᵀ u_a."""

    def above(part: Float[Tensor, "some d"], target: Int[Tensor, "some"]) -> Float[Tensor, "some"]:
        logits, at = part @ U, target[:, None]
        own = logits.gather(1, at)[:, 0]
        return own - logits.scatter_(1, at, -torch.inf).amax(1)

    return in_chunks(above, U.shape[1], x, targets)


def are_answered(
    margin: Float[Tensor, "n"], x: Float[Tensor, "n d"], U: Float[Tensor, "d answer"], targets: Int[Tensor, "n"]
) -> Bool[Tensor, "n"]:
    """answers(x, U) == targets, from the margins: of equal logits the first counts."""
    right, equal = margin > 0, margin == 0
    right[equal] = answers(x[equal], U) == targets[equal]
    return right


def accuracy(x: Float[Tensor, "fact *draw d"], task: FactualTask, U: Float[Tensor, "d answer"]) -> float:
    """How often the likeliest answer is right, over facts and draws."""
    targets = task.targets.reshape(-1, *(1,) * (x.ndim - 2)).expand(x.shape[:-1])
    return fraction_answered(x.flatten(0, -2), U, targets.flatten())


def fraction_answered(
    x: Float[Tensor, "n d"], U: Float[Tensor, "d answer"], targets: Int[Tensor, "n"], few: int = 256
) -> float:
    """How often argmax_a xᵀ u_a is the target.

    With many answers, those that lose already against few are wrong, and only the others are compared with all. To lose
    is to be below by more than 2 d ε |x| |u|, so that it does not depend on rounding.
    """
    n, every = len(x), U.shape[1] // few
    if every > 2:
        level = (x * U.T[targets]).sum(1) + 2 * len(U) * torch.finfo(x.dtype).eps * x.norm(dim=1) * U.norm(dim=0).max()
        contested = ~(in_chunks(lambda part: (part @ U[:, ::every]).amax(1), few, x) > level)
        x, targets = x[contested], targets[contested]
    return float(are_answered(margins(x, U, targets), x, U, targets).sum() / n)


def missed(
    x: Float[Tensor, "fact d"], task: FactualTask, limit: int, U: Float[Tensor, "d answer"] | None = None
) -> list[str]:
    """Facts that are answered wrongly, as "s3, r5: says r5a2, is r5a7"; without U, x are the logits themselves."""
    return wrong_facts(answers(x, U), task, limit)


def wrong_facts(predicted: Int[Tensor, "fact"], task: FactualTask, limit: int) -> list[str]:
    """The first facts that are answered wrongly, in words."""
    return [wrong_fact(task, i, int(predicted[i])) for i in (predicted != task.targets).nonzero()[:limit, 0].tolist()]


def wrong_fact(task: FactualTask, fact: int, predicted: int) -> str:
    """A fact that is answered wrongly, in words."""
    (s, r), names = task.pairs[fact].tolist(), task.table.answer_names
    pair = f"{task.table.subject_names[s]}, {task.table.relation_names[r]}"
    return f"{pair}: says {names[predicted]}, is {names[int(task.targets[fact])]}"


def ideal_of_sums(model: ToyTransformer) -> float | None:
    """How much of the facts subject and relation know as a sum: 1 with attention only; else pairs may be stored."""
    return 1.0 if model.feed_forward(0) is None else None


def subject_answers(task: FactualTask) -> Bool[Tensor, "S A"]:
    """Which answers each subject has, under any relation."""
    s, sets = task.pairs[:, 0], task.sets
    found = torch.zeros(len(task.subjects), sets.shape[1], dtype=torch.bool, device=task.device)
    found[s, task.targets] = True
    return found


def by_pair(values: Float[Tensor, "fact *answer"], task: FactualTask) -> Float[Tensor, "S R *answer"]:
    """Facts as a table of subjects and relations; not a number where nothing is known."""
    s, r = task.pairs.unbind(1)
    table = values.new_full((len(task.subjects), len(task.relations), *values.shape[1:]), torch.nan)
    table[s, r] = values
    return table
