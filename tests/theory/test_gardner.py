import math

import numpy as np
import pytest
from scipy.special import log_ndtr, logsumexp

from toytf.theory import capacity, gardner_entropy, statistical_dimension, typical_overlap
from toytf.theory.gardner import _log_probability


def log_storage(q: float, p: int, **options: float) -> float:
    """E log P_q, from the entropy of a memory with one weight per association."""
    return gardner_entropy(q, p, p, **options) - math.log1p(-q) / 2 - q / (2 * (1 - q))


@pytest.mark.parametrize("p", [2, 16, 200])
def test_a_random_matrix_recalls_one_pair_in_p(p: int):
    assert log_storage(0.0, p, samples=32) == pytest.approx(-math.log(p), abs=1e-3)


def test_the_entropy_counts_constraints_per_weight():
    assert gardner_entropy(0.0, 64, 1024) == pytest.approx(-64 / 1024 * math.log(64), abs=1e-4)
    assert gardner_entropy(0.3, 1, 100) == pytest.approx(math.log(0.7) / 2 + 0.3 / 1.4)


@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_the_volume_near_overlap_one_is_the_statistical_dimension(kappa: float):
    # (1 − q) E log P_q → −δ/2; corrections (1 − q) log(1 − q), and 1.5 % from 2000 draws.
    q, p = 0.999, 64
    assert (1 - q) * log_storage(q, p, kappa=kappa) == pytest.approx(
        -statistical_dimension(p, kappa).value / 2, rel=0.1
    )


@pytest.mark.parametrize("rivals", [1, 30])
@pytest.mark.parametrize("q", [0.0, 0.5, 0.99])
def test_the_inner_integral_against_a_dense_sum(rivals: int, q: float):
    z = np.random.default_rng(0).standard_normal((5, rivals + 1))
    lead = math.sqrt(q / (1 - q)) * (z[:, :1] - z[:, 1:])
    w = np.linspace(-20, 60, 20_001)
    logs = log_ndtr(lead[:, :, None] + w).sum(axis=1) - w**2 / 2 - math.log(2 * math.pi) / 2
    np.testing.assert_allclose(_log_probability(lead), logsumexp(logs, axis=1) + math.log(w[1] - w[0]), atol=1e-4)


def test_solutions_grow_alike_as_the_memory_fills():
    size = 12 * 12  # capacity 39.8
    full = capacity(12, 12)
    overlaps = [typical_overlap(int(share * full), size, samples=480) for share in (0.1, 0.4, 0.7, 0.9)]
    assert overlaps == sorted(overlaps)
    assert overlaps[0] < 0.1
    assert 0.75 < overlaps[-1] < 1


def test_beyond_capacity_there_is_no_solution():
    assert typical_overlap(round(1.3 * capacity(12, 12)), 144, samples=320) == 1


def test_one_pair_does_not_prefer_any_matrix():
    assert typical_overlap(1, 100, samples=32) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: gardner_entropy(1.0, 4, 4), "q is 1.0, expected at least 0 and less than 1"),
        (lambda: gardner_entropy(0.5, 0, 4), "p is 0, expected"),
        (lambda: gardner_entropy(0.5, 4, 4, -1.0), "kappa is -1.0, expected"),
        (lambda: typical_overlap(4, 0), "size is 0, expected"),
    ],
)
def test_impossible_arguments_are_named(call, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        call()
