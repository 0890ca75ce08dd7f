"""What must not change a decision: linear maps, scales, precision, company in a batch, and pieces of the scores."""

from collections.abc import Sequence

import pytest
import torch

from tests.memory.problems import FEASIBLE, INFEASIBLE, UNKNOWN, decide_one, double, mapped, pairs
from toytf.memory import AssociationStream, Decision, Status, StorageProblem, decide, maximise_margin
from toytf.randomness import generator


@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize(("n", "status"), [(170, FEASIBLE), (215, INFEASIBLE)])
def test_linear_maps_of_keys_and_values_change_nothing(n: int, status: Status, whiten: bool):
    d = 32
    for seed in range(2):
        A, B = (torch.eye(d) + 0.5 / d**0.5 * torch.randn(d, d, generator=generator(seed, x)) for x in ("A", "B"))
        # Without whitening the descent feels the condition number of the maps, about 4 each, and needs more steps.
        assert decide_one(mapped(pairs(n, d, seed), A, B), whiten=whiten, iterations=2000).status is status


def test_float64_problems_are_decided_alike_and_keep_their_dtype():
    for n in (50, 80):
        single, exact = pairs(n, 16), double(pairs(n, 16))
        assert decide_one(exact).status is decide_one(single).status
        assert decide_one(exact).W.dtype is torch.float64
        assert decide_one(single).W.dtype is torch.float32


# Scales


SCALES = [(2.0**-10, 1.0), (16.0, 1.0), (1.0, 2.0**-10), (32.0, 32.0)]
"""Powers of 2, so that the scaled descent can take the very same steps."""


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("n", [50, 80])
def test_a_decision_does_not_depend_on_the_scale_of_keys_and_values(n: int, scales: tuple[float, float]):
    association = double(pairs(n, 16))
    plain, scaled = decide_one(association), decide_one(mapped(association, *scales))
    assert scaled.status is plain.status
    # Float64, and whitening removes the scale at once: only rounding is left.
    assert scaled.margin_lower == pytest.approx(plain.margin_lower, rel=1e-4)
    assert scaled.margin_upper == pytest.approx(plain.margin_upper, rel=1e-4)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize(("n", "status"), [(50, FEASIBLE), (80, INFEASIBLE)])
def test_without_whitening_small_vectors_are_not_called_infeasible(n: int, status: Status, scales: tuple[float, float]):
    """The tolerance is in units of the score's standard deviation, not of the vectors as given."""
    decision = decide_one(mapped(pairs(n, 16), *scales), whiten=False, iterations=4000)
    assert decision.status in (status, UNKNOWN)


@pytest.mark.parametrize("scales", SCALES)
def test_the_bracket_of_the_largest_margin_does_not_depend_on_scales(scales: tuple[float, float]):
    association = double(pairs(14, 8))
    both = (association, mapped(association, *scales))
    plain, scaled = (maximise_margin(StorageProblem.of(a), iterations=200)[0] for a in both)
    assert scaled.margin_lower == pytest.approx(plain.margin_lower, rel=1e-4)
    assert scaled.margin_upper == pytest.approx(plain.margin_upper, rel=1e-4)


# Batches and pieces


def assert_same(together: Sequence[Decision], alone: Sequence[Decision]) -> None:
    assert [decision.status for decision in together] == [decision.status for decision in alone]
    for one, other in zip(together, alone, strict=True):
        # Float64 problems: sums in another order leave 1e-16, which a hundred steps amplify a little.
        torch.testing.assert_close(one.W, other.W, rtol=1e-5, atol=1e-7)
        assert one.margin_lower == pytest.approx(other.margin_lower, rel=1e-5, abs=1e-7)
        assert one.margin_upper == pytest.approx(other.margin_upper, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("own_rivals", [False, True])
@pytest.mark.parametrize("whiten", [True, False])
def test_a_batch_is_decided_like_its_members(own_rivals: bool, whiten: bool):
    """Also if they have different numbers of pairs, so that all but one are padded."""
    problems = [
        AssociationStream(seed, 12, 12, own_rivals=own_rivals).problem(n).double()
        for seed, n in enumerate((25, 60, 5, 1, 30, 30))
    ]
    alone = [decide(problem, whiten=whiten)[0] for problem in problems]
    assert {decision.status for decision in alone} == {FEASIBLE, INFEASIBLE}
    assert_same(decide(StorageProblem.stack(problems), whiten=whiten), alone)


def test_margins_in_a_batch_are_in_the_units_of_each_member():
    associations = [double(pairs(14, 8, 0)), mapped(double(pairs(14, 8, 1)), 10.0)]
    alone = [decide_one(association) for association in associations]
    assert_same(decide(StorageProblem.of(*associations)), alone)


def test_instances_too_large_for_the_cache_are_decided_in_groups(monkeypatch: pytest.MonkeyPatch):
    problems = [AssociationStream(seed, 12, 12).problem(n).double() for seed, n in enumerate((25, 60, 5, 30))]
    whole = decide(StorageProblem.stack(problems))
    monkeypatch.setattr("toytf.memory.solver._together", lambda problem: 3)
    assert_same(decide(StorageProblem.stack(problems)), whole)


@pytest.mark.parametrize("own_rivals", [False, True])
@pytest.mark.parametrize("n", [25, 60])
def test_large_score_matrices_go_by_rows_with_the_same_result(
    n: int, own_rivals: bool, monkeypatch: pytest.MonkeyPatch
):
    problem = AssociationStream(0, 12, 12, own_rivals=own_rivals).problem(n).double()
    both = StorageProblem.stack([problem, AssociationStream(1, 12, 12, own_rivals=own_rivals).problem(20).double()])
    whole, best = decide(both), maximise_margin(both, iterations=30)
    monkeypatch.setattr("toytf.memory.descent.CHUNK", 7 * n * 2)  # seven rows of both instances at a time
    assert_same(decide(both), whole)
    assert_same(maximise_margin(both, iterations=30), best)
