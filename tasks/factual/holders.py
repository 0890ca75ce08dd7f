"""Which parts of a one-layer model should hold what of the facts (Nichani, Lee, Bietti 2024; limits derived).

    FF1               hidden units answer each pair of a subject and a relation (`memories`)
    W_KQ1             head h scores its own tokens z above noise and the end token:  k_h·φ(z) > k_h·φ(z')
    W_OV1             what subjects say tells their answers apart:        a*(s, r) = argmax_{a ∈ A_r} G_s·u_a
    W_OV1_relations   what relations say prefers their own answers:       G_r·u_a > G_r·u_a',  a ∈ A_r, a' ∉ A_r

    k_h = W_KQ^hᵀ φ(⟨eos⟩) / scale,   G_z = Σ_h p_h(z) W_OV^hᵀ φ(z),   p_h(z) = attention on z, where z is there

Every subject and relation belongs to the head that attends to it most. With a feed-forward part the values need not
know anything, since FF1 can hold the facts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks.factual.memories import DRAWS, factual_memories
from tasks.factual.tables import FactTables, fact_tables, subject_answers, why_no_tables
from toytf.holder import Holder, freedom, holders, is_finite
from toytf.memory import Association
from toytf.memory.limits import Limits, different_keys, matrix_limits
from toytf.models.transformer import Slot, ToyTransformer
from toytf.theory import selector_capacity, top_energy

if TYPE_CHECKING:
    from tasks.factual.task import FactualTask


@torch.no_grad()
def factual_holders(task: "FactualTask", model: ToyTransformer) -> list[Holder]:
    """The holders of a model; only FF1 where attention is no table over tokens, none where a vector is no number."""
    found = [*holders(factual_memories(task, model), model)]
    if why_no_tables(model) is None:
        tables = fact_tables(model, task, DRAWS)
        if not all(bool(part.isfinite().all()) for part in (tables.keys, tables.values, tables.mass_given)):
            return []
        found += [*selectors(task, model, tables)]
        for asked in (subject_facts(task), relation_answers(task)):
            found += [*values(task, model, tables, asked)]
    return found if all(map(is_finite, found)) else []


def own_head(tables: FactTables, task: "FactualTask") -> Int[Tensor, "token"]:
    """The head that attends most to each subject and relation, averaged over the sequences that have it."""
    return tables.mass_given[:, : task.relations.stop].argmax(0)


# W_KQ: a head selects its tokens


def selectors(task: "FactualTask", model: ToyTransformer, tables: FactTables) -> Iterator[Holder]:
    """W_KQ1 of every head: one vector k_h, asked with the one question of the end token.

    None where the relation comes last: then every relation asks with a vector of its own, the heads fall back on the
    token that asks, and no one vector is the selector.
    """
    if task.end is None:
        return
    d, phi, others = model.config.d_model, tables.vectors, range(task.noise.start, task.end + 1)
    fit = selector_capacity(d, len(others))
    owner = own_head(tables, task)
    for head in range(model.config.attention.n_heads):  # one without tokens could hold some
        own = (owner == head).nonzero()[:, 0]
        n, names = len(own), [task.token_names[z] for z in (*own.tolist(), *others)]
        may_compete = torch.ones(n, len(others), dtype=torch.bool, device=task.device)
        stored = Association(
            phi.new_ones(n, 1),
            torch.cat([phi[own], phi[others.start : others.stop]]),
            torch.arange(n, device=task.device),
            candidates=torch.cat([torch.eye(n, dtype=torch.bool, device=task.device), may_compete], 1),
            key_names=tuple(names[:n]),
            value_names=tuple(names),
        )
        yield Holder(
            "W_KQ1",
            stored,
            tables.keys[0, head, :, None],
            0,  # one vector that tells tokens from noise: no answers, so no bits
            head=head if model.config.attention.n_heads > 1 else None,
            job="pick subjects and relations out of the noise",
            limits=Limits(fit, fit),
        )


# W_OV: what tokens say


@dataclass(frozen=True, eq=False)
class Asked:
    """What the values of some tokens should say: token z → answer, among candidates."""

    name: str
    job: str
    tokens: Int[Tensor, "n"]
    targets: Int[Tensor, "n"]
    candidates: Bool[Tensor, "n A"]
    key_names: tuple[str, ...]
    of_relations: bool
    """Of relations all answers are right together, and do not compete."""

    def of(self, some: Bool[Tensor, "n"]) -> "Asked":
        """Some of them."""
        names = tuple(name for name, there in zip(self.key_names, some.tolist(), strict=True) if there)
        tokens, targets, candidates = self.tokens[some], self.targets[some], self.candidates[some]
        return replace(self, tokens=tokens, targets=targets, candidates=candidates, key_names=names)


def subject_facts(task: "FactualTask") -> Asked:
    """s → a*(s, r) among A_r, for every fact whose relation has several answers.

    Where relations share answers, facts are left out whose subject has another answer in A_r as well: without the
    relation nothing says which is meant.
    """
    s, r = task.pairs.unbind(1)
    names = tuple(f"{task.table.subject_names[i]}, {task.table.relation_names[j]}" for i, j in task.pairs.tolist())
    asked = Asked("W_OV1", "tell a subject's answers apart", s, task.targets, task.sets[r], names, of_relations=False)
    clear = (task.sets.sum(1) > 1)[r]
    if bool((task.sets.sum(0) > 1).any()):
        clear &= (subject_answers(task)[s] & asked.candidates).sum(1) == 1
    return asked if bool(clear.all()) else asked.of(clear)


def relation_answers(task: "FactualTask") -> Asked:
    """r → every a of A_r, among a and all answers of other relations; without those that have no rival."""
    r, a = (task.sets & ~task.sets.all(1, keepdim=True)).nonzero().unbind(1)
    candidates = ~task.sets[r]
    candidates[torch.arange(len(a), device=task.device), a] = True
    names = tuple(task.table.relation_names[i] for i in r.tolist())
    job = "say which answers a relation has"
    return Asked("W_OV1_relations", job, r + task.relations.start, a, candidates, names, of_relations=True)


def values(task: "FactualTask", model: ToyTransformer, tables: FactTables, asked: Asked) -> Iterator[Holder]:
    """W_OV of all heads, and of each for its own tokens.

    W = [W_OV^1ᵀ … W_OV^Hᵀ],   key of z: [p_1(z) φ(z), …, p_H(z) φ(z)] / |p(z)|,   so that W key = G_z / |p(z)|

    Heads weigh tokens differently, so that their sum is a matrix only on these keys, and its rank is H d_head at most.
    A head alone is asked with φ(z). No head has relations of its own where they come last: all fall back on them.
    """
    n_heads, config = tables.mass_given.shape[0], model.config
    everyone = [(None, asked)] if len(asked.tokens) else []
    if n_heads > 1 and not (task.end is None and asked.of_relations):
        of_head = own_head(tables, task)[asked.tokens]
        everyone += [(head, asked.of(of_head == head)) for head in torch.unique(of_head).tolist()]
    width = config.d_model if config.attention.ov == "joint" else config.d_head
    weights = freedom(config, Slot("OV", 0))
    job = asked.job if model.feed_forward(0) is None else f"{asked.job}, unless FF1 does"
    for head, own in everyone:
        heads = [*range(n_heads)] if head is None else [head]
        keys, W = _read(tables, model.W_OV(0)[heads], heads, own.tokens)
        U, names = model.unembed.W_U.detach().T, task.table.answer_names
        stored = Association(keys, U, own.targets, None, own.candidates, own.key_names, names)
        rank = len(heads) * width if len(heads) * width < min(W.shape) else None
        limits = set_limits(stored, rank) if own.of_relations else matrix_limits(stored, rank)
        if (
            len(heads) > 1 and limits is not None
        ):  # at most what each alone would hold of the same pairs, of rank d_head
            alone = replace(stored, keys=stored.keys[:, : config.d_model])
            rank_alone = min(width, *alone.keys.shape)
            each = set_limits(alone, rank_alone) if own.of_relations else matrix_limits(alone, width)
            if each is not None:
                limits = Limits(*(min(a, len(heads) * b) for a, b in zip(limits, each, strict=True)))
        yield Holder(asked.name, stored, W, len(heads) * weights, rank, head, job, limits)


def set_limits(association: Association, rank: int | None) -> Limits | None:
    """How many pairs fit if all values of a key are right together, and only others compete; None: as in any matrix.

    F(p, Σ_z n_z) = d_in d_out ω²(r),   n_z others of key z,   F as in `selector_capacity`

    Each key is a selector of its own values, and F of all of them is the sum: F(λp, λn) = λ F(p, n).
    """
    n_keys = different_keys(association)
    if association.candidates is None or n_keys == len(association.keys):
        return None
    m, d_out = association.values.shape
    d_in, d_out = min(association.keys.shape[1], n_keys), min(d_out, m - 1)
    others = int(association.candidates.count_nonzero()) / len(association.keys) - 1
    kept = 1.0 if rank is None else top_energy(min(rank, d_in, d_out), d_in, d_out)
    fit = selector_capacity(max(1, round(d_in * d_out * kept)), round(n_keys * others))
    return Limits(fit, fit)


def _read(
    tables: FactTables, W_OV: Float[Tensor, "head d d"], heads: list[int], tokens: Int[Tensor, "n"]
) -> tuple[Float[Tensor, "n d_in"], Float[Tensor, "d d_in"]]:
    """What some heads read of each token, and the matrix that they read it with.

    Of tokens that are asked several times only the directions that they span count, in orthonormal coordinates: no
    pair asks for what the matrix does elsewhere.
    """
    different, row = torch.unique(tokens, return_inverse=True)
    p = torch.nn.functional.normalize(tables.mass_given[heads][:, different], dim=0)
    keys = rearrange(einsum(p, tables.vectors[different], "head z, z d -> z head d"), "z head d -> z (head d)")
    W = rearrange(W_OV, "head i j -> j (head i)")
    if len(different) < len(tokens):
        basis = torch.linalg.qr(keys.T).Q
        keys, W = keys @ basis, W @ basis
    return keys[row], W
