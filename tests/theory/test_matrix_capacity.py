import math
import time

import pytest

from toytf.theory import asymptotic_capacity, capacity, load, maximal_margin, statistical_dimension


@pytest.mark.parametrize(
    ("d", "p", "ratio"),
    [
        (8, 22.2, 1.076),
        (16, 61.6, 0.992),
        (24, 115.3, 0.950),
        (32, 181.8, 0.924),
        (48, 350.4, 0.891),
        (64, 563.3, 0.871),
        (96, 1112, 0.847),
        (128, 1815, 0.831),
        (256, 6009, 0.798),
    ],
)
def test_capacity_of_a_square_matrix(d: int, p: float, ratio: float):
    # The reference comes from a fit of the sampled dimension, good to 1 %.
    assert capacity(d, d) == pytest.approx(p, rel=0.01)
    assert load(capacity(d, d), d, d) == pytest.approx(ratio, rel=0.012)


@pytest.mark.parametrize(
    ("d", "rank", "p"), [(32, 4, 84.2), (32, 8, 124.9), (24, 2, 42.3), (24, 3, 54.3), (24, 6, 79.8), (24, 12, 105.6)]
)
def test_capacity_of_a_matrix_of_low_rank(d: int, rank: int, p: float):
    assert capacity(d, d, rank=rank) == pytest.approx(p, rel=0.015)


def test_half_the_rank_costs_far_less_than_its_parameters():
    # ω²(1/2) = .894 of p δ(p), against a count of parameters of 3/4; p log p follows p δ up to the slow δ / log p.
    half, full = (load(capacity(64, 64, rank=rank), 64, 64) for rank in (32, 64))
    assert half / full == pytest.approx(0.894, abs=0.02)


def test_full_rank_is_no_constraint():
    assert capacity(12, 20, rank=12) == pytest.approx(capacity(12, 20), rel=1e-9)


def test_one_weight_stores_two_associations():
    assert capacity(1, 1) == pytest.approx(2, rel=0.005)


def test_only_the_number_of_weights_counts():
    assert capacity(16, 64) == capacity(64, 16) == pytest.approx(capacity(32, 32), rel=1e-9)


def test_a_fixed_set_of_values_needs_no_equation():
    assert capacity(64, 64, n_values=2) == pytest.approx(
        2 * 64, rel=0.02
    )  # Cover: one direction tells two values apart
    assert capacity(64, 64, n_values=16) == pytest.approx(64 * 15 / 2.52, rel=0.01)  # 16 values differ in 15 dimensions
    assert capacity(64, 64, n_values=256) == pytest.approx(64**2 / 6.10, rel=0.01)
    assert capacity(64, 64, n_values=1) == math.inf


def test_the_solution_solves_the_equation():
    p = capacity(40, 40)
    n = round(p)
    assert n * statistical_dimension(n, seed=5).value == pytest.approx(1600, rel=0.005)


def test_a_margin_lowers_the_capacity_by_half_of_itself():
    # dp/p ≈ −2t / (δ + dδ/d log p) dκ ≈ −.5 dκ at d = 64.
    assert capacity(64, 64, kappa=0.1) / capacity(64, 64) - 1 == pytest.approx(-0.05, abs=0.007)


def test_capacity_grows_with_the_matrix():
    values = [capacity(d, d) for d in (1, 2, 3, 4, 5, 6, 8, 12, 16)]
    assert values == sorted(values)


def test_capacity_is_quick_even_when_nothing_is_cached():
    start = time.process_time()
    capacity(1000, 1000)
    assert time.process_time() - start < 2  # about .4 s


# The limit


@pytest.mark.parametrize("constant", [0.5, 0.125])
def test_asymptotic_capacity_has_the_load_it_is_asked_for(constant: float):
    assert load(asymptotic_capacity(30, 70, constant), 30, 70) == pytest.approx(constant)


def test_the_limit_is_approached_from_above():
    loads = [load(capacity(d, d), d, d) for d in (16, 32, 64, 128, 256)]
    assert loads == sorted(loads, reverse=True)
    assert loads[-1] > 0.79
    assert asymptotic_capacity(64, 64) < capacity(64, 64)


def test_load_by_hand():
    assert load(100, 10, 20) == pytest.approx(100 * math.log(100) / 200)
    assert load(1, 4, 4) == 0


# The margin


@pytest.mark.parametrize(
    ("d", "p", "kappa"), [(48, 280, 0.44), (48, 200, 1.19), (48, 120, 2.50), (32, 140, 0.50), (32, 70, 2.10)]
)
def test_maximal_margin(d: int, p: int, kappa: float):
    assert maximal_margin(p, d, d) == pytest.approx(kappa, rel=0.03)


def test_the_margin_is_the_inverse_of_the_capacity():
    p = 30
    assert capacity(12, 12, kappa=maximal_margin(p, 12, 12)) == pytest.approx(p, rel=0.005)


def test_the_margin_of_a_rank_is_the_inverse_of_its_capacity():
    """p δ_κ(p) = d² ω²(1/4), ω²(1/4) = .623: 125 pairs at d = 32, where full matrices still have a margin."""
    kappa = maximal_margin(100, 32, 32, rank=8)
    assert 0 < kappa < maximal_margin(100, 32, 32)
    assert capacity(32, 32, rank=8, kappa=kappa) == pytest.approx(100, rel=0.005)
    assert maximal_margin(127, 32, 32, rank=8) == 0 < maximal_margin(127, 32, 32)
    assert maximal_margin(100, 32, 32, rank=32) == pytest.approx(maximal_margin(100, 32, 32))
    with pytest.raises(ValueError, match="rank is 5, expected 1 to 4"):
        maximal_margin(9, 8, 4, rank=5)


def test_the_margin_vanishes_at_capacity_and_stays_zero():
    assert 0 < maximal_margin(38, 12, 12) < 0.2  # capacity 39.8
    assert maximal_margin(42, 12, 12) == maximal_margin(200, 12, 12) == 0


def test_the_margin_knows_how_many_values_compete():
    assert maximal_margin(30, 12, 12, n_values=10) > maximal_margin(30, 12, 12)
    assert maximal_margin(1, 12, 12) == maximal_margin(30, 12, 12, n_values=1) == math.inf


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: capacity(0, 4), "d_in is 0, expected"),
        (lambda: capacity(8, 4, rank=5), "rank is 5, expected 1 to 4 for a 4 × 8 matrix"),
        (lambda: capacity(8, 4, rank=0), "rank is 0, expected 1 to 4"),
        (lambda: capacity(8, 4, kappa=-0.1), "kappa is -0.1, expected"),
        (lambda: capacity(8, 4, n_values=0), "n_values is 0, expected"),
        (lambda: load(0, 4, 4), "p is 0, expected"),
        (lambda: maximal_margin(0, 4, 4), "p is 0, expected"),
        (lambda: maximal_margin(5, 4, 4, n_values=0), "n_values is 0, expected"),
        (lambda: asymptotic_capacity(4, 4, -1), "constant is -1, expected"),
    ],
)
def test_impossible_arguments_are_named(call, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        call()
