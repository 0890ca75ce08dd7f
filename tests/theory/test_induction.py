"""The signals of the three gradient steps, against closed forms, limits and sequences drawn by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toytf import theory
from toytf.theory.induction import SHORTEST

lengths = st.integers(SHORTEST, 40)


def harmonic(n: int) -> float:
    return math.fsum(1 / i for i in range(1, n + 1))


def previous(signal: np.ndarray) -> np.ndarray:
    """Entries (t, t−1) for t = 2 … T−1."""
    return np.diagonal(signal, -1)[:-1]


# --- step 1


@pytest.mark.parametrize(("n_tokens", "seq_len", "value"), [(64, 16, 9.34e-4), (256, 32, 1.207e-4)])
def test_the_output_signal_is_the_exact_form(n_tokens: int, seq_len: int, value: float) -> None:
    signal = theory.output_signal(n_tokens, seq_len)
    exact = (1 - seq_len / n_tokens + (seq_len - 3) / (n_tokens - 1)) / (n_tokens * seq_len)
    assert signal.diagonal == pytest.approx(exact, rel=1e-12)
    assert signal.diagonal == pytest.approx(value, rel=1e-3)  # to the digits given


def test_the_output_signal_of_many_tokens_is_one_in_nt() -> None:
    signal = theory.output_signal(10**7, 16)
    assert signal.diagonal * 10**7 * 16 == pytest.approx(1, rel=1e-5)
    assert signal.off_diagonal == pytest.approx(-1 / (10**14 * 16), rel=1e-5)


@given(st.integers(3, 50), lengths)
def test_the_rows_of_a_token_signal_sum_to_zero(n_tokens: int, seq_len: int) -> None:
    for signal in (theory.output_signal(n_tokens, seq_len), theory.trigger_signal(n_tokens, seq_len, 1.0)):
        matrix = signal.matrix()
        assert matrix.shape == (n_tokens, n_tokens)
        np.testing.assert_allclose(matrix.sum(0), 0, atol=1e-15)
        np.testing.assert_allclose(matrix.diagonal(), signal.diagonal)


@pytest.mark.parametrize(("n_tokens", "seq_len"), [(3, 5), (4, 6)])
def test_step_1_is_the_expectation_over_all_sequences(n_tokens: int, seq_len: int) -> None:
    """Every sequence there is, by enumeration: E[(1{y=k} − 1/N) Σ_r w_r 1{z_r=k}] / T for both kinds of weights."""
    N, T = n_tokens, seq_len
    weights = {
        theory.output_signal: np.ones(T),
        theory.remapped_signal: np.array([harmonic(T) - harmonic(r - 1) for r in range(1, T + 1)]),
    }
    sums = dict.fromkeys(weights, 0.0)
    q, free, count = 0, T - 2, 0  # all triggers are alike; tokens are numbered 1 … N−1 beside it
    for s in range(T - 2):
        for code in range((N - 1) ** free):
            others = iter([code // (N - 1) ** i % (N - 1) + 1 for i in range(free)])
            z = np.array([q if t in (s, T - 1) else next(others) for t in range(T)])
            count += 1
            for signal, w in weights.items():
                seen = np.bincount(z, weights=w, minlength=N) / T
                sums[signal] += seen[z[s + 1]] - seen.sum() / N  # Σ_k (1{y=k} − 1/N) Σ_r w_r 1{z_r=k}
    for signal, total in sums.items():
        assert signal(N, T).diagonal == pytest.approx(total / count / N, rel=1e-9)


def test_the_remapped_memory_is_nearly_as_strong_as_the_other() -> None:
    """mean_s(H_T − H_s): 0.897 at T = 16; 1 − O(log T / T) for long sequences."""
    assert theory.remapped_gain(16) == pytest.approx(np.mean([harmonic(16) - harmonic(s) for s in range(1, 15)]))
    assert theory.remapped_gain(10_000) == pytest.approx(1, abs=2e-3)
    ratio = theory.remapped_signal(10**7, 16).diagonal / theory.output_signal(10**7, 16).diagonal
    assert ratio == pytest.approx(theory.remapped_gain(16), rel=1e-5)


# --- step 2


@pytest.mark.parametrize(("seq_len", "S"), [(16, 0.0911), (32, 0.0667), (64, 0.0438), (256, 0.0162)])
def test_the_trigger_strength_is_the_mean_of_harmonic_sums(seq_len: int, S: float) -> None:
    T = seq_len
    each = [1 / (s + 1) - (harmonic(T) - harmonic(s - 1) + 1 / T) / T for s in range(1, T - 1)]
    assert theory.trigger_strength(T) == pytest.approx(np.mean(each), rel=1e-12)
    assert theory.trigger_strength(T) == pytest.approx(S, abs=5e-5)  # to the digits given
    assert 1.3 < math.log(T) - T * theory.trigger_strength(T) < 1.41


def test_the_remapped_memory_helps_step_2() -> None:
    """N = 64, T = 16: 8.90e-5 without it, 1.15e-4 with it."""
    assert theory.trigger_signal(64, 16, 1).diagonal == pytest.approx(8.90e-5, rel=1e-3)
    remapped = theory.remapped_gain(16)
    assert theory.trigger_signal(64, 16, 1, remapped=remapped).diagonal == pytest.approx(1.15e-4, rel=1e-3)


def test_short_sequences_have_no_trigger_signal() -> None:
    assert theory.trigger_strength(SHORTEST - 1) < 0 < theory.trigger_strength(SHORTEST)
    with pytest.raises(ValueError, match="seq_len is 4, expected a finite number of at least 5"):
        theory.trigger_rate(64, 4, 1, 1)


# --- step 3


@given(lengths, st.floats(0.1, 3), st.floats(0.1, 3))
def test_small_gains_give_a_signal_of_one_over_t(seq_len: int, beta_1: float, beta_2: float) -> None:
    """β_1 β_2 / (T (T−2) t) · (1{r=t−1} − 1/t); in row T−1, which s = T−1 cannot reach, all but 1/T of it."""
    T, signal = seq_len, theory.position_signal(seq_len, beta_1, beta_2)
    for t in range(2, T):
        expected = np.array([(r == t - 1) - 1 / t for r in range(1, t + 1)]) / (T * (T - 2) * t) * beta_1 * beta_2
        np.testing.assert_allclose(signal[t - 1, :t], expected, atol=abs(expected).max() / T if t == T - 1 else 1e-12)
    assert not signal[0].any()
    assert not np.triu(signal, 1).any()
    assert (previous(signal) > 0).all()


@given(lengths, st.floats(0.0, 20.0))
def test_the_largest_key_is_the_previous_position_at_any_gain(seq_len: int, beta_2: float) -> None:
    """Also where attention is no longer uniform: a row still sums to zero, and its largest entry is t−1."""
    signal = theory.position_signal(seq_len, 1, beta_2 + 1e-3, linear=False)
    np.testing.assert_allclose(signal.sum(1), 0, atol=1e-12)
    for t in range(2, seq_len):
        assert signal[t - 1, :t].argmax() == t - 2


def test_both_predictions_agree_at_small_gains() -> None:
    linear, exact = (theory.position_signal(12, 1, 1e-6, linear=linear) for linear in (True, False))
    np.testing.assert_allclose(exact, linear, atol=1e-5 * abs(linear).max())


def test_early_positions_gain_most_from_focused_attention() -> None:
    """β_2 = 1, T = 16: attention on t = 2 is already e^{1/2} / Σ_t e^{n_t}, 29 % more signal; late ones gain 5 %."""
    ratio = previous(theory.position_signal(16, 1, 1, linear=False)) / previous(theory.position_signal(16, 1, 1))
    assert ratio[0] == pytest.approx(1.29, abs=0.005)
    assert ratio[-1] == pytest.approx(1.05, abs=0.005)
    assert (np.diff(ratio) < 0).all()


# --- rates, ceiling, domain


def test_two_tokens_are_enough() -> None:
    assert theory.output_rate(2, 8, 3) == 3 * 2 * 8


@given(lengths, st.floats(0.1, 5), st.floats(0.1, 5))
def test_a_rate_times_its_signal_is_the_gain(seq_len: int, beta_1: float, beta_2: float) -> None:
    N = 10**6
    assert theory.output_rate(N, seq_len, beta_1) * theory.output_signal(N, seq_len).diagonal == pytest.approx(
        beta_1, rel=1e-4
    )
    signal = theory.trigger_signal(N, seq_len, beta_1).diagonal
    assert theory.trigger_rate(N, seq_len, beta_1, beta_2) * signal == pytest.approx(beta_2)
    mean = previous(theory.position_signal(seq_len, beta_1, beta_2)).mean()
    assert theory.position_rate(seq_len, beta_1, beta_2, 20) * mean == pytest.approx(20)


def test_the_ceiling_is_one_minus_half_of_a_first_position() -> None:
    assert theory.induction_ceiling(16) == pytest.approx(1 - 1 / 28)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: theory.output_signal(1, 16), "n_tokens is 1"),
        (lambda: theory.output_signal(64, 2), "seq_len is 2"),
        (lambda: theory.trigger_signal(0, 16, 1), "n_tokens is 0"),
        (lambda: theory.position_signal(16, -1, 1), "beta_1 is -1"),
        (lambda: theory.position_signal(16, 1, math.inf), "beta_2 is inf"),
        (lambda: theory.induction_ceiling(2), "seq_len is 2"),
    ],
)
def test_an_argument_outside_the_theory_is_named(call, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=says):
        call()
