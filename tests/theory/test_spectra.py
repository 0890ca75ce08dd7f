import math

import numpy as np
import pytest
from scipy import integrate

from toytf.theory import (
    energy,
    energy_cut,
    fourth_moment_hebbian,
    gaussian_singular_values,
    hebbian_density,
    hebbian_singular_values,
    quarter_circle,
    quarter_circle_quantiles,
    top_energy,
)


def normalised(W: np.ndarray) -> np.ndarray:
    """The singular values of √m W / ‖W‖_F."""
    return np.linalg.svd(W, compute_uv=False) * math.sqrt(min(W.shape)) / np.linalg.norm(W)


def gaussian(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


# The quarter circle


@pytest.mark.parametrize(("power", "moment"), [(0, 1), (1, 8 / (3 * math.pi)), (2, 1), (4, 2), (6, 5)])
def test_moments_of_the_quarter_circle(power: int, moment: float):
    density = integrate.quad(lambda s: s**power * float(quarter_circle(s)), 0, 2)[0]
    assert density == pytest.approx(moment, abs=1e-6)
    assert (quarter_circle_quantiles(2000) ** power).mean() == pytest.approx(moment, abs=0.001)


def test_the_quarter_circle_has_no_mass_outside_its_support():
    assert quarter_circle(np.array([-1.0, 2.0, 3.0])).tolist() == [0, 0, 0]
    assert float(quarter_circle(0.0)) == pytest.approx(2 / math.pi)


def test_quantiles_split_the_mass_evenly():
    s = quarter_circle_quantiles(5)
    masses = [integrate.quad(lambda x: float(quarter_circle(x)), value, 2)[0] for value in s]
    np.testing.assert_allclose(masses, [0.1, 0.3, 0.5, 0.7, 0.9], atol=1e-8)


# The energy of the largest singular values

OMEGA2 = {  # ρ: ω², s_ρ
    1 / 16: (0.210, 1.717),
    1 / 8: (0.376, 1.547),
    1 / 4: (0.623, 1.269),
    3 / 8: (0.788, 1.029),
    1 / 2: (0.894, 0.808),
    3 / 4: (0.987, 0.395),
    1: (1, 0),
}


@pytest.mark.parametrize("rho", OMEGA2)
def test_energy_of_the_top_fraction(rho: float):
    omega2, cut = OMEGA2[rho]
    assert energy(rho) == pytest.approx(omega2, abs=0.001)
    assert energy_cut(rho) == pytest.approx(cut, abs=0.001)
    assert energy(rho) >= 2 * rho - rho**2  # more than the share of the parameters
    assert top_energy(round(16 * rho), 16, 16) == pytest.approx(energy(rho))


def test_energy_at_the_ends():
    assert energy(0) == pytest.approx(0, abs=1e-12)
    assert energy_cut(0) == pytest.approx(2)
    assert energy(1) == pytest.approx(1, abs=1e-12)
    assert energy(1e-6) / 1e-6 == pytest.approx(4, rel=0.001)


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
    np.testing.assert_array_equal(quarter_circle_quantiles(20), gaussian_singular_values(20, 20, 20))


@pytest.mark.parametrize(("rank", "d_in", "d_out"), [(100, 100, 100), (25, 100, 100), (10, 40, 160)])
def test_a_cut_spectrum_keeps_the_norm(rank: int, d_in: int, d_out: int):
    s = gaussian_singular_values(rank, d_in, d_out)
    assert s.shape == (rank,)
    assert (s**2).sum() / min(d_in, d_out) == pytest.approx(1, abs=0.005)  # midpoints instead of the integral


def test_a_cut_spectrum_is_the_rescaled_top():
    s = gaussian_singular_values(25, 100, 100)
    assert s[-1] > energy_cut(0.25) / math.sqrt(energy(0.25))
    np.testing.assert_allclose(s * math.sqrt(energy(0.25)), quarter_circle_quantiles(100)[:25])


# The Hebbian matrix


@pytest.mark.parametrize("c", [0.01, 0.5, 0.9, 2.0])
def test_moments_of_the_hebbian_matrix(c: float):
    """⟨s⁰⟩ = 1 − (zeros), ⟨s²⟩ = 1, ⟨s⁴⟩ = 2 + c, ⟨s⁶⟩ = 5 + 6c + c² (from 1/x = y / ((1 + y)² (1 + c y)))."""
    s = np.linspace(0, 6, 60_001)
    density = hebbian_density(s, c)
    for power, moment in ((0, min(1, 1 / c)), (2, 1), (4, 2 + c), (6, 5 + 6 * c + c**2)):
        assert np.trapezoid(s**power * density, s) == pytest.approx(moment, rel=0.001)


def test_few_constraints_leave_the_quarter_circle():
    s = np.linspace(0, 3, 100)
    np.testing.assert_allclose(hebbian_density(s, 0.0), quarter_circle(s), atol=1e-6)
    np.testing.assert_allclose(hebbian_singular_values(50, 10**9), quarter_circle_quantiles(50), atol=1e-4)


def test_the_density_at_zero_is_its_limit():
    np.testing.assert_allclose(hebbian_density(np.array([0.0, 1e-4]), 0.5), 2 / (math.pi * math.sqrt(0.5)), rtol=1e-5)
    assert hebbian_density(np.array([0.0]), 1.0)[0] == math.inf
    assert hebbian_density(np.array([0.0, 0.01, -1.0]), 2.0).tolist() == [0, 0, 0]


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


def test_quantiles_and_density_are_of_the_same_distribution():
    s = np.linspace(0, 4, 40_001)
    density = hebbian_density(s, 0.5)
    cumulative = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(s))])
    np.testing.assert_allclose(
        np.interp(hebbian_singular_values(10, 20), s, 1 - cumulative), np.arange(0.05, 1, 0.1), atol=1e-4
    )


def test_fourth_moment_at_the_sizes_of_the_experiments():
    assert fourth_moment_hebbian(32, 172) == pytest.approx(2.186, abs=0.001)
    assert fourth_moment_hebbian(64, 555) == pytest.approx(2.115, abs=0.001)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: energy(1.2), "rho is 1.2, expected a number from 0 to 1"),
        (lambda: top_energy(5, 4, 9), "rank is 5, expected 1 to 4 for a 9 × 4 matrix"),
        (lambda: gaussian_singular_values(0, 4, 9), "rank is 0, expected 1 to 4"),
        (lambda: quarter_circle_quantiles(0), "d_in is 0, expected"),
        (lambda: hebbian_density(np.ones(1), -1), "c is -1, expected"),
        (lambda: hebbian_singular_values(4, 0), "p is 0, expected"),
    ],
)
def test_impossible_arguments_are_named(call, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        call()
