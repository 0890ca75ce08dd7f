"""Where an ideal construction keeps the facts: in what tokens say, or in hidden units that read pairs of tokens."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.factual.table import UNKNOWN, FactTable
from toytf.memory import Association, hebbian
from toytf.memory.constructions import ridge_regression
from toytf.memory.mlp import mlp_pairs
from toytf.optimizers import AdamW
from toytf.randomness import generator
from toytf.updates import updates

LEARNING_RATE = 0.05
RIDGE = 1e-3
"""The price λ on the size of what least squares finds, relative to the mean |x|² of the vectors x that it reads."""


def answers_of_tokens(
    table: FactTable, u: Float[Tensor, "answer d"], rule: Literal["optimised", "hebbian"], steps: int
) -> Float[Tensor, "token d"]:
    """What subjects and relations say, such that argmax_a u_a·(g_s + g_r) is the answer; subjects come first.

    Hebbian:    g_s = Σ_r u_{a*(s,r)} / |u|²,   g_r = Σ_{a∈A_r} u_a / |u|²
    optimised:  the g that minimise the cross-entropy of the facts, a convex problem, by full-batch Adam from g = 0

    Hebbian scores are 2 for the right answer, 1 for others of r or of s, 0 for the rest, with errors of variance
    (R + D)/d: all are right for d ≳ 4 (R + D) ln(SR (R + D)). The best need about d = 1.2 (R + D). Relations should
    have answers of their own: shared ones say nothing about r.
    """
    S, R, answers = table.n_subjects, table.n_relations, torch.from_numpy(table.answers)
    if rule == "hebbian":
        s, _, targets = _facts(table)
        known = u.new_zeros(S + R, len(u))
        known.index_put_((s, targets), u.new_ones(()), accumulate=True)
        known[S:] = torch.from_numpy(table.sets)
        return known @ _unit_score(u)
    g = u.new_zeros(S + R, u.shape[1], requires_grad=True)

    def backward(step: int) -> Tensor:
        scores = g @ u.T
        of_pairs = (scores[:S, None] + scores[S:]).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(of_pairs, answers.flatten(), ignore_index=UNKNOWN)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    for _ in updates(AdamW([g], LEARNING_RATE), backward, steps):
        pass
    return g.detach()


def hidden_pairs(
    table: FactTable,
    phi: Float[Tensor, "token d"],
    u: Float[Tensor, "answer d"],
    W_in: Float[Tensor, "d width"],
    rule: Literal["least_squares", "hebbian"],
) -> tuple[Float[Tensor, "d width"], Float[Tensor, "width d"]]:
    """W_in and W_out of hidden units with relu((φ(s) + φ(r)) W_in) W_out ≈ u_a / |u_a|², a = a*(s, r).

    least squares:  W_out is fitted to the given W_in, which stays
    Hebbian:        `mlp_pairs` of degree 2 with ordering, right up to a factor; W_in is drawn anew, as the rule needs
                    Gaussian weights, the same for all models
    """
    s, r, targets = _facts(table)
    first, second = phi[s], phi[table.n_subjects + r]
    if rule == "least_squares":
        return W_in, read_out(((first + second) @ W_in).relu(), u, targets, rule)
    stored = Association((first + second) / math.sqrt(2), _unit_score(u), targets)
    memory = mlp_pairs(first, second, stored, W_in.shape[1], generator(0, "ideal", "hidden units"))
    return memory.W_in.T / math.sqrt(2), memory.W_out


def read_out(
    hidden: Float[Tensor, "fact width"], u: Float[Tensor, "answer d"], targets: Int[Tensor, "fact"], rule: str
) -> Float[Tensor, "width d"]:
    """The W_out that answers every fact by hidden units that are given, Φ W_out ≈ Y, Y = u_a / |u_a|².

    least squares:  W_out = Φᵀ (ΦΦᵀ + λI)⁻¹ Y,   λ = 10⁻³ |Φ|² / n for n facts
    Hebbian:        W_out = Φᵀ Y
    """
    if rule == "hebbian":
        return hebbian(Association(hidden, _unit_score(u), targets)).T
    return ridge_regression(hidden, _unit_score(u)[targets], RIDGE, directions=len(hidden))


def _facts(table: FactTable) -> tuple[Int[Tensor, "fact"], Int[Tensor, "fact"], Int[Tensor, "fact"]]:
    """Subject, relation and answer of every fact."""
    s, r = torch.from_numpy(table.pairs).unbind(1)
    return s, r, torch.from_numpy(table.answers[table.known])


def _unit_score(u: Float[Tensor, "answer d"]) -> Float[Tensor, "answer d"]:
    """u_a / |u_a|², whose score with u_a is 1 also for vectors that are not of unit length."""
    return u / u.square().sum(1, keepdim=True)
