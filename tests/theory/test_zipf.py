"""Zipf frequencies, and what n draws leave unseen."""

import numpy as np
import pytest

from toytf.fits import log_slope
from toytf.theory import sampling_floor, unseen_mass, zipf


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
    assert unseen_mass(zipf(10**6, 2.0), 10_000) == pytest.approx(0.691 / 100, rel=1e-3)  # ζ(α)^{−1/α} Γ(1 − 1/α) / α


def test_there_is_at_least_one_input() -> None:
    with pytest.raises(ValueError, match="n_inputs is 0"):
        zipf(0, 2)
