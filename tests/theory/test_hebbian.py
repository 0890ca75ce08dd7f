import math

import numpy as np
import pytest
from scipy import integrate, stats

from toytf.theory import hebbian_accuracy, hebbian_capacity, load

# d: p log p / d² at faultless recall without crosstalk, and on the sphere.
TABLE = {
    32: (0.177, 0.077),
    64: (0.166, 0.093),
    128: (0.158, 0.110),
    256: (0.153, 0.123),
    1024: (0.146, 0.136),
    4096: (0.142, 0.139),
}


@pytest.mark.parametrize("d", TABLE)
def test_faultless_recall(d: int):
    gaussian, sphere = TABLE[d]
    assert load(hebbian_capacity(d, crosstalk=0), d, d) == pytest.approx(gaussian, abs=0.0006)
    assert load(hebbian_capacity(d), d, d) == pytest.approx(sphere, abs=0.0006)


def test_the_two_criteria_go_to_an_eighth_and_a_half():
    # At d = 10⁷ the corrections of relative order log log p / log p are still 10 % and 20 %.
    d = 10**7
    assert load(hebbian_capacity(d), d, d) == pytest.approx(1 / 8, rel=0.12)
    assert load(hebbian_capacity(d, accuracy=0.5), d, d) == pytest.approx(1 / 2, rel=0.25)


@pytest.mark.parametrize(("crosstalk", "accuracy"), [(2, 0.26), (0, 0.37)])
def test_accuracy_at_the_capacity_of_the_best_weights(crosstalk: float, accuracy: float):
    assert hebbian_accuracy(555, 64, crosstalk=crosstalk) == pytest.approx(accuracy, abs=0.006)


def test_two_rivals_by_simulation():
    # On three pairs at d = 3 the integral is a probability that can be drawn.
    p, d, c = 3, 3.0, 1.0
    rng = np.random.default_rng(0)
    right = 1 + math.sqrt(p) / d * rng.standard_normal(200_000)
    rivals = math.sqrt(p / d**2 + c / d) * rng.standard_normal((200_000, 2))
    assert hebbian_accuracy(p, d, crosstalk=c) == pytest.approx((right > rivals.max(axis=1)).mean(), abs=0.005)


@pytest.mark.parametrize(("p", "d"), [(2, 4), (100, 20), (10_000, 200), (1e7, 5000)])
def test_the_integral_is_exact(p: float, d: float):
    a, b = math.sqrt(p) / d, math.sqrt(p / d**2 + 2 / d)

    def integrand(z: float) -> float:
        return stats.norm.pdf(z) * -math.expm1((p - 1) * stats.norm.logcdf((1 + a * z) / b))

    failure = integrate.quad(integrand, -10, 10, points=[-5, -2, 0, 2], limit=200)[0]
    assert 1 - hebbian_accuracy(p, d) == pytest.approx(failure, rel=1e-7, abs=1e-14)


def test_one_pair_is_always_recalled():
    assert hebbian_accuracy(1, 1) == hebbian_accuracy(1, 100) == 1


def test_capacity_is_where_the_criterion_is_met():
    assert hebbian_accuracy(hebbian_capacity(50, accuracy=0.99), 50) == pytest.approx(0.99, abs=1e-9)
    p = hebbian_capacity(50)
    assert hebbian_accuracy(p, 50) ** p == pytest.approx(1 / 2, abs=1e-6)


def test_the_smallest_memory_has_a_capacity():
    assert 1 < hebbian_capacity(1) < 3


def test_accuracy_falls_with_every_pair_and_with_crosstalk():
    curve = [hebbian_accuracy(p, 40) for p in (1, 2, 10, 100, 1000, 10**6)]
    assert curve == sorted(curve, reverse=True)
    by_crosstalk = [hebbian_accuracy(100, 40, crosstalk=c) for c in (0, 1, 2)]
    assert by_crosstalk == sorted(by_crosstalk, reverse=True)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: hebbian_accuracy(0, 5), "p is 0, expected"),
        (lambda: hebbian_accuracy(5, 0), "d is 0, expected"),
        (lambda: hebbian_accuracy(5, 5, crosstalk=-1), "crosstalk is -1, expected"),
        (lambda: hebbian_capacity(0.5), "d is 0.5, expected"),
        (lambda: hebbian_capacity(5, accuracy=1.0), "accuracy is 1.0, expected a number between 0 and 1"),
    ],
)
def test_impossible_arguments_are_named(call, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        call()
