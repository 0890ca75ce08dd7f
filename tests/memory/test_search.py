"""Searches for a capacity end, and end at the right place."""

import itertools
import math
from collections.abc import Callable, Generator

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from toytf.memory import Status
from toytf.memory.search import Bracket, bisect, climb, half_point, ladder, run_together


def answer(p: int, threshold: int) -> Status:
    return Status.FEASIBLE if p <= threshold else Status.INFEASIBLE


def search(
    status: Callable[[int], Status], guess: float, resolution: float, *, doubling: bool = False
) -> tuple[Bracket, list[int]]:  # fmt: skip
    """The bracket of a bisection, and the questions on the way to it."""
    return answered(bisect(guess, resolution, doubling=doubling), status)


def answered(steps: Generator[int, Status, Bracket], status: Callable[[int], Status]) -> tuple[Bracket, list[int]]:
    """What a search finds, and what it asked."""
    asked = [next(steps)]
    while len(asked) < 200:
        try:
            asked.append(steps.send(status(asked[-1])))
        except StopIteration as end:
            return end.value, asked
    raise AssertionError(f"200 questions and no end: {asked[-5:]}")


THRESHOLDS = st.integers(1, 10**6)
GUESSES = st.floats(0.1, 1e6)


@settings(max_examples=300)
@given(threshold=THRESHOLDS, guess=GUESSES)
def test_a_bisection_finds_the_threshold_from_any_guess(threshold: int, guess: float):
    bracket, asked = search(lambda p: answer(p, threshold), guess, resolution=1e-9)
    assert bracket == Bracket(threshold, threshold + 1, threshold + 0.5)
    assert min(asked) >= 2  # that one pair can be stored needs no question
    assert len(set(asked)) == len(asked)
    # Strides double, then halves: few questions even from 1 to 10⁶.
    assert len(asked) <= 45


@settings(max_examples=100)
@given(threshold=THRESHOLDS, guess=GUESSES, resolution=st.floats(0.001, 0.5))
def test_a_bracket_is_as_narrow_as_asked_and_contains_the_threshold(threshold: int, guess: float, resolution: float):
    bracket, _ = search(lambda p: answer(p, threshold), guess, resolution)
    assert bracket.infeasible is not None
    assert bracket.feasible <= threshold < bracket.infeasible
    assert bracket.infeasible - bracket.feasible <= max(1, resolution * bracket.feasible)
    assert bracket.estimate == (bracket.feasible + bracket.infeasible) / 2


@settings(max_examples=100)
@given(threshold=THRESHOLDS, start=st.integers(2, 256))
def test_a_start_that_knows_nothing_doubles_until_it_fails(threshold: int, start: int):
    bracket, asked = search(lambda p: answer(p, threshold), float(start), 1e-9, doubling=True)
    assert bracket == Bracket(threshold, threshold + 1, threshold + 0.5)
    up = [start * 2**k for k in range(len(asked))]
    passed = [p for p in up if p <= threshold]
    assert asked[: len(passed) + 1] == up[: len(passed) + 1]


def test_a_good_guess_needs_few_questions():
    # It begins at 0.95 of the guess, needs two strides to pass 1000, then halves of 10 % down to 1 %.
    _, asked = search(lambda p: answer(p, 1000), 980.0, resolution=0.01)
    assert len(asked) <= 7


@settings(max_examples=100)
@given(threshold=st.integers(10, 10**5), guess=st.floats(2, 1e5))
def test_an_undecided_question_ends_the_search_there(threshold: int, guess: float):
    """Within 2 % of the threshold the solver gives up, which is as near as it gets."""

    def status(p: int) -> Status:
        return Status.UNKNOWN if abs(p - threshold) <= 0.02 * threshold else answer(p, threshold)

    bracket, asked = search(status, guess, resolution=1e-9)
    if status(asked[-1]) is Status.UNKNOWN:
        assert bracket.estimate == asked[-1]
    assert bracket.estimate == pytest.approx(threshold, rel=0.02, abs=1)
    assert bracket.feasible <= threshold
    assert bracket.infeasible is None or bracket.infeasible > threshold


def test_undecided_at_once_knows_only_that_one_pair_is_stored():
    assert search(lambda _: Status.UNKNOWN, 50.0, 0.01)[0] == Bracket(1, None, 48.0)  # 0.95 of the guess


@settings(max_examples=30)
@given(thresholds=st.dictionaries(st.text(max_size=3), THRESHOLDS, max_size=6), guess=GUESSES)
def test_searches_in_step_find_what_each_finds_alone(thresholds: dict[str, int], guess: float):
    rounds = 0

    def ask(questions: dict[str, int]) -> dict[str, Status]:
        nonlocal rounds
        rounds += 1
        return {name: answer(p, thresholds[name]) for name, p in questions.items()}

    together = run_together({name: bisect(guess, 0.01) for name in thresholds}, ask)
    alone = {name: search(lambda p, t=t: answer(p, t), guess, 0.01) for name, t in thresholds.items()}
    assert together == {name: bracket for name, (bracket, _) in alone.items()}
    # As many rounds as the longest search has questions.
    assert rounds == max((len(asked) for _, asked in alone.values()), default=0)


# Climbing a ladder, where success may come and go

LADDER = ladder(8, 0.1, 2, 512)


def climbed(stored: Callable[[int], bool], scan: int = 2, sizes: list[int] = LADDER) -> tuple[Bracket, list[int]]:
    return answered(climb(sizes, 8, scan), lambda p: Status.FEASIBLE if stored(p) else Status.INFEASIBLE)


@given(start=st.integers(2, 60), growth=st.floats(0.001, 0.99), smallest=st.integers(1, 2), above=st.integers(0, 2000))
def test_a_ladder_grows_by_its_factor_and_has_its_ends(start: int, growth: float, smallest: int, above: int):
    sizes = ladder(start, growth, smallest, start + above)
    assert start in sizes
    assert (sizes[0], sizes[-1]) == (smallest, start + above)
    for low, high in itertools.pairwise(sizes[:-1]):
        assert low < high <= max(low + 1, low * (1 + growth) + 1)  # rounded to whole numbers


@settings(max_examples=200)
@given(threshold=st.integers(2, 511), scan=st.integers(1, 4))
def test_a_climb_ends_where_a_monotone_success_does(threshold: int, scan: int):
    bracket, asked = climbed(lambda p: p <= threshold, scan)
    low = max(size for size in LADDER if size <= threshold)
    high = LADDER[LADDER.index(low) + 1]
    assert bracket == Bracket(low, high, (low + high) / 2, high)
    assert len(asked) <= 12 + 2 * scan  # six doublings from 8 to 512, six halves of 45 rungs


@settings(max_examples=300)
@given(stored=st.sets(st.sampled_from(LADDER)), scan=st.integers(1, 4))
def test_what_a_climb_reports_was_asked_and_is_true_whatever_is_stored(stored: set[int], scan: int):
    bracket, asked = climbed(stored.__contains__, scan)
    assert asked[0] == 8
    assert len(set(asked)) == len(asked)
    assert set(asked) <= set(LADDER)
    assert bracket.feasible == max(stored & set(asked), default=0)
    failed = set(asked) - stored
    assert bracket.failed == min(failed, default=None)
    assert bracket.infeasible == min((size for size in failed if size > bracket.feasible), default=None)
    best = LADDER.index(bracket.feasible) if bracket.feasible else -1
    assert not stored & set(LADDER[best + 1 : best + 1 + scan])
    if bracket.failed is not None:
        worst = LADDER.index(bracket.failed)
        assert set(LADDER[max(0, worst - scan) : worst]) <= stored


def test_a_climb_passes_a_gap_that_its_scan_spans():
    """The case that is known of trainings: 12 subjects stored, 13 to 15 not, 16 stored."""
    gap = [*range(2, 13), 16]
    sizes = [*range(2, 65)]
    bracket, _ = climbed(gap.__contains__, 2, sizes)
    assert bracket == Bracket(16, 17, 16.5, 13)  # by doubling
    lonely = [*range(2, 12), 14]
    assert climbed(lonely.__contains__, 3, sizes)[0] == Bracket(14, 15, 14.5, 12)
    for scan in (1, 2):  # 14 is out of its sight
        assert climbed(lonely.__contains__, scan, sizes)[0] == Bracket(11, 12, 11.5, 12)


def test_a_climb_goes_down_if_its_start_fails():
    bracket, asked = climbed(lambda p: p <= 3)
    assert bracket == Bracket(3, 4, 3.5, 4)
    assert asked[:3] == [8, 4, 2]


def test_a_climb_that_finds_nothing_has_asked_for_the_smallest():
    bracket, asked = climbed(lambda _: False)
    assert bracket == Bracket(0, 2, 1.0, 2)
    assert asked == [8, 4, 2, 3]


def test_a_climb_that_never_fails_ends_at_the_top():
    bracket, asked = climbed(lambda _: True)
    assert bracket == Bracket(512, None, 512.0)
    assert asked[:7] == [8, *(next(size for size in LADDER if size >= 2 * low) for low in asked[:5]), 512]


# Half points


def logistic(p: int, half: float, slope: float) -> float:
    return 1 / (1 + math.exp(slope * (math.log(p) - math.log(half))))


@pytest.mark.parametrize("half", [12.2, 103.0, 1200.0])
@pytest.mark.parametrize("guess", [0.3, 1.0, 3.0])
def test_the_half_point_of_a_steep_curve_is_recovered_from_noisy_draws(half: float, guess: float):
    """Slope 12: from nine in ten to one in ten while p grows by 44 %.

    Near the crossing about six of twelve p are informative, each with an error of .5/√64 in the mean of 64 draws, which
    the slope 12/4 turns into .02 in log p; together .01. Five of those are allowed.
    """
    numbers = np.random.default_rng(0)

    def succeed(p: int) -> np.ndarray:
        return (numbers.random(64) < logistic(p, half, 12)).astype(float)

    assert half_point(succeed, guess * half, steep=True) == pytest.approx(half, rel=0.05)


def test_a_clean_cut_lies_between_the_last_success_and_the_first_failure():
    found = half_point(lambda p: np.full(8, float(p <= 40)), 30.0, steep=True)
    assert 35 < found < 50  # twelve p per factor of two or so: neighbours differ by up to 15 %


@settings(max_examples=60)
@given(half=st.floats(5, 1e4), slope=st.floats(1, 10), level=st.floats(0.1, 0.9), offset=st.floats(-2, 2))
def test_the_level_of_a_smooth_accuracy_is_interpolated(half: float, slope: float, level: float, offset: float):
    expected = half * (1 / level - 1) ** (1 / slope)
    assume(abs(expected - 1) > 1e-6)
    found = half_point(lambda p: np.full(4, logistic(p, half, slope)), math.exp(offset) * half, level, steep=False)
    if expected < 1:
        assert found == 0  # not even one pair is recalled so well
    else:
        # A line between points 2 % apart, or between neighbouring integers, where the curve bends by up to .3.
        assert found == pytest.approx(expected, rel=0.02, abs=0.3)


def test_an_accuracy_that_is_never_reached_has_the_half_point_zero():
    assert half_point(lambda _: np.zeros(4), 10.0, steep=False) == 0
    assert half_point(lambda _: np.full(4, 0.3), 10.0, steep=False) == 0


def test_a_rule_that_never_succeeds_stores_no_pair():
    assert half_point(lambda _: np.zeros(4), 10.0, steep=True) == pytest.approx(0, abs=1)


def test_the_same_p_is_not_asked_twice():
    asked: list[int] = []

    def succeed(p: int) -> np.ndarray:
        asked.append(p)
        return np.full(4, logistic(p, 100, 8))

    for steep in (True, False):
        asked.clear()
        half_point(succeed, 30.0, steep=steep)
        assert len(set(asked)) == len(asked) <= 40
