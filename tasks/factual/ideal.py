"""A one-layer transformer that knows every fact without training, written weight by weight.

Subjects and relations are dealt out to heads, at most d_head tokens of one kind to a head. A head fires on its tokens
and otherwise falls back on the token that asks, the last, of which it says nothing. So attention gives

    a = g_s + g_r

whatever the noise is, and g is one of two things (after Nichani, Lee, Bietti 2024, §4):

    attention only                g_s knows the attributes of s, g_r the answers of r; the right answer is in both
    with a feed-forward part      g_z = φ(z), a copy, and F(φ(s) + φ(r)) ≈ c u_{a*(s,r)} stores the pairs

φ(z) is the vector of a token, u_a of an answer. All is computed in float64 on the CPU.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tasks.factual.ideal_values import RIDGE, answers_of_tokens, hidden_pairs
from toytf.errors import UserError, nearest
from toytf.memory import Association, exact, pseudo_inverse
from toytf.memory.constructions import ridge_regression
from toytf.models.transformer import Attention, ToyTransformer

if TYPE_CHECKING:
    from tasks.factual.task import FactualTask

BETA = {"W_KQ1": 60.0, "FF1": 10.0}
"""Strengths, unless others are given: the score of a token that a head fires on, and the gain c."""


def parts_of(model: ToyTransformer) -> tuple[str, ...]:
    """The parts of the construction: what heads look for, what they say, and the pairs, if there are hidden units."""
    return ("W_KQ1", "W_OV1") if model.feed_forward(0) is None else ("W_KQ1", "W_OV1", "FF1")


@torch.no_grad()
def write_ideal(
    task: "FactualTask", model: ToyTransformer, beta: Mapping[str, float], only: Collection[str] | None = None
) -> None:
    """Write the construction that `task.config.construction` describes, or only some of its parts, into a model.

    Head h: W_KQ = β q k_hᵀ, W_OV = Σ_{z in its group} δ_z g_zᵀ, zero for heads that are not needed. q·φ = 1 for every
    token that asks, δ_z is dual to the vectors that h attends to.
    """
    if only is not None:
        task.check_memories(only, parts_of(model))
    written = parts_of(model) if only is None else only
    _check(task, model, beta, written)
    strength = {name: float(beta.get(name, default)) for name, default in BETA.items()}
    attn, mlp, rules = model.attention(0), model.feed_forward(0), task.config.construction
    phi, u = exact(model.embed.W_E), exact(model.unembed.W_U).T
    if mlp is not None and "FF1" in written:
        W_in, W_out = hidden_pairs(task.table, phi, u, exact(mlp.W_in), rules.pairs)
        hidden = {"W_in": W_in, "b_in": W_in.new_zeros(W_in.shape[1]), "W_out": strength["FF1"] * W_out}
        for name, part in mlp.named_parameters():
            part.copy_(hidden[name].to(part))
    if "W_KQ1" in written or "W_OV1" in written:
        groups, asking = head_groups(task, group_size(task, model), attn.n_heads), query_tokens(task)
        fallbacks = [[z for z in asking if z not in group] for group in groups]
    if "W_KQ1" in written:
        silence(attn.W_Q, attn.W_K)
        q = query_vector(phi[asking])
        for head, (group, fallback) in enumerate(zip(groups, fallbacks, strict=True)):
            write_kq(attn, head, q, strength["W_KQ1"] * key_vector(phi, group, fallback, rules.keys))
    if "W_OV1" in written:
        silence(attn.W_V, attn.W_O)
        g = phi if mlp is not None else answers_of_tokens(task.table, u, rules.values, rules.steps)
        for head, (group, fallback) in enumerate(zip(groups, fallbacks, strict=True)):
            write_ov(attn, head, value_matrix(phi[group + fallback], g[group]), g[group])


def silence(*factors: Tensor | None) -> None:
    """Set weights to 0."""
    for factor in factors:
        if factor is not None:
            factor.zero_()


def group_size(task: "FactualTask", model: ToyTransformer) -> int:
    """How many tokens a head can have: its rank, and at most d less the tokens that ask, as duals must exist."""
    d, n_asking = model.config.d_model, len(query_tokens(task))
    if d <= n_asking:
        raise UserError(
            f"model.init = ideal: {n_asking} tokens can come last, and every head can attend to each of them: "
            f"model.d_model must be at least {n_asking + 1}, got {d}"
        )
    return min(d if model.attention(0).W_V is None else model.config.d_head, d - n_asking)


def head_groups(task: "FactualTask", size: int, n_heads: int) -> list[list[int]]:
    """The tokens of each head that is needed, ⌈S/size⌉ + ⌈R/size⌉ groups of about equal length.

    Subjects and relations do not mix: each sequence has one of both, and a head that knew them would give each half of
    its attention.
    """
    S, R = len(task.subjects), len(task.relations)
    counts = [-(-S // size), -(-R // size)]
    if sum(counts) > n_heads:
        raise UserError(
            f"model.init = ideal: {S} subjects and {R} relations need {counts[0]} + {counts[1]} heads of size {size}, "
            f"got model.attention.n_heads = {n_heads}"
        )
    tokens = (torch.tensor(task.subjects), torch.tensor(task.relations))
    return [group.tolist() for part, n in zip(tokens, counts, strict=True) for group in part.tensor_split(n)]


def query_tokens(task: "FactualTask") -> list[int]:
    """The tokens that can come last: the end token, or every relation."""
    return [*task.relations] if task.end is None else [task.end]


def query_vector(asking: Float[Tensor, "n d"]) -> Float[Tensor, "d"]:
    """The smallest q with q·φ = 1 for every vector that asks; φ / |φ|² if there is one."""
    one = Association(asking, asking.new_ones(1, 1), torch.zeros(len(asking), dtype=torch.long))
    return pseudo_inverse(one)[0]


def key_vector(
    phi: Float[Tensor, "token d"], group: list[int], fallback: list[int], rule: Literal["least_squares", "hebbian"]
) -> Float[Tensor, "d"]:
    """k with k·φ(z) ≈ 1 for the group, 1/2 for the tokens it falls back on, 0 for all other tokens."""
    t = phi.new_zeros(len(phi))
    t[fallback], t[group] = 0.5, 1.0
    return selector(phi, t, rule)


def selector(phi: Float[Tensor, "token d"], t: Float[Tensor, "token"], rule: str) -> Float[Tensor, "d"]:
    """k with k·φ(z) ≈ t_z for all tokens.

    least squares:  k = (ΦᵀΦ + λI)⁻¹ Φᵀ t, exact up to λ if there are no more tokens than dimensions
    Hebbian:        k = Σ_z t_z φ(z) / |φ(z)|², with errors √(n/d) for n tokens with t_z = 1
    """
    if rule == "hebbian":
        return (t / phi.square().sum(1)) @ phi
    return ridge_regression(phi, t[:, None], RIDGE, directions=len(phi))[:, 0]


def value_matrix(attended: Float[Tensor, "attended d"], values: Float[Tensor, "group d"]) -> Float[Tensor, "d d"]:
    """The matrix with φ(z) @ W = g_z for the group and 0 for the tokens that the head falls back on.

    W = Σ_{z in group} δ_z g_zᵀ,   δ_z·φ(z') = 1{z = z'}

    attended: φ(z) of the group, then of those the head falls back on; values: g_z. The rank is len(values) at most.
    """
    targets = torch.arange(len(attended)).clamp_max(len(values))
    return pseudo_inverse(Association(attended, torch.cat([values, torch.zeros_like(values[:1])]), targets)).T


def write_kq(attn: Attention, head: int, q: Float[Tensor, "d"], k: Float[Tensor, "d"]) -> None:
    """Scores q·x k·y after scaling; of two factors, both have the same norm."""
    if attn.W_Q is None:
        attn.W_K[head] = (attn.scale * k[:, None] * q).to(attn.W_K)
        return
    balance = (k.norm() / q.norm()).sqrt() * attn.scale**0.5
    attn.W_Q[head, :, 0] = (balance * q).to(attn.W_Q)
    attn.W_K[head, :, 0] = (attn.scale / balance * k).to(attn.W_K)


def write_ov(attn: Attention, head: int, W: Float[Tensor, "d d"], values: Float[Tensor, "group d"]) -> None:
    """W itself, or U √Σ and √Σ Vᵀ of its singular value decomposition; the rows of W lie in the span of `values`.

    What exceeds the rank of the head is rounding, if the values themselves have that rank.
    """
    if attn.W_V is None:
        attn.W_O[head] = W.to(attn.W_O)
        return
    basis = torch.linalg.qr(values.T).Q
    left, sizes, right = torch.linalg.svd(W @ basis, full_matrices=False)
    n = min(len(sizes), attn.W_V.shape[2])
    root = sizes[:n].sqrt()
    attn.W_V[head, :, :n] = (left[:, :n] * root).to(attn.W_V)
    attn.W_O[head, :n] = (root[:, None] * right[:n] @ basis.T).to(attn.W_O)


def _check(task: "FactualTask", model: ToyTransformer, beta: Mapping[str, float], written: Collection[str]) -> None:
    """Refuse a model that the construction is not for, or a strength that it does not have."""
    config = model.config
    feed_forward = config.feed_forward if model.feed_forward(0) is not None else None
    needed: dict[str, tuple[object, object]] = {
        "n_layers": (config.n_layers, 1),
        "position": (config.position, "none"),
        "norm": (config.norm, "none"),
        "attention.kind": (config.attention.kind, "softmax"),
        "attention.residual": (config.attention.residual, False),
    }
    if feed_forward is not None:
        needed["feed_forward.kind"] = (feed_forward.kind, "relu")
        needed["feed_forward.reads"] = (feed_forward.reads, "attention")
    missing = first_obstacle(
        {f"model.{name} = {good}, got {value}".lower(): value != good for name, (value, good) in needed.items()}
    )
    if missing:
        raise UserError(f"model.init = ideal: the construction for task {task.config.kind} needs {missing}")
    keeps_units = "FF1" in written and task.config.construction.pairs == "least_squares"
    if feed_forward is not None and feed_forward.init == "zeros" and keeps_units:
        raise UserError(
            "model.init = ideal: least squares keeps the hidden units as drawn, and with model.feed_forward.init = "
            "zeros they read nothing: choose a random distribution"
        )
    strengths = [name for name in BETA if feed_forward is not None or name != "FF1"]
    for name in beta:
        if name not in strengths:
            raise UserError(f'model.beta: the construction has no part called "{name}": {nearest(name, strengths)}')


def first_obstacle(obstacles: Mapping[str, bool]) -> str | None:
    """The first of these that is there, such as `n_layers = 2`; None if the way is free."""
    return next((what for what, there in obstacles.items() if there), None)
