import math

import numpy as np
import pytest

from toytf.theory import fourth_moment_hebbian, gaussian_singular_values, hebbian_singular_values, top_energy


def normalised(W: np.ndarray) -> np.ndarray:
    """The singular values of √m W / ‖W‖_F."""
    return np.linalg.svd(W, compute_uv=False) * math.sqrt(min(W.shape)) / np.linalg.norm(W)


def gaussian(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


# The quarter circle


@pytest.mark.parametrize(("power", "moment"), [(0, 1), (1, 8 / (3 * math.pi)), (2, 1), (4, 2), (6, 5)])
def test_moments_of_the_quarter_circle(power: int, moment: float):
    """Of the density √(4 − s²)/π on [0, 2]."""
    assert (gaussian_singular_values(2000, 2000, 2000) ** power).mean() == pytest.approx(moment, abs=0.001)


# The energy of the largest singular values

OMEGA2 = {1 / 16: 0.210, 1 / 8: 0.376, 1 / 4: 0.623, 3 / 8: 0.788, 1 / 2: 0.894, 3 / 4: 0.987, 1: 1}


@pytest.mark.parametrize("rho", OMEGA2)
def test_energy_of_the_top_fraction(rho: float):
    energy = top_energy(round(16 * rho), 16, 16)
    assert energy == pytest.approx(OMEGA2[rho], abs=0.001)
    assert energy >= 2 * rho - rho**2  # more than the share of the parameters
    assert top_energy(1, 10**6, 10**6) * 1e6 == pytest.approx(4, rel=0.001)


@pytest.mark.parametrize("shape", [(200, 200), (200, 300), (60, 600), (600, 60)])
def test_top_energy_is_that_of_a_gaussian_matrix(shape: tuple[int, int]):
    d_out, d_in = shape
    m = min(shape)
    squares = np.mean([normalised(gaussian(seed, *shape)) ** 2 for seed in range(4)], axis=0)
    for rank in (1, m // 8, m // 2, m):
        # The edge is reached from below like m^(−2/3): 3 % for the first value alone, little for the sums.
        assert squares[:rank].sum() / m == pytest.approx(
            top_energy(rank, d_in, d_out), rel=0.05 if rank == 1 else 0.015
        )


def test_a_single_row_has_a_single_singular_value():
    assert top_energy(1, 1, 1) == pytest.approx(1)
    assert top_energy(1, 1, 10_000) == pytest.approx(1)
    assert gaussian_singular_values(1, 1, 50).shape == (1,)


def test_long_matrices_are_flat():
    assert top_energy(5, 10, 10**6) == pytest.approx(0.5, abs=0.005)


@pytest.mark.parametrize("shape", [(300, 300), (200, 500)])
def test_singular_values_of_a_gaussian_matrix(shape: tuple[int, int]):
    d_out, d_in = shape
    predicted = gaussian_singular_values(min(shape), d_in, d_out)
    assert (np.diff(predicted) < 0).all()
    np.testing.assert_allclose(predicted, normalised(gaussian(0, *shape)), atol=0.04)


@pytest.mark.parametrize(("rank", "d_in", "d_out"), [(100, 100, 100), (25, 100, 100), (10, 40, 160)])
def test_a_cut_spectrum_keeps_the_norm(rank: int, d_in: int, d_out: int):
    s = gaussian_singular_values(rank, d_in, d_out)
    assert s.shape == (rank,)
    assert (s**2).sum() / min(d_in, d_out) == pytest.approx(1, abs=0.005)  # midpoints instead of the integral


def test_a_cut_spectrum_is_the_rescaled_top():
    s = gaussian_singular_values(25, 100, 100)
    np.testing.assert_allclose(s * math.sqrt(top_energy(25, 100, 100)), gaussian_singular_values(100, 100, 100)[:25])


# The Hebbian matrix


def test_few_constraints_leave_the_quarter_circle():
    np.testing.assert_allclose(hebbian_singular_values(50, 10**9), gaussian_singular_values(50, 50, 50), atol=1e-4)


@pytest.mark.parametrize("c", [0.01, 0.5, 0.9, 2.0])
def test_moments_of_the_hebbian_matrix(c: float):
    """⟨s²⟩ = 1, ⟨s⁴⟩ = 2 + c, ⟨s⁶⟩ = 5 + 6c + c² (from 1/x = y / ((1 + y)² (1 + c y))) for c = d/p."""
    s = hebbian_singular_values(10_000, round(10_000 / c))
    for power, moment in ((2, 1), (4, 2 + c), (6, 5 + 6 * c + c**2)):
        assert (s**power).mean() == pytest.approx(moment, rel=0.001)


@pytest.mark.parametrize(("d", "p"), [(200, 400), (200, 200), (200, 100)])
def test_hebbian_singular_values_by_simulation(d: int, p: int):
    draws = [normalised(gaussian(seed, p, d).T @ gaussian(seed + 100, p, d)) for seed in range(3)]
    measured, predicted = np.mean(draws, axis=0), hebbian_singular_values(d, p)
    # Single values move by 1/d; the first ones lie below the edge by d^(−2/3) of it.
    np.testing.assert_allclose(predicted, measured, atol=0.1)
    assert np.abs(predicted - measured).mean() < 0.01
    assert (measured**4).mean() == pytest.approx(fourth_moment_hebbian(d, p), rel=0.03)
    assert (predicted**4).mean() == pytest.approx(fourth_moment_hebbian(d, p), rel=0.005)
    assert (predicted == 0).sum() == max(0, d - p)


def test_fourth_moment_at_the_sizes_of_the_experiments():
    assert fourth_moment_hebbian(32, 172) == pytest.approx(2.186, abs=0.001)
    assert fourth_moment_hebbian(64, 555) == pytest.approx(2.115, abs=0.001)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: top_energy(5, 4, 9), "rank is 5, expected 1 to 4 for a 9 × 4 matrix"),
        (lambda: gaussian_singular_values(0, 4, 9), "rank is 0, expected 1 to 4"),
        (lambda: hebbian_singular_values(4, 0), "p is 0, expected"),
    ],
)
def test_impossible_arguments_are_named(call, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        call()
