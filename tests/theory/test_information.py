import math

import pytest

from toytf.theory import bits_of_facts, bits_to_store, pairs_within


def test_independent_answers_take_log_m_bits_each():
    assert bits_to_store(10, 8) == 30
    assert bits_to_store(10, 1) == 0


def test_errors_save_bits_by_fano():
    # 100 keys, 16 answers, one tenth wrong: (.9 · 4 − h₂(.1)) · 100 with h₂(.1) = .469.
    assert bits_to_store(100, 16, error=0.1) == pytest.approx(360 - 46.9, abs=0.01)
    assert bits_to_store(100, 16, error=0.0) == 400


def test_a_guess_takes_no_bits():
    assert bits_to_store(100, 2, error=0.5) == 0
    assert bits_to_store(100, 16, error=1.0) == 0


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
