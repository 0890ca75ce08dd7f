"""Growth rates and stage times of linear attention on facts, against their definitions and the flow itself."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toytf import theory

sizes = st.integers(2, 40)


def test_the_sizes_of_the_notebook_have_the_rates_of_the_formulas() -> None:
    """S = 16, R = 4, D = 8: λ_r = √(3/32)/4 = 0.0765, λ_s = √(7/32)/16 = 0.0292; α = 1e-5 and lr = 0.1."""
    relations, subjects = theory.relation_rate(4, 8), theory.subject_rate(16, 4, 8)
    assert relations == pytest.approx(0.0765, abs=5e-5)
    assert subjects == pytest.approx(0.0292, abs=5e-5)
    assert theory.stage_time(relations, 1e-5, 0.1) == pytest.approx(1595, abs=1)
    assert theory.stage_time(subjects, 1e-5, 0.1) == pytest.approx(4176, abs=1)
    assert theory.plateau_length(relations, subjects, 1e-5, 0.1) == pytest.approx(4176 - 1595, abs=1)


@given(sizes, sizes, sizes)
def test_the_rates_of_a_balanced_table_are_those_of_its_distributions(S: int, R: int, D: int) -> None:
    of_relation = np.repeat(np.eye(R)[0], D) / D  # D of R·D answers
    of_subject = np.tile(np.eye(D)[0], R) / R  # one in each relation
    assert theory.token_rate(1 / R, of_relation) == pytest.approx(theory.relation_rate(R, D), rel=1e-9)
    assert theory.token_rate(1 / S, of_subject) == pytest.approx(theory.subject_rate(S, R, D), rel=1e-9)


@given(sizes, sizes, sizes)
def test_relations_come_first_if_they_are_few(S: int, R: int, D: int) -> None:
    left, right = S**2 * (R - 1), R**2 * (D - 1)
    if left != right:  # at equality rounding decides
        assert theory.relations_first(S, R, D) == (left > right)


def test_what_says_nothing_of_the_answer_does_not_grow() -> None:
    assert theory.token_rate(1.45, np.full(32, 1 / 32)) == 0
    assert theory.subject_rate(16, 4, 1) == 0  # the relation says it all
    assert theory.relation_rate(1, 8) == 0


@given(st.floats(1e-8, 1e-2))
def test_logits_are_of_order_one_at_the_stage_time(alpha: float) -> None:
    """α²/2 · sinh(2λt) at t = ln(2/α)/λ is 1 up to α⁴/16."""
    t = theory.stage_time(0.03, alpha)
    assert alpha**2 / 2 * math.sinh(2 * 0.03 * t) == pytest.approx(1, rel=1e-6)
    assert theory.stage_time(0.03, alpha, lr=0.1) == pytest.approx(10 * t)


def test_arguments_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="rate is 0"):
        theory.stage_time(0, 1e-5)
    with pytest.raises(ValueError, match="alpha 2"):
        theory.stage_time(1, 2)
    with pytest.raises(ValueError, match="n_subjects is 0"):
        theory.subject_rate(0, 4, 8)
    with pytest.raises(ValueError, match="conditional sums to 2"):
        theory.token_rate(1, np.ones(2))
