"""How strongly gradient descent stores an input that it learns undisturbed, step by step."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toytf.theory import strengths_after


def path(visits: int, lr: float, M: int) -> list[float]:
    """q after 1, 2, … visits, each in a batch of its own."""
    return [float(strengths_after([np.ones(1)] * visit, lr, M)[0]) for visit in range(1, visits + 1)]


def test_the_first_step_is_that_of_the_gradient_at_zero() -> None:
    """1 − π = 1 − 1/M at W = 0, so q = γ (1 − 1/M)."""
    for M in (2, 5, 100):
        assert path(1, 0.3, M) == pytest.approx([0.3 * (1 - 1 / M)])


def test_two_answers_follow_the_logistic_recursion() -> None:
    """M = 2: m ← m + 2γ σ(−m), q = m/2, written out for three steps."""
    m, gamma, expected = 0.0, 0.7, []
    for _ in range(3):
        m += 2 * gamma / (1 + math.exp(m))
        expected.append(m / 2)
    assert path(3, gamma, 2) == pytest.approx(expected)


def test_small_steps_store_by_count_and_huge_ones_alike() -> None:
    small, huge = np.array(path(100, 1e-6, 5)), np.array(path(100, 200.0, 5))
    assert small / small[0] == pytest.approx(np.arange(1, 101), rel=1e-3)  # each of 100 steps lowers 1 − π by 1e-6
    assert huge == pytest.approx(np.full(100, huge[0]), rel=1e-9)


def test_inputs_do_not_disturb_each_other() -> None:
    """A batch of one changes what it shows alone."""
    q = strengths_after((np.eye(3)[z] for z in (0, 1, 0, 0)), 0.7, 4)
    assert q == pytest.approx([path(3, 0.7, 4)[2], path(1, 0.7, 4)[0], 0])


@given(st.floats(1e-3, 1e3), st.integers(1, 50))
def test_strengths_grow_with_visits_and_by_less_each_time(lr: float, M: int) -> None:
    steps = np.diff(path(10, lr, M))
    assert (steps >= -1e-12 * lr).all()
    assert (np.diff(steps) <= 1e-12 * lr).all()


def test_one_answer_has_nothing_to_learn() -> None:
    assert (strengths_after([np.array([0.5, 0.5])], 1.0, 1) == 0).all()


def test_huge_steps_do_not_overflow() -> None:
    assert np.isfinite(strengths_after([np.ones(2)] * 3, 1e30, 5)).all()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="lr is -1"):
        strengths_after([np.ones(2)], -1.0, 5)
    with pytest.raises(ValueError, match="n_outputs is 0"):
        strengths_after([np.ones(2)], 1.0, 0)
    with pytest.raises(ValueError, match="no batch"):
        strengths_after([], 1.0, 5)
