"""Ideal parts for a trained factual model: what each part should do, in the vectors that the model has learned.

    W_KQ1   head h scores the tokens that it owns as it has learned to, and all others alike:  one vector k_h,
            k_h·φ(z) = ℓ_h(z) if h owns z, else the mean of ℓ_h over all others
    W_OV1   head h says of each own token what it has learned to say, and nothing of the token that it falls back on:
            W_OV^hᵀ φ(z) = OV_h(z) if h owns z, 0 for the token that asks
    FF1     W_out answers each pair by the hidden units that were learned, at the keys κ_sr that attention gives

Each is made by the Hebbian rule or by least squares. `construction` is another ideal: the parts of `write_ideal`, which
speak a code of their own. A head owns a token that has more than half of its attention (Nichani, Lee, Bietti 2024).
Where relations come last, heads fall back on them, and those with more than half of the attention count as owned here.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tasks.factual import ideal
from tasks.factual.ideal_values import read_out
from tasks.factual.memories import DRAWS, factual_memories
from tasks.factual.tables import FactTables, fact_tables, why_no_tables
from toytf.errors import UserError
from toytf.grafts import Graft
from toytf.memory import Association, exact, hebbian
from toytf.models.transformer import ToyTransformer

if TYPE_CHECKING:
    from tasks.factual.task import FactualTask

OWNED = 0.5
"""The mass above which a head owns a token."""


def owned(mass_given: Float[Tensor, "head token"], task: "FactualTask") -> Bool[Tensor, "head token"]:
    """Which subjects and relations each head owns; no relations where they come last, as heads fall back on them."""
    owns = mass_given > OWNED
    owns[:, (task.subjects if task.end is None else task.relations).stop :] = False
    return owns


def served(mass_given: Float[Tensor, "head token"], task: "FactualTask") -> Bool[Tensor, "head token"]:
    """The tokens that each head owns and, where relations come last, those it falls back on: they say something."""
    serves = mass_given > OWNED
    serves[:, task.relations.stop :] = False
    return serves


@torch.no_grad()
def factual_grafts(task: "FactualTask", model: ToyTransformer, rule: str, strength: float) -> list[Graft]:
    """W_KQ1, W_OV1 and, with a feed-forward part, FF1."""
    if rule == "construction":
        write = partial(ideal.write_ideal, task, beta=model.config.beta)
        grafts = [Graft((part,), partial(write, only=[part])) for part in ideal.parts_of(model)]
        trial = copy.deepcopy(model)
        for graft in grafts:
            graft.implant(trial)
        return grafts
    obstacle = why_no_tables(model)
    if obstacle:
        raise UserError(
            "ideal parts of a factual model need one layer of softmax attention without positions and LayerNorm, but "
            f"this model has {obstacle}"
        )
    tables = fact_tables(model, task, DRAWS)
    owns = [of_head.nonzero()[:, 0].tolist() for of_head in served(tables.mass_given, task)]
    parts: dict[str, Callable[[ToyTransformer], None]] = {
        "W_KQ1": _selectors(task, tables, owns, rule, strength),
        "W_OV1": _values(task, tables, owns, rule, strength),
    }
    if "FF1" in factual_memories(task, model):
        parts["FF1"] = _pairs(task, model, rule, strength)
    return [Graft((name,), implant) for name, implant in parts.items()]


def _selectors(
    task: "FactualTask", tables: FactTables, owns: list[list[int]], rule: str, strength: float
) -> Callable[[ToyTransformer], None]:
    """k_h of every head; one that owns nothing attends to everything alike."""
    phi, scores = exact(tables.vectors), exact(tables.scores.mean(0))
    q, keys = ideal.query_vector(phi[ideal.query_tokens(task)]), []
    for own, learned in zip(owns, scores, strict=True):
        others = torch.ones(len(phi), dtype=torch.bool)
        others[own] = False
        above = torch.where(others, 0.0, learned - learned[others].mean())
        keys.append(strength * ideal.selector(phi, above, rule))

    def implant(model: ToyTransformer) -> None:
        attn = model.attention(0)
        ideal.silence(attn.W_Q, attn.W_K)
        for head, k in enumerate(keys):
            ideal.write_kq(attn, head, q, k)

    return implant


def _values(
    task: "FactualTask", tables: FactTables, owns: list[list[int]], rule: str, strength: float
) -> Callable[[ToyTransformer], None]:
    """W_OV of every head that owns tokens."""
    phi, asking, written = exact(tables.vectors), ideal.query_tokens(task), {}
    for head, own in enumerate(owns):
        if not own:
            continue
        said = strength * exact(tables.values[head, own])
        if rule == "hebbian":
            unit = phi[own] / phi[own].square().sum(1, keepdim=True)
            W = hebbian(Association(unit, said, torch.arange(len(own)))).T
        else:
            W = ideal.value_matrix(phi[own + [z for z in asking if z not in own]], said)
        written[head] = W, said

    def implant(model: ToyTransformer) -> None:
        attn = model.attention(0)
        ideal.silence(attn.W_V, attn.W_O)
        for head, (W, said) in written.items():
            ideal.write_ov(attn, head, W, said)

    return implant


def _pairs(task: "FactualTask", model: ToyTransformer, rule: str, strength: float) -> Callable[[ToyTransformer], None]:
    """W_out on the learned hidden units, or the one matrix of a linear part, of the size of the learned one."""
    part, stored = model.feed_forward(0), factual_memories(task, model)["FF1"].association
    assert part is not None
    learned, hidden = (part.W_in, stored.keys) if part.W_out is None else (part.W_out, part.hidden(stored.keys))
    best = read_out(hidden, stored.values, stored.targets, rule)
    W = strength * learned.norm() / best.norm().clamp_min(1e-12) * best

    def implant(model: ToyTransformer) -> None:
        part = model.feed_forward(0)
        assert part is not None
        (part.W_in if part.W_out is None else part.W_out).copy_(W)

    return implant
