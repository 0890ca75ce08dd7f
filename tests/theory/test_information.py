import math

import pytest

from toytf.theory import bits_of_facts, bits_to_store, pairs_within


def test_independent_answers_take_log_m_bits_each():
    assert bits_to_store(10, 8) == 30
    assert bits_to_store(10, 1) == 0


def test_errors_save_bits_by_fano():
    # 100 keys, 16 answers, one tenth wrong, each as one of 15: (4 − h₂(.1) − .1 log₂ 15) · 100 with h₂(.1) = .469.
    assert bits_to_store(100, 16, error=0.1) == pytest.approx(400 - 46.9 - 39.07, abs=0.01)
    assert bits_to_store(100, 16, error=0.0) == 400


@pytest.mark.parametrize(
    ("n", "m", "right", "bits"),
    [(63, 63, 46, 63 * (5.977 - 0.841 - 17 / 63 * 5.954)), (256, 8, 77, 256 * (3 - 0.8824 - 179 / 256 * 2.8074))],
)
def test_few_right_answers_tell_little_more_than_a_guess(n: int, m: int, right: int, bits: float):
    """222 of 46 · 5.98 = 275 bits, and 40 of 77 · 3 = 231: nobody knows which of them are right."""
    assert bits_to_store(n, m, error=1 - right / n) == pytest.approx(bits, abs=0.1)


def test_a_guess_takes_no_bits():
    assert bits_to_store(100, 2, error=0.5) == 0
    assert bits_to_store(100, 16, error=15 / 16) == pytest.approx(0, abs=1e-9)
    for m in (1, 2, 16):
        assert bits_to_store(100, m, error=1.0) == pytest.approx(0, abs=1e-9)


def test_injective_answers_take_fewer_bits():
    assert bits_to_store(4, 4, injective=True) == pytest.approx(math.log2(24))
    assert bits_to_store(2, 5, injective=True) == pytest.approx(math.log2(20))
    n = 10_000
    assert bits_to_store(n, n, injective=True) == pytest.approx(n * math.log2(n / math.e), rel=1e-4)
    assert bits_to_store(n, n, injective=True) < bits_to_store(n, n)


def test_facts_known_up_to_a_loss():
    assert bits_of_facts(256, 8) == 768
    assert bits_of_facts(256, 8, loss=math.log(2)) == pytest.approx(512)
    assert bits_of_facts(256, 8, loss=math.log(8)) == pytest.approx(0, abs=1e-9)
    assert bits_of_facts(256, 8, loss=5.0) == 0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: bits_to_store(0, 4), "n is 0, expected"),
        (lambda: bits_to_store(4, 0), "m is 0, expected"),
        (lambda: bits_to_store(4, 4, error=1.5), "error is 1.5, expected a number from 0 to 1"),
        (lambda: bits_to_store(5, 4, injective=True), "5 keys have 4 answers"),
        (lambda: pairs_within(-1), "bits is -1, expected"),
        (lambda: pairs_within(8, 0), "m is 0, expected"),
        (lambda: bits_of_facts(4, 4, loss=-1), "loss is -1, expected"),
    ],
)
def test_impossible_arguments_are_named(call, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_errors_save_bits_of_injective_answers():
    """Two of 20 keys may be wrong: of log₂ 20! = 61.08 bits, 2 log₂ 20 say what, 20 h₂(.1) where."""
    assert bits_to_store(20, 20, error=0.1, injective=True) == pytest.approx(61.08 - 8.64 - 9.38, abs=0.01)
    assert bits_to_store(4, 4, error=0.5, injective=True) == 0


@pytest.mark.parametrize("error", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("n", [30, 1000])
def test_the_pairs_within_some_bits_are_those_that_take_them(n: int, error: float):
    assert pairs_within(bits_to_store(n, 32, error=error), 32, error=error) == pytest.approx(n)
    assert pairs_within(bits_to_store(n, n, error=error, injective=True), error=error) == pytest.approx(n)


def test_any_number_of_pairs_fits_if_nothing_must_be_right():
    assert pairs_within(1, 2, error=0.5) == math.inf
    assert pairs_within(1, error=1.0) == math.inf
    assert pairs_within(0) == 1
