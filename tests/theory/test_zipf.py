"""Zipf frequencies, and what n draws leave unseen."""

import math

import numpy as np
import pytest

from toytf.fits import log_slope
from toytf.theory import sample_exponent, sampling_floor, unseen_law, unseen_mass, zipf


def test_frequencies_fall_like_a_power_and_sum_to_one() -> None:
    p = zipf(1000, 2)
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert p[0] / p[9] == pytest.approx(100)
    assert zipf(4, 0) == pytest.approx(np.full(4, 0.25))


def test_half_is_unseen_after_one_draw_of_a_fair_coin() -> None:
    """Σ p (1 − p) = 1/2, and an error on half of it, since one of two answers is guessed."""
    fair = zipf(2, 0)
    assert unseen_mass(fair, 1) == pytest.approx(0.5)
    assert unseen_mass(fair, 0) == 1
    assert sampling_floor(fair, 1, 2) == pytest.approx(0.25)
    assert unseen_mass(zipf(1, 2), 3) == 0


@pytest.mark.parametrize(("alpha", "slope"), [(2.0, -0.499), (1.5, -0.336)])
def test_what_is_unseen_falls_with_the_power_of_the_law_up_to_the_cut_at_a_million(alpha: float, slope: float) -> None:
    """n from 10² to 10⁴: −.499 and −.336, near −(α−1)/α = −.5 and −.333."""
    p, samples = zipf(10**6, alpha), [100, 300, 1000, 3000, 10000]
    found = log_slope(samples, [unseen_mass(p, n) for n in samples])
    assert found is not None
    assert found.value == pytest.approx(slope, abs=0.005)
    assert found.value == pytest.approx(sample_exponent(alpha), abs=0.005)


@pytest.mark.parametrize(
    ("alpha", "samples", "ratio"), [(2.0, 1000, 0.9996), (2.0, 10000, 0.9999), (1.5, 1000, 0.992), (1.5, 10000, 0.982)]
)
def test_the_constant_of_the_law_is_that_of_many_inputs(alpha: float, samples: int, ratio: float) -> None:
    """Exact sum over formula at N = 10⁶: the cut of the frequencies shows at α = 1.5."""
    assert unseen_mass(zipf(10**6, alpha), samples) / unseen_law(alpha, samples) == pytest.approx(ratio, abs=1e-3)


def test_the_constant_at_exponent_two_is_0691() -> None:
    assert unseen_law(2, 10000) == pytest.approx(0.691 / 100, rel=1e-3)


@pytest.mark.parametrize("alpha", [1, 0.5, math.inf])
def test_laws_are_for_exponents_above_one(alpha: float) -> None:
    with pytest.raises(ValueError, match="expected a number above 1"):
        unseen_law(alpha, 10)
    with pytest.raises(ValueError, match="expected a number above 1"):
        sample_exponent(alpha)


def test_there_is_at_least_one_input() -> None:
    with pytest.raises(ValueError, match="n_inputs is 0"):
        zipf(0, 2)
