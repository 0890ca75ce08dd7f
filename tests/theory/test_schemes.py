"""Errors of storage schemes without simulation, and their powers of d."""

import numpy as np
import pytest
from jaxtyping import Float

from toytf.theory import power_exponent, scheme_error, tail_error, threshold_exponent, zipf

N, M = 1000, 5
P = zipf(N, 2)
TARGETS = np.arange(N) % M


@pytest.mark.parametrize(
    ("alpha", "rho", "power"), [(2, 1, -1 / 4), (2, 0.5, -1 / 2), (2, 0.25, -1), (1.5, 1, -1 / 6), (1.5, 0.5, -1 / 3)]
)
def test_powers_of_the_dimension(alpha: float, rho: float, power: float) -> None:
    assert power_exponent(alpha, rho) == pytest.approx(power)


def test_the_best_power_falls_as_fast_as_a_threshold() -> None:
    for alpha in (1.25, 1.5, 2, 3):
        assert power_exponent(alpha, 1 / (2 * alpha)) == pytest.approx(threshold_exponent(alpha))
    assert threshold_exponent(2, answers_grow=True) == -2


SIMULATED = {
    "all alike": (np.ones(N), {69: 0.655, 233: 0.494, 1000: 0.147}),
    "by frequency": (P, {69: 0.119, 233: 0.086, 1000: 0.0573}),
    "power 1/4": (P**0.25, {69: 0.0348, 233: 0.0094, 1000: 0.0018}),
}
"""Means over 300 seeds of an independent simulation with Gaussian vectors."""


@pytest.mark.parametrize("scheme", SIMULATED)
def test_the_error_without_simulation_is_that_of_a_simulation(scheme: str) -> None:
    """Up to a tenth, and the noise of 300 seeds with a heavy tail: one that misses the first input adds 0.61 / 300."""
    q, simulated = SIMULATED[scheme]
    for d, error in simulated.items():
        assert scheme_error(q, P, TARGETS, d, M) == pytest.approx(
            error, rel=0.1, abs=0.025 if scheme == "all alike" else 2e-3
        )


def test_a_threshold_errs_on_what_it_leaves_out() -> None:
    """α = 2, P = d/8 stored of 5 answers: 3.89/d for many inputs; a hundredth is cut off at N = 1000."""
    assert tail_error(zipf(10**6, 2), 125, M) == pytest.approx(3.89 / 1000, rel=0.005)
    q = (np.arange(N) < 12).astype(float)
    assert scheme_error(q, P, TARGETS, 1000, M) == pytest.approx(tail_error(P, 12, M), rel=0.01)


def test_the_second_constant_of_a_threshold_is_that_of_the_cut() -> None:
    """α = 1.5, d = 1000, N = 10⁴: 1.73 d^−½ − 0.61 N^−½ = .0486, an integral for a sum: up to 1/(2P) of it."""
    assert tail_error(zipf(10**4, 1.5), 125, M) == pytest.approx(0.0486, rel=1 / 125)


def _permuted(q: Float[np.ndarray, "N"]) -> float:
    order = np.random.default_rng(0).permutation(N)
    return scheme_error(q[order], P[order], TARGETS[order], 100, M)


def test_the_order_of_inputs_and_the_scale_of_strengths_do_not_matter() -> None:
    expected = scheme_error(P, P, TARGETS, 100, M)
    assert _permuted(P) == pytest.approx(expected)
    assert scheme_error(7 * P, P, TARGETS, 100, M) == pytest.approx(expected)


def test_few_strengths_stand_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 of each of two answers, and some inputs that are not stored: computed at 161 strengths, and at all."""
    q = np.where(np.arange(N) % 7 == 6, 0, P**0.25)
    few = scheme_error(q, P, TARGETS % 2, 100, 2)
    monkeypatch.setattr("toytf.theory.schemes._POINTS", N)
    assert few == pytest.approx(scheme_error(q, P, TARGETS % 2, 100, 2), rel=1e-4)


def test_what_is_not_stored_at_all_is_wrong_and_a_single_answer_is_right() -> None:
    assert scheme_error(np.zeros(N), P, TARGETS, 100, M) == pytest.approx(1)
    assert scheme_error(P, P, np.zeros(N, dtype=int), 100, 1) == 0


def test_an_input_that_is_alone_is_recalled() -> None:
    """One stored input among one: only the length of vectors is random."""
    one = np.ones(1)
    assert scheme_error(one, one, np.zeros(1, dtype=int), 50, 3) == pytest.approx(0, abs=1e-6)


def test_equal_vectors_cannot_be_told_apart() -> None:
    """On the sphere in one dimension: of five answers several have one vector, so that nearly all inputs are ties.

    An input is right if no other answer has its sign, and its own side wins: at most with probability 2⁻⁴.
    """
    p = zipf(20, 2)
    assert scheme_error(p, p, np.arange(20) % 5, 1, 5, sphere=True) > 1 - 2.0**-4 - 0.03  # 512 draws


def test_vectors_of_length_one_err_less_than_those_of_any_length() -> None:
    q = np.ones(N)
    assert scheme_error(q, P, TARGETS, 300, M, sphere=True) < scheme_error(q, P, TARGETS, 300, M)


@pytest.mark.parametrize("bad", [lambda: power_exponent(2, 0), lambda: power_exponent(0.5, 1)])
def test_what_has_no_law_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="expected a"):
        bad()  # type: ignore[operator]
