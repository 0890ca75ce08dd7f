"""When linear attention learns which part of a fact: relations first, for a while any answer of the relation, then all.

The setting in which it is derived: one-hot vectors, logit_a = Σ_t w(z_t) W(a, z_t), small constant initial weights α,
gradient flow on the cross-entropy over facts (s, r) → a*(s, r), all alike; S subjects, R relations with D answers each,
which no other relation has (Nichani, Lee, Bietti 2024; times derived here). A table is balanced if every answer of
a relation belongs to equally many subjects.

With G_z(a) = E[n_z (1{a=a*} − p̂_a)], where n_z counts token z, the flow is Ẇ(a, z) = w(z) G_z(a),
ẇ(z) = Σ_a W(a, z) G_z(a), and w(z)² − Σ_a W(a, z)² is conserved. While p̂ is uniform G is constant, so w(z) =
α cosh(λ_z t) with λ_z = |G_z|.
"""

import math

import numpy as np
from jaxtyping import Float

from toytf.theory._domain import Real, at_least


def token_rate(count: Real, conditional: Float[np.ndarray, "A"]) -> float:
    """The rate at which a token's weights grow as long as every answer seems equally likely.

    λ_z = E[n_z] · |p(·|z) − 1/|A||₂

    count: E[n_z], how often z is in a sequence, on average; conditional: p(a|z).
    """
    at_least(0, count=count)
    if not math.isclose(conditional.sum(), 1, abs_tol=1e-6):
        raise ValueError(f"conditional sums to {conditional.sum():g}, expected the probabilities of all answers")
    return float(count * np.linalg.norm(conditional - 1 / len(conditional)))


def relation_rate(n_relations: int, n_answers: int) -> float:
    """λ_r = (1/R) √((R−1) / (RD)) of a balanced table: a relation leaves D of R·D answers."""
    at_least(1, n_relations=n_relations, n_answers=n_answers)
    R, D = n_relations, n_answers
    return math.sqrt((R - 1) / (R * D)) / R


def subject_rate(n_subjects: int, n_relations: int, n_answers: int) -> float:
    """λ_s = (1/S) √((D−1) / (RD)): a subject leaves R of R·D answers.

    In a balanced table it stays the same once the relations are learned.
    """
    at_least(1, n_subjects=n_subjects, n_relations=n_relations, n_answers=n_answers)
    R, D = n_relations, n_answers
    return math.sqrt((D - 1) / (R * D)) / n_subjects


def relations_first(n_subjects: int, n_relations: int, n_answers: int) -> bool:
    """λ_r > λ_s, that is S √(R−1) > R √(D−1): does the model know the relation's answers before the subject's?"""
    return relation_rate(n_relations, n_answers) > subject_rate(n_subjects, n_relations, n_answers)


def stage_time(rate: Real, alpha: Real, lr: Real = 1.0) -> float:
    """Steps until tokens of this rate decide: their logits α²/2 · sinh(2λt) · G/|G| get to 1.

    t = ln(2/α) / λ,   in steps t / lr

    alpha: the initial w, if that is larger than the initial W. Leading order for small α: measured times are some 5 to
    15 % later, since a logit of 1 is not enough.
    """
    at_least(0, rate=rate, alpha=alpha, lr=lr)
    if not (rate > 0 and lr > 0 and 0 < alpha < 2):
        raise ValueError(f"rate is {rate}, lr {lr}, alpha {alpha}: expected rate > 0, lr > 0 and 0 < alpha < 2")
    return math.log(2 / alpha) / (rate * lr)


def plateau_length(first: Real, second: Real, alpha: Real, lr: Real = 1.0) -> float:
    """Steps between two stages of these rates: (1/λ_second − 1/λ_first) ln(2/α) / lr.

    Between relations and subjects the model answers like p(a|r), at the loss H(a|r).
    """
    return stage_time(second, alpha, lr) - stage_time(first, alpha, lr)
