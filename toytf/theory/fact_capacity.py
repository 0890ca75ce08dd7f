"""How large one layer must be to answer S subjects and R relations with facts (Nichani, Lee, Bietti 2024).

H heads of dimension d_h in a stream of dimension d, then a feed-forward part of m hidden units or none. A relation has
at most D answers. The theorems hold up to logarithms; here all constants are 1.
"""

import math

from toytf.theory._domain import at_least

FACTS_PER_PARAMETER = 0.15
"""The line that the number of facts follows in trainings of many shapes, D = 8, at an accuracy of 99 % (Fig. 4)."""


def recall_parameters(n_heads: int, d_head: int, d_model: int, width: int = 0) -> int:
    """Weights that can hold facts: 4 H d_h d + 2 m d, those of attention and feed-forward part; no vectors, no biases.

    width: m, 0 for attention only.
    """
    at_least(1, n_heads=n_heads, d_head=d_head, d_model=d_model)
    at_least(0, width=width)
    return 4 * n_heads * d_head * d_model + 2 * width * d_model


def attention_and_mlp_suffice(
    n_subjects: int, n_relations: int, *, d_model: int, n_heads: int, d_head: int, width: int, most_frequent: int = 1
) -> bool:
    """Do H d_h ≥ S + R, m d ≥ S R and m ≥ max_a C(a) hold? Then attention can copy and the feed-forward part store.

    most_frequent: max_a C(a), how many facts the most frequent answer has.
    """
    _check(n_subjects, n_relations, d_model, n_heads, d_head)
    at_least(0, width=width, most_frequent=most_frequent)
    copies = n_heads * d_head >= n_subjects + n_relations
    return copies and width * d_model >= n_subjects * n_relations and width >= most_frequent


def attention_suffices(
    n_subjects: int, n_relations: int, n_answers: int, *, d_model: int, n_heads: int, d_head: int, disjoint: bool = True
) -> bool:
    """Do d ≥ R + D and H d_h ≥ S + R hold? Then the values of subjects and relations can hold all facts as a sum.

    The theorem asks for H d_h ≳ S; the values of the relations, by which answers are told apart, take R more.

    disjoint: no answer belongs to two relations. Otherwise none of this follows: a shared answer may be the subject's
    under the other relation, which a sum cannot tell.
    """
    _check(n_subjects, n_relations, d_model, n_heads, d_head)
    at_least(1, n_answers=n_answers)
    return disjoint and d_model >= n_relations + n_answers and n_heads * d_head >= n_subjects + n_relations


def additive_dimension(n_subjects: int, n_relations: int, n_answers: int) -> float:
    """The d from which sums of random output vectors answer all facts: 4 (R + D) ln(S R (R + D)) (derived).

    With g_s = Σ_r u_{a*(s,r)} and g_r = Σ_{a∈A_r} u_a the right answer scores 2, some R + D others 1, with interference
    of variance (R + D)/d. Tables that are optimised instead of summed do with about 1.2 (R + D).
    """
    at_least(1, n_subjects=n_subjects, n_relations=n_relations, n_answers=n_answers)
    rivals = n_relations + n_answers
    return 4 * rivals * math.log(n_subjects * n_relations * rivals)


def _check(n_subjects: int, n_relations: int, d_model: int, n_heads: int, d_head: int) -> None:
    at_least(1, n_subjects=n_subjects, n_relations=n_relations, d_model=d_model, n_heads=n_heads, d_head=d_head)
