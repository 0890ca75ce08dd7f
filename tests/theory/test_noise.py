"""One gradient step on noisy answers: entries, spread, and the recall of both parts by number of samples."""

import math
from collections.abc import Callable

import pytest

from toytf.theory import attention_recall, feed_forward_recall, noise_step, relative_spread

# α, N, cv at m = 1024 and T = 32: √(N / (αTm)).
SPREADS = [(0.5, 32, 0.044), (0.5, 128, 0.088), (0.5, 512, 0.177), (0.2, 128, 0.140), (0.2, 512, 0.280)]


def test_the_entries_of_a_step() -> None:
    step = noise_step(9, 12, 0.4)
    assert step.feed_forward_noise == pytest.approx(0.4 - 0.1)
    assert step.feed_forward_other == pytest.approx(0.6 / 9 - 0.1)
    assert step.attention_noise == pytest.approx(0.3 / 9)
    # A context of 12 has 10/9 triggers with a successor in it, each of them the output with probability 0.6.
    assert step.attention_copy == pytest.approx(0.6**2 * (10 / 9) / (9 * 12))


def test_a_column_of_the_feed_forward_step_sums_to_zero() -> None:
    """The gradient of a softmax moves no mass in all."""
    for n_tokens, alpha in ((2, 0.5), (32, 0.2), (512, 0.9)):
        step = noise_step(n_tokens, 32, alpha)
        assert step.feed_forward_noise + n_tokens * step.feed_forward_other == pytest.approx(0, abs=1e-12)


def test_one_step_stores_noise_and_not_copies() -> None:
    for alpha, n_tokens, _ in SPREADS:
        step = noise_step(n_tokens, 32, alpha)
        assert step.attention_copy < 0.1 * step.attention_noise


@pytest.mark.parametrize(("alpha", "n_tokens", "expected"), SPREADS)
def test_the_spread_of_the_noise_row(alpha: float, n_tokens: int, expected: float) -> None:
    assert relative_spread(n_tokens, 32, alpha, 1024) == pytest.approx(expected, abs=5e-4)  # given to three digits


def test_the_recall_of_feed_forward_by_hand() -> None:
    """One sample: is it noise? Two: both must be, since one of each is a tie. Four, N = 2: also noise twice and two
    different others (6 α² (1−α)² / 2)."""
    for alpha in (0.2, 0.5):
        assert feed_forward_recall(7, alpha, 1) == pytest.approx(alpha)
        assert feed_forward_recall(7, alpha, 2) == pytest.approx(alpha**2)
        three_or_four = alpha**4 + 4 * alpha**3 * (1 - alpha)
        assert feed_forward_recall(2, alpha, 4) == pytest.approx(three_or_four + 3 * alpha**2 * (1 - alpha) ** 2)


def test_feed_forward_learns_from_a_few_samples_at_any_vocabulary() -> None:
    for n_tokens in (32, 128, 512, 4096):
        assert feed_forward_recall(n_tokens, 0.5, 16) > 0.99
        assert feed_forward_recall(n_tokens, 0.2, 64) > 0.98


def test_noise_as_rare_as_any_token_is_not_learned() -> None:
    """With α = 1/(N+1) all answers are alike: each is the strict maximum equally often, at most 1/(N+1) of the time."""
    for m in (10, 100, 1000):
        assert feed_forward_recall(4, 0.2, m) < 0.2
    assert feed_forward_recall(4, 0.2, 1000) > 0.18  # ties get rare


@pytest.mark.parametrize(
    ("alpha", "n_tokens", "recalls"),
    [
        (0.5, 32, (0.87, 1, 1)),
        (0.5, 128, (0.50, 0.98, 1)),
        (0.5, 512, (0.25, 0.60, 0.99)),
        (0.2, 128, (0.17, 0.63, 1)),
        (0.2, 512, (0.10, 0.20, 0.74)),
    ],
)
def test_the_recall_of_attention_is_what_simulations_gave(
    alpha: float, n_tokens: int, recalls: tuple[float, ...]
) -> None:
    """At m = 16, 64, 256 and T = 32, means of some twenty draws: good to 0.06."""
    for m, expected in zip((16, 64, 256), recalls, strict=True):
        assert attention_recall(n_tokens, 32, alpha, m) == pytest.approx(expected, abs=0.06)


def test_attention_learns_only_from_contexts_that_hold_the_token() -> None:
    """For N ≫ T a token is in Poisson(mT/N) contexts: averaged over that, the recall of the feed-forward part.

    With α = 1/2 and 8 contexts on average; the terms beyond 40 are below 1e-15.
    """
    n_tokens, T = 40_000, 11
    mean = 8.0
    poisson = [math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(1, 41)]
    expected = sum(p * feed_forward_recall(n_tokens, 0.5, n) for n, p in enumerate(poisson, start=1))
    m = round(mean * n_tokens / (T - 1))
    assert attention_recall(n_tokens, T, 0.5, m) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: noise_step(1, 32, 0.5), "n_tokens is 1, expected"),
        (lambda: noise_step(32, 1, 0.5), "seq_len is 1, expected"),
        (lambda: relative_spread(32, 32, 0.0, 4), "alpha is 0.0, expected a number between 0 and 1"),
        (lambda: relative_spread(32, 32, 0.5, 0), "m is 0, expected"),
        (lambda: relative_spread(32, 32, 1.0, 4), "alpha is 1.0, expected"),
        (lambda: feed_forward_recall(32, 0.5, 0), "m is 0, expected"),
        (lambda: attention_recall(32, 32, float("nan"), 4), "alpha is nan, expected"),
    ],
)
def test_impossible_arguments_are_named(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()
