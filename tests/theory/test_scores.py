import math

import numpy as np
import pytest

from toytf.theory import extreme_level, hebbian_scores, optimum_scores
from toytf.theory.dimension import _project


@pytest.mark.parametrize(("p", "mean", "spread"), [(555, 2.275, 0.217), (345, 2.13, 0.24)])
def test_the_right_score_is_narrow_and_just_at_the_cut(p: int, mean: float, spread: float):
    scores = optimum_scores(p)
    assert scores.mean == scores.rival_cut == pytest.approx(mean, abs=0.01)
    assert scores.spread == pytest.approx(spread, abs=0.006)


def test_a_margin_lifts_the_right_score_above_the_cut():
    scores = optimum_scores(100, 0.7)
    assert scores.rival_cut is not None
    assert scores.mean - scores.rival_cut == pytest.approx(0.7)


@pytest.mark.parametrize(("p", "kappa"), [(2, 0.0), (5, 1.0), (60, 0.0), (60, 2.0)])
def test_the_scores_are_projected_normal_scores(p: int, kappa: float):
    samples = 40_000
    rng = np.random.default_rng(2)
    z_0, z = rng.standard_normal(samples), -np.sort(-rng.standard_normal((samples, p - 1)), axis=1)
    t, _ = _project(z_0, z, kappa)
    rivals = np.minimum(z, t[:, None])
    scores = optimum_scores(p, kappa)
    # Two samplings of at least 40 000 draws with a spread of at most .9: four errors are .025.
    assert scores.mean == pytest.approx((t + kappa).mean(), abs=0.025)
    assert scores.spread == pytest.approx(t.std(), abs=0.025)
    assert scores.rival_spread == pytest.approx(rivals.std(), abs=0.025 / math.sqrt(p - 1))


def test_hardly_any_rival_is_cut_when_there_are_many():
    assert 0.99 < optimum_scores(4096).rival_spread < 1


def test_the_hebbian_rule_is_higher_and_broader_than_the_optimum():
    hebbian, optimum = hebbian_scores(555, 64, 64), optimum_scores(555)
    assert hebbian.mean == pytest.approx(2.717, abs=0.001)
    assert hebbian.rival_spread == pytest.approx(1.11, abs=0.005)
    assert (hebbian.spread, hebbian.rival_cut) == (1, None)
    assert hebbian.mean > optimum.mean
    assert hebbian.spread > 4 * optimum.spread
    assert hebbian_scores(345, 48, 48).mean == pytest.approx(2.58, abs=0.005)


@pytest.mark.parametrize(("d_in", "d_out"), [(48, 48), (24, 80)])
def test_hebbian_scores_by_simulation(d_in: int, d_out: int):
    p, draws = 200, 24
    right, rivals = [], []
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        X, Y = rng.standard_normal((p, d_in)), rng.standard_normal((p, d_out))
        X *= math.sqrt(d_in) / np.linalg.norm(X, axis=1, keepdims=True)
        Y *= math.sqrt(d_out) / np.linalg.norm(Y, axis=1, keepdims=True)
        S = X @ (X.T @ Y) @ Y.T / math.sqrt(p * d_in * d_out)
        right.append(np.diag(S))
        rivals.append(S[~np.eye(p, dtype=bool)])
    scores = hebbian_scores(p, d_in, d_out)
    # Draws fluctuate by √2/d in the mean and .04 in the spreads, and 24 are averaged; the rest is of order 1/d.
    assert np.mean(right) == pytest.approx(scores.mean, rel=0.03)
    assert np.mean([s.std() for s in right]) == pytest.approx(1, abs=0.05)
    assert np.var(rivals) == pytest.approx(scores.rival_spread**2, rel=0.03)


@pytest.mark.parametrize(("d_in", "d_out"), [(48, 48), (24, 80)])
def test_hebbian_scores_of_own_rivals_by_simulation(d_in: int, d_out: int):
    """A rival that no key belongs to overlaps with the right value only: 1 + d_in/p, not 1 + (d_in + d_out)/p."""
    p, rivals = 200, []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        X, Y, C = (rng.standard_normal((p, d)) for d in (d_in, d_out, d_out))
        X *= math.sqrt(d_in) / np.linalg.norm(X, axis=1, keepdims=True)
        Y *= math.sqrt(d_out) / np.linalg.norm(Y, axis=1, keepdims=True)
        rivals.append((X @ (X.T @ Y) @ C.T).ravel() / math.sqrt(p * d_in * d_out))
    expected = hebbian_scores(p, d_in, d_out, shared=False).rival_spread ** 2
    # As above; Gaussian rivals, whose mean over 200 × 24 has an error of a percent.
    assert np.var(rivals) == pytest.approx(expected, rel=0.03)


def test_extreme_level():
    assert extreme_level(1) == 0
    assert extreme_level(555) == pytest.approx(math.sqrt(2 * math.log(555)))
    # The cut is below the leading order and moves towards it.
    ratios = [optimum_scores(p).mean / extreme_level(p) for p in (64, 1024, 16384)]
    assert ratios == sorted(ratios)
    assert ratios[-1] < 1


def test_scores_need_a_rival():
    with pytest.raises(ValueError, match="n_values is 1, expected a finite number of at least 2"):
        optimum_scores(1)
    with pytest.raises(ValueError, match="d_out is 0"):
        hebbian_scores(3, 4, 0)
