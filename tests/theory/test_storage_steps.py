"""How strongly gradient descent stores an input that it learns undisturbed, step by step."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toytf.fits import log_slope
from toytf.theory import stored_strengths, strength_path, strengths_after, zipf


def exponent(q: np.ndarray, p: np.ndarray) -> float:
    slope = log_slope(p.tolist(), q.tolist())
    assert slope is not None
    return slope.value


def test_the_first_step_is_that_of_the_gradient_at_zero() -> None:
    """1 − π = 1 − 1/M at W = 0, so q = γ (1 − 1/M), and the paper's form starts in the same way."""
    for M in (2, 5, 100):
        assert strength_path(1, 0.3, M)[1] == pytest.approx(0.3 * (1 - 1 / M))
        assert strength_path(1, 0.3, M, form="score")[1] == pytest.approx(0.3 * (1 - 1 / M))


def test_two_answers_follow_the_logistic_recursion() -> None:
    """M = 2: m ← m + 2γ σ(−m), q = m/2, written out for three steps."""
    m, gamma = 0.0, 0.7
    for visit in range(1, 4):
        m += 2 * gamma / (1 + math.exp(m))
        assert strength_path(visit, gamma, 2)[visit] == pytest.approx(m / 2)


def test_small_steps_store_by_count_and_huge_ones_alike() -> None:
    counts = np.array([1, 10, 100])
    small = stored_strengths(counts, 1e-6, 5)
    assert small / small[0] == pytest.approx(counts, rel=1e-3)  # each of 100 steps lowers 1 − π by 1e-6
    huge = stored_strengths(counts, 200.0, 5)
    assert huge == pytest.approx(np.full(3, huge[0]), rel=1e-9)


def test_moderate_steps_store_the_logarithm_of_counts() -> None:
    """e^m + (M − 1) m = 1 + M γ c for small γ, so m → log(M γ c): twice the count adds log 2."""
    early, late = stored_strengths(np.array([200_000, 400_000]), 0.1, 5) * 5 / 4
    assert late - early == pytest.approx(math.log(2), rel=1e-3)
    assert late == pytest.approx(math.log(5 * 0.1 * 400_000), rel=1e-2)


@pytest.mark.parametrize(("gamma", "rho"), [(1e-3, 0.963), (0.1, 0.711), (1.0, 0.384), (10.0, 0.026), (100.0, 0.0)])
def test_the_exponent_falls_with_the_step_size_as_in_a_separate_simulation(gamma: float, rho: float) -> None:
    """N = 100, α = 2, counts round(10⁴ p), q ← q + γ / (1 + e^q / 10); 0.01 for how counts are rounded."""
    p = zipf(100, 2.0)
    q = stored_strengths(np.round(1e4 * p), gamma, 11, form="score")
    assert exponent(q[q > 0], p[q > 0]) == pytest.approx(rho, abs=0.01)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.floats(1e-3, 50), st.integers(2, 9))
def test_batches_of_one_are_the_recursion_in_counts(counts: list[int], lr: float, M: int) -> None:
    visits = np.repeat(np.arange(len(counts)), counts)
    if len(visits):
        q = strengths_after((np.eye(len(counts))[z] for z in visits), lr, M)
        assert q == pytest.approx(stored_strengths(np.array(counts), lr, M))


@given(st.floats(1e-3, 1e3), st.integers(1, 50))
def test_strengths_grow_with_visits_and_by_less_each_time(lr: float, M: int) -> None:
    steps = np.diff(strength_path(20, lr, M))
    assert (steps >= 0).all()
    assert (np.diff(steps) <= 1e-12 * lr).all()


def test_one_answer_has_nothing_to_learn() -> None:
    assert (stored_strengths(np.array([0, 3, 50]), 1.0, 1) == 0).all()
    assert (strengths_after([np.array([0.5, 0.5])], 1.0, 1) == 0).all()


def test_huge_steps_do_not_overflow() -> None:
    assert np.isfinite(strength_path(3, 1e30, 5)).all()
    assert np.isfinite(strengths_after([np.ones(2)] * 3, 1e30, 5)).all()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        stored_strengths(np.array([0.5]), 1.0, 5)
    with pytest.raises(ValueError, match="lr is -1"):
        strength_path(3, -1.0, 5)
    with pytest.raises(ValueError, match="n_outputs is 0"):
        strengths_after([np.ones(2)], 1.0, 0)
    with pytest.raises(ValueError, match="no batch"):
        strengths_after([], 1.0, 5)
