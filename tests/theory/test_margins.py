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


def test_the_flow_solves_its_equation_and_comes_near_the_steps() -> None:
    progress = np.array([0.0, 1e-6, 0.3, 7.0, 4380.0, 1e12])
    m = theory.margin_flow(progress, 5)
    assert np.exp(m) + 4 * m == pytest.approx(1 + 5 * progress, rel=1e-12)
    assert m[0] == pytest.approx(0, abs=1e-15)
    # 9.992 … 8.377 for the steps' 9.993 … 8.378
    assert theory.margin_flow(STEPS * P, 5)[[0, 4]] == pytest.approx([9.992, 8.377], abs=6e-4)


def test_the_flow_is_about_the_logarithm() -> None:
    assert theory.margin_flow(STEPS * P, 5)[[0, 4]] == pytest.approx(np.log(5 * STEPS * P)[[0, 4]], abs=0.01)


@given(st.floats(0, 50), st.floats(1e-6, 0.01), st.integers(2, 50))
def test_small_steps_follow_the_flow(start: float, rate: float, n_outputs: int) -> None:
    """dm/dτ = M / (e^m + M − 1): the step is the derivative of the flow, up to the square of its size."""
    step = theory.margin_step(np.array(start), np.array(rate), n_outputs) - start
    progress = (math.exp(start) + (n_outputs - 1) * start - 1) / n_outputs
    flow = theory.margin_flow(np.array([progress, progress + rate]), n_outputs)
    assert step == pytest.approx(flow[1] - flow[0], rel=rate, abs=1e-14 * max(1.0, start))


@given(st.floats(-2000, 2000), st.floats(0, 100), st.integers(2, 1000))
def test_a_margin_never_falls_nor_overflows(margin: float, rate: float, n_outputs: int) -> None:
    after = float(theory.margin_step(np.array(margin), np.array(rate), n_outputs))
    assert margin <= after <= margin + rate * n_outputs / (n_outputs - 1) + 1e-9


def test_the_loss_falls_like_one_over_time() -> None:
    assert theory.loss_law(5, 5, 1, 1e4) == pytest.approx(4e-4)
    assert theory.loss_law(5, 5, 10, 1e4) == pytest.approx(4e-5)


# Two tokens: a = 0.95, p_1 = 0.75


def test_the_first_step_pushes_the_rare_token_to_the_wrong_side() -> None:
    first, rare = theory.pair_first_margins(10, 0.95, 0.75)
    assert first == pytest.approx(10 * (0.75 - 0.95 * 0.25))
    assert rare == pytest.approx(10 * (0.25 - 0.95 * 0.75))
    assert theory.pair_step(np.zeros(2), 10, 0.95, 0.75) == pytest.approx([first, rare])


@pytest.mark.parametrize(("correlation", "falls"), [(-0.5, False), (0.33, False), (0.34, True), (1, True)])
@pytest.mark.parametrize("p1", [0.75, 0.25])
def test_it_does_if_the_correlation_is_above_the_ratio_of_frequencies(
    correlation: float, falls: bool, p1: float
) -> None:
    assert theory.rare_token_falls(correlation, p1) is falls  # p_2 / p_1 = 1/3
    assert math.isfinite(theory.spike_threshold(correlation, p1)) is falls


def test_the_first_spike_needs_a_step_size_of_about_six() -> None:
    assert theory.spike_threshold(0.95, 0.75) == pytest.approx(6.0, abs=0.01)

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
        (lambda: theory.pair_first_margins(1, 0.5, 1), "p1 is 1, expected a frequency between 0 and 1"),
        (lambda: theory.margin_flow(np.zeros(1), 1), "n_outputs is 1, expected a finite number of at least 2"),
        (lambda: theory.loss_law(5, 5, 0, 10), "lr is 0, expected a number above 0"),
    ],
)
def test_what_no_formula_is_about_is_refused(call: "object", says: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=says):
        call()
