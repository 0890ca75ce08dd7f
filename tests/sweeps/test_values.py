"""The values of a factor: geometric, linear and stepped ranges, random draws, and what is wrong with them."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toytf.errors import UserError
from toytf.sweeps.values import draw_of, is_spread, values_of

POSITIVE = st.floats(1e-9, 1e9).map(lambda value: float(f"{value:.4g}"))


@given(POSITIVE, POSITIVE, st.integers(2, 40))
def test_log_has_its_ends_and_equal_ratios(lo: float, hi: float, n: int) -> None:
    if max(lo, hi) / min(lo, hi) < 1.001:
        return
    found = values_of("k", f"log({lo!r}, {hi!r}, {n})")
    assert found.log
    assert len(found.values) == len(set(found.values)) == n
    assert (found.values[0], found.values[-1]) == (lo, hi)
    assert list(found.values) == sorted(found.values, reverse=lo > hi)
    for i, value in enumerate(found.values):
        assert value == pytest.approx(lo * (hi / lo) ** (i / (n - 1)), rel=5.1e-3)  # three digits


def test_a_range_is_short_to_write_down() -> None:
    assert values_of("k", "log(1e-4, 1e-1, 7)").values == (1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2, 3.16e-2, 1e-1)
    assert values_of("k", "linear(0, 1, 11)").values == (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
    assert values_of("k", " range( 8 , 32 , 8 ) ").values == (8, 16, 24, 32)
    assert values_of("k", "range(0.1, 0.45, 0.1)").values == (0.1, 0.2, 0.3, 0.4)
    assert values_of("k", [[1, 2], "a"]).values == ([1, 2], "a")


def test_whole_ends_offer_whole_numbers() -> None:
    found = values_of("k", "log(1, 100, 5)")
    assert (found.values, found.whole) == ((1, 3.16, 10, 31.6, 100), (1, 3, 10, 32, 100))
    assert values_of("k", "log(1, 16, 5)").whole is None  # they are whole as they are
    assert all(isinstance(value, int) for value in values_of("k", "log(1, 16, 5)").values)
    assert values_of("k", "log(1.0, 100, 5)").whole is None


@given(st.lists(POSITIVE, min_size=1, max_size=20, unique=True))
def test_three_digits_become_more_where_values_lie_close(numbers: list[float]) -> None:
    lo = numbers[0]
    found = values_of("k", f"log({lo!r}, {lo * 1.001!r}, 9)").values
    assert all(a < b for a, b in pairwise(found))


def test_draws_stay_between_their_ends() -> None:
    source = random.Random(0)
    for text, lo, hi in (("log(1e-4, 1e-1)", 1e-4, 1e-1), ("uniform(-1, 1)", -1, 1), ("integer(2, 9)", 2, 9)):
        drawn = [draw_of("k", text)(source) for _ in range(300)]
        assert all(lo <= value <= hi for value in drawn)
        assert len(set(drawn)) > (7 if "integer" in text else 100)
    logs = [draw_of("k", "log(1e-4, 1e-2)")(source) for _ in range(600)]
    assert sum(value < 1e-3 for value in logs) == pytest.approx(300, abs=60)  # five standard deviations
    assert {draw_of("k", ["a", "b"])(source) for _ in range(50)} == {"a", "b"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "the list of its values is empty"),
        ("log(1, 10)", "expected 3 numbers, log(lo, hi, n)"),
        ("log(1, a, 3)", "expected 3 numbers"),
        ("log(0, 10, 3)", "two different numbers above 0"),
        ("log(2, 2, 3)", "two different numbers above 0"),
        ("linear(1, 2, 1)", "2 or more"),
        ("linear(1, 2, 2.5)", "a whole number, 2 or more"),
        ("range(1, 10, 0)", "should give 2 to"),
        ("range(10, 1, 1)", "should give 2 to"),
        ("lgo(1, 2, 3)", 'did you mean "log"?'),
        ("log(1e-4", "in quotes"),
        (7, "its values should be a list"),
        ("layer", "its values should be a list"),
    ],
)
def test_values_that_cannot_be_are_refused(given: object, says: str) -> None:
    with pytest.raises(UserError) as refused:
        values_of("a.b", given)
    assert str(refused.value).startswith("a.b")
    assert says in str(refused.value)


@pytest.mark.parametrize("given", ["log(1, 1)", "log(-1, 1)", "integer(1, 2.5)", "uniform(2, 1)", "normal(0, 1)", []])
def test_draws_that_cannot_be_are_refused(given: object) -> None:
    with pytest.raises(UserError, match=r"^a\.b"):
        draw_of("a.b", given)


def test_only_known_names_stand_for_several_values() -> None:
    assert is_spread("log(1, 10, 3)")
    assert not is_spread("f(1)")
    assert not is_spread("log")
    assert not is_spread(3)
