"""The race of positions with Gaussian scores: limits that are known by symmetry, one integral, and drawn scores."""

import math

import numpy as np
import pytest
import scipy

from toytf import theory
from toytf.theory.crosstalk import attention_mass, attention_race, copy_accuracy, previous_mass, trigger_noise

SIGNALS = np.array([0.0, 1.0])


def counts(*tokens: tuple[float, float]) -> np.ndarray:
    """One case; of each token, how many positions have signal 0 and how many 1."""
    return np.array([tokens], dtype=float)


def chance_of_first(tokens: list[tuple[float, float]], token: float = 0.3, place: float = 0.4) -> float:
    return float(attention_race(counts(*tokens), SIGNALS, np.array([0]), token, place)[0])


@pytest.mark.parametrize("n", [1, 2, 10])
def test_without_a_signal_the_race_is_a_guess_among_tokens(n: int) -> None:
    assert chance_of_first([(1, 0)] * (n + 1)) == pytest.approx(1 / (n + 1), abs=2e-3)


@pytest.mark.parametrize("n", [1, 3])
def test_the_first_two_positions_tie(n: int) -> None:
    """n right positions and one of another token with the same signal: without token noise each is the best as often.

    A rival without a signal is 2.5 σ √2 below each and rarely matters.
    """
    assert chance_of_first([(0, n), (0, 1)], token=0.0) == pytest.approx(n / (n + 1), abs=2e-3)


@pytest.mark.parametrize("n", [1, 5, 30])
def test_one_right_position_against_n_rivals(n: int) -> None:
    """∫Dz Φ(1/σ + z)^n, by another quadrature; tokens that occur once have the sum of both noises."""
    sigma = math.hypot(0.3, 0.4)
    exact, _ = scipy.integrate.quad(
        lambda z: scipy.stats.norm.pdf(z) * scipy.special.ndtr(1 / sigma + z) ** n, -10, 10
    )  # fmt: skip
    assert chance_of_first([(0, 1)] + [(1, 0)] * n) == pytest.approx(exact, abs=2e-3)


def test_places_of_one_token_share_its_noise() -> None:
    """Against 20 000 draws of the scores, whose mean has a standard error of .0035."""
    tokens = [(2, 3), (8, 0), (1, 1), (0, 0), (4, 0)]
    rng, n = np.random.default_rng(0), 20_000
    best = []
    for low, high in tokens:
        at = np.concatenate([np.zeros(low), np.ones(high)])
        scores = at + 0.4 * rng.standard_normal((n, len(at))) + 0.3 * rng.standard_normal((n, 1))
        best.append(scores.max(1, initial=-np.inf))
    drawn = float((np.argmax(best, 0) == 0).mean())
    assert chance_of_first([(float(a), float(b)) for a, b in tokens]) == pytest.approx(drawn, abs=0.012)


def test_a_token_that_is_nowhere_never_wins() -> None:
    assert chance_of_first([(0, 0), (1, 0)]) == 0


def test_a_signal_between_two_near_ones_counts_for_both_in_part() -> None:
    """9/16 as half 1/2 and half 5/8; to leave it at one of the two would cost .02."""
    rival, signals = [1.0, 0.0, 0.0, 0.0], np.array([0.0, 0.5, 0.5625, 0.625])
    rows = [[0.0, 0.5, 0.0, 0.5], [0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0]]
    split, own, low = attention_race(np.array([[row, rival] for row in rows]), signals, np.array([0, 0, 0]), 0.3, 0.4)
    assert split == pytest.approx(own, abs=0.003)
    assert own - low > 0.015


@pytest.mark.parametrize("n", [1, 20])
@pytest.mark.parametrize("beta", [1.0, 5.0])
def test_attention_without_noise_is_a_softmax(beta: float, n: int) -> None:
    assert attention_mass(0.0, np.array([n]), beta)[0] == pytest.approx(1 / (1 + n * math.exp(-beta)), abs=2e-3)


def test_attention_with_noise_is_the_mean_of_softmaxes() -> None:
    """Against 20 000 draws; a mass spreads by .3 at most, its mean by .002."""
    scores = 0.3 * np.random.default_rng(0).standard_normal((20_000, 21))
    scores[:, 0] += 1
    drawn = float(scipy.special.softmax(8 * scores, axis=1)[:, 0].mean())
    assert attention_mass(0.3, np.array([20]), 8.0)[0] == pytest.approx(drawn, abs=0.006)


@pytest.mark.parametrize(("anisotropy", "expected"), [(1.0, 20), (3.0, 24)])
def test_signal_to_noise_of_short_vectors_is_the_root_of_d_over_24(anisotropy: float, expected: int) -> None:
    """r = 1/9, π = 1, ρ = 1/9: (1 + 1 + s 2/9) / (1/9) = 18 + 2 s."""
    token, place = trigger_noise(256, 1, 1 / 9, anisotropy=anisotropy)
    assert 1 / (token**2 + place**2) == pytest.approx(256 / expected)
    assert token**2 == pytest.approx(9 / 256)


def test_more_stored_pairs_add_noise() -> None:
    """κ = (20/9) / d each: 65 tokens at d = 256 multiply the variance by 1 + 64 · 20/9/256 = 1.56."""
    one, all_tokens = (trigger_noise(256, n, 1 / 9)[0] for n in (1, 65))
    assert (all_tokens / one) ** 2 == pytest.approx(1 + 64 * (20 / 9) / 256)


def test_copying_is_clean_in_many_dimensions_only() -> None:
    """65 tokens among four vectors as long as theirs: σ² = 5/64 + 65·4/64² = .14 at d = 64, .011 at d = 512."""
    rivals = np.random.default_rng(0).standard_normal((4000, 65))
    right = 1 + math.sqrt(3 / 64 + 65 * 4 / 64**2) * rivals[:, 0]
    drawn = float((right > math.sqrt(5 / 64 + 65 * 4 / 64**2) * rivals[:, 1:].max(1)).mean())
    assert copy_accuracy(64, 65, 4.0) == pytest.approx(drawn, abs=0.025)  # standard error .008
    assert copy_accuracy(512, 65, 4.0) > 0.999


def test_early_positions_are_found_before_late_ones() -> None:
    masses = previous_mass(128, 63, np.arange(1, 64), 14.0)
    assert (np.diff(masses) < 0).all()
    assert previous_mass(512, 63, np.array([63]), 30.0)[0] > 0.999


def test_attention_to_the_previous_position_is_that_of_random_vectors() -> None:
    """Gaussian tokens as long as positions: σ² = 4/64 + 20·4/64². 1,500 draws have a standard error of .006.

    Half a token more in the stream would make the mass .07 smaller.
    """
    rng, d, masses = np.random.default_rng(0), 64, []
    for p, e in rng.standard_normal((1500, 2, 21, d)) / math.sqrt(d):
        W, x = p[1:].T @ p[:-1], p + e
        masses.append(scipy.special.softmax(10 * (x[:-1] @ W.T @ x[-1]))[-1])
    assert previous_mass(d, 20, np.array([19]), 10.0)[0] == pytest.approx(np.mean(masses), abs=0.03)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: attention_race(counts((1, 0)), SIGNALS, np.array([0]), 0.1, 0.0), "place_noise"),
        (lambda: attention_mass(0.1, np.array([3]), 0.0), "beta"),
        (lambda: trigger_noise(64, 5, 0.0), "remapped"),
        (lambda: trigger_noise(64, 5, 0.1, others=2.0), "others"),
        (lambda: previous_mass(0, 5, np.array([3]), 1.0), "d is 0"),
    ],
)
def test_arguments_out_of_range_are_named(call: object, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        call()  # type: ignore[operator]


def test_the_theory_exports_it() -> None:
    assert theory.attention_race is attention_race
