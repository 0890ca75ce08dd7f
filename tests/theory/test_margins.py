"""The laws of margins: logarithmic growth, and two tokens that push each other back."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toytf import theory

P = theory.zipf(5, 1)
STEPS = 10_000


@pytest.mark.parametrize(
    ("lr", "expected"), [(1, [9.993, 9.298, 8.891, 8.602, 8.378]), (10, [12.297, None, None, None, 10.687])]
)
def test_margins_of_orthonormal_tokens_after_ten_thousand_steps(lr: int, expected: list[float | None]) -> None:
    """N = M = 5, p ∝ 1/x: an independent simulation of the full matrix, to the three decimals that it was kept with."""
    m = np.zeros(5)
    for _ in range(STEPS):
        m = theory.margin_step(m, lr * P, 5)
    for found, known in zip(m, expected, strict=True):
        assert known is None or found == pytest.approx(known, abs=6e-4)


@given(st.floats(-2000, 2000), st.floats(0, 100), st.integers(2, 1000))
def test_a_margin_never_falls_nor_overflows(margin: float, rate: float, n_outputs: int) -> None:
    after = float(theory.margin_step(np.array(margin), np.array(rate), n_outputs))
    assert margin <= after <= margin + rate * n_outputs / (n_outputs - 1) + 1e-9


def test_the_loss_falls_like_one_over_time() -> None:
    assert theory.loss_law(5, 5, 1, 1e4) == pytest.approx(4e-4)
    assert theory.loss_law(5, 5, 10, 1e4) == pytest.approx(4e-5)


# Two tokens: a = 0.95, p_1 = 0.75


def test_the_first_step_pushes_the_rare_token_to_the_wrong_side() -> None:
    after = theory.pair_step(np.zeros(2), 10, 0.95, 0.75)
    assert after == pytest.approx([10 * (0.75 - 0.95 * 0.25), 10 * (0.25 - 0.95 * 0.75)])


def test_the_loss_rises_in_the_first_step_if_it_is_large() -> None:
    def loss(m: np.ndarray) -> float:
        return float(np.array([0.75, 0.25]) @ np.log1p(np.exp(-m)))

    after = {lr: loss(theory.pair_step(np.zeros(2), lr, 0.95, 0.75)) for lr in (5.25, 5.5, 6)}
    assert [after[lr] for lr in (5.25, 5.5, 6)] == pytest.approx([0.677, 0.698, 0.743], abs=6e-4)
    assert after[5.25] < math.log(2) < after[5.5]


def test_the_initial_sharpness_is_beyond_the_edge_of_stability() -> None:
    assert theory.pair_sharpness(0.95, 0.75) == pytest.approx(0.4907, abs=5e-5)
    assert 10 * theory.pair_sharpness(0.95, 0.75) / 2 == pytest.approx(2.453, abs=6e-4)


@given(st.floats(-1, 1), st.floats(0.01, 0.99))
def test_the_sharpness_of_two_tokens_is_half_of_the_largest_eigenvalue_of_their_covariance(a: float, p1: float) -> None:
    e = np.array([[1, 0], [a, math.sqrt(1 - a**2)]])
    largest = np.linalg.eigvalsh(e.T @ np.diag([p1, 1 - p1]) @ e)[-1]
    assert theory.pair_sharpness(a, p1) == pytest.approx(largest / 2, abs=1e-7)  # √ of a rounded difference


@given(st.floats(-1, 1), st.floats(0.01, 0.99), st.floats(0.1, 30))
def test_two_tokens_of_one_frequency_stay_alike(a: float, m: float, lr: float) -> None:
    after = theory.pair_step(np.array([m, m]), lr, a, 0.5)
    assert after[0] == after[1]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: theory.pair_sharpness(1.5, 0.5), "correlation is 1.5, expected a number from -1 to 1"),
        (lambda: theory.pair_sharpness(0.5, 1), "p1 is 1, expected a frequency between 0 and 1"),
        (lambda: theory.margin_step(np.zeros(1), np.ones(1), 1), "n_outputs is 1, expected a finite number"),
        (lambda: theory.loss_law(5, 5, 0, 10), "lr is 0, expected a number above 0"),
    ],
)
def test_what_no_formula_is_about_is_refused(call: "object", says: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=says):
        call()
