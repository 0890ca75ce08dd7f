"""What one layer does with every fact, as tables over tokens (Nichani, Lee, Bietti 2024).

Without positions and LayerNorm everything that attention does at the last position is in two tables over tokens z,

    ℓ_h(z) = k_hᵀ e_z,   k_h = W_KQ^hᵀ e_q / scale,   OV_h(z) = e_zᵀ W_OV^h,   q = the token that comes last;

the mass p_h(z) on a token is a softmax over the sequence, and a = Σ_h Σ_z p_h(z) OV_h(z), plus e_q with a residual.
All of one evaluation share them. They are taken in chunks: with thousands of facts, masses on all tokens are never held
for all sequences.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from tasks.factual.ideal import first_obstacle, query_tokens
from toytf.models.transformer import ToyTransformer
from toytf.probe import shared
from toytf.task import Batch

if TYPE_CHECKING:
    from tasks.factual.task import FactualTask

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


@shared
@torch.no_grad()
def fact_tables(model: ToyTransformer, task: "FactualTask", draws: int) -> FactTables:
    """The tables of a model that has them (`why_no_tables`)."""
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


def width_of(model: ToyTransformer) -> int:
    """The floats of a vector in the first layer where there are most: hidden units, or the stream."""
    part = model.feed_forward(0)
    return model.config.d_model if part is None else max(part.W_in.shape)


def at_the_end(model: ToyTransformer, name: str, tokens: Int[Tensor, "n position"]) -> Float[Tensor, "n d"]:
    """An activation at the last position, for any model, some sequences at a time."""
    T = tokens.shape[1]
    width = T * max(width_of(model), model.config.attention.n_heads * T)  # attention has T × T numbers a head
    return in_chunks(lambda part: model.observe(part, name, last=1)[1][name][:, -1], width, tokens)


def subject_answers(task: "FactualTask") -> Bool[Tensor, "S A"]:
    """Which answers each subject has, under any relation."""
    s, sets = task.pairs[:, 0], task.sets
    found = torch.zeros(len(task.subjects), sets.shape[1], dtype=torch.bool, device=task.device)
    found[s, task.targets] = True
    return found
