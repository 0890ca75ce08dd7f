"""The best direction and the lowest cross-entropy of tokens in a plane: they are not the same."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toytf.experiments.dynamics.plane import Plane, best_direction, errors, losses, minimise, planar
from toytf.theory import zipf

ANGLES = st.lists(st.floats(0, 359), min_size=2, max_size=8)

FIGURES: dict[str, tuple[list[float], float, float]] = {
    "three tokens": ([-36.59, 0.72, 46.0], 0.4545, 0.1818),
    "thirty tokens": (
        [-146.1, -55.32, 23.18, -107.42, 24.41, -115.55, 52.56, 106.21, 144.06, 17.18, -45.19, -152.81, 45.62, -110.89,
         -104.56, -137.98, 25.78, -71.71, -24.36, 55.26, 116.61, -158.21, 87.12, -126.2, 11.91, -49.5, -36.83, 107.72,
         -54.23, -20.81],
        0.5432, 0.3137,
    ),
}  # fmt: skip
"""Angles, the error of the lowest cross-entropy, and that of the best direction: a separate simulation."""


def signed(angles: list[float]) -> np.ndarray:
    """Tokens on the circle, those of the second value turned around."""
    at = np.radians(angles)
    sign = 1 - 2 * (np.arange(len(at)) % 2)
    return np.stack([np.cos(at), np.sin(at)], 1) * sign[:, None]


def of(angles: list[float], alpha: float = 1.0) -> Plane:
    return planar(signed(angles), zipf(len(angles), alpha))


@pytest.mark.parametrize(("angles", "minimiser", "best"), FIGURES.values(), ids=FIGURES)
def test_the_systems_of_the_figures(angles: list[float], minimiser: float, best: float) -> None:
    found = of(angles)
    assert (found.minimiser_error, found.best_error) == pytest.approx((minimiser, best), abs=6e-5)
    assert found.excess == pytest.approx(minimiser - best, abs=1e-4)


def test_the_lowest_cross_entropy_of_three_tokens_is_where_a_separate_simulation_found_it() -> None:
    assert of([-36.59, 0.72, 46.0]).minimiser == pytest.approx((0.632, -1.149), abs=1e-3)


def test_tokens_that_can_all_be_right_have_no_lowest_cross_entropy() -> None:
    assert of([10.44, 65.9, -35.96]) == Plane(0.0, pytest.approx((0.618, -0.786), abs=1e-3), None, 0.0, 0.0)
    assert of([10.44, 65.9, -35.96]).excess == 0


@settings(max_examples=50)
@given(ANGLES)
def test_no_direction_is_better_than_the_best(angles: list[float]) -> None:
    z, p = signed(angles), zipf(len(angles), 1)
    all_around = np.linspace(0, 2 * math.pi, 3601)  # a tenth of a degree apart: at worst as good
    some = errors(np.stack([np.cos(all_around), np.sin(all_around)], 1), z, p)
    assert of(angles).best_error <= some.min() + 1e-12
    assert float(errors(best_direction(z, p)[None], z, p)[0]) == of(angles).best_error


@settings(max_examples=50)
@given(ANGLES, st.integers(0, 2**31))
def test_no_point_has_a_lower_cross_entropy_than_the_lowest(angles: list[float], seed: int) -> None:
    z, p = signed(angles), zipf(len(angles), 1)
    found = of(angles)
    around = np.random.default_rng(seed).normal(scale=5, size=(500, 2))
    assert found.lowest_loss <= losses(around, z, p).min() + 1e-9


def test_at_the_lowest_cross_entropy_the_slope_is_zero() -> None:
    for angles, _, _ in FIGURES.values():
        z, p = signed(angles), zipf(len(angles), 1)
        gamma = minimise(z, p)
        slope = (p / (1 + np.exp(z @ gamma))) @ z
        assert np.abs(slope).max() < 1e-7


@given(ANGLES, st.floats(0, 360))
def test_a_turn_of_all_tokens_changes_no_error(angles: list[float], turn: float) -> None:
    turned = [angle + turn for angle in angles]
    assert of(turned).best_error == pytest.approx(of(angles).best_error, abs=1e-12)
    assert of(turned).lowest_loss == pytest.approx(of(angles).lowest_loss, abs=1e-9)


def test_two_answers_to_one_question_are_given_as_often_as_they_come() -> None:
    """One vector, answers of frequency 2/3 and 1/3: the best loss is their entropy, and γ · e their log odds."""
    found = of([30.0, 30.0])
    assert found.best_error == found.minimiser_error == pytest.approx(1 / 3)
    assert found.lowest_loss == pytest.approx(-(2 / 3) * math.log(2 / 3) - math.log(1 / 3) / 3)
    assert found.minimiser is not None
    assert np.array(found.minimiser) @ signed([30.0])[0] == pytest.approx(math.log(2))


def test_the_directions_of_many_tokens_are_compared_in_parts() -> None:
    angles = np.random.default_rng(0).uniform(0, 360, 3000).tolist()  # 6,000 directions × 3,000 tokens
    z, p = signed(angles), zipf(3000, 1)
    few = np.random.default_rng(1).normal(size=(200, 2))
    assert of(angles).best_error <= errors(few, z, p).min()
