"""Associations at the edge: nothing to tell apart, contradictions that are named, and rows that are refused."""

import math

import pytest
import torch

from tests.memory.problems import FEASIBLE, INFEASIBLE, UNKNOWN, decide_one, double, mapped, pairs, with_equal_keys
from toytf.memory import Association, StorageProblem, decide, maximise_margin


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("solve", [decide, maximise_margin])
def test_without_a_rival_everything_is_stored(n: int, d: int, solve):
    decision = solve(StorageProblem.of(pairs(n, d)), iterations=20)[0]
    assert decision.status is FEASIBLE
    assert decision.margin_lower == decision.margin_upper == math.inf
    assert bool(decision.W.isfinite().all())


def test_one_dimension_tells_two_signs_apart_but_not_three_values():
    e = torch.tensor([[1.0], [-1.0]])
    assert decide_one(Association(e, e, torch.arange(2))).status is FEASIBLE
    assert decide_one(Association(e, -e, torch.arange(2))).status is FEASIBLE
    # The value in the middle is never the largest.
    e, u = torch.tensor([[1.0], [2.0], [-1.0]]), torch.tensor([[3.0], [2.0], [1.0]])
    assert decide_one(Association(e, u, torch.arange(3))).status is INFEASIBLE


# Contradictions


def test_equal_keys_with_different_targets_are_named():
    decision = decide_one(with_equal_keys(3, 7))
    assert decision.status is INFEASIBLE
    assert decision.reason == "keys 3 and 7 are equal, but should recall the values 3 and 7"


def test_equal_keys_are_named_also_in_a_padded_batch():
    decisions = decide(StorageProblem.of(with_equal_keys(3, 7), pairs(12, 16)))
    assert [decision.status for decision in decisions] == [INFEASIBLE, FEASIBLE]
    assert "keys 3 and 7" in decisions[0].reason
    assert decisions[1].reason == ""


def test_equal_keys_with_one_target_are_no_contradiction():
    decision = decide_one(with_equal_keys(3, 7, same_target=True))
    assert decision.status is FEASIBLE
    assert decision.reason == ""


def with_equal_values(first: int, second: int, targets: torch.Tensor) -> Association:
    association = pairs(10, 16)
    values = association.values.clone()
    values[second] = values[first]
    return Association(association.keys, values, targets)


def test_equal_values_are_named_if_one_is_wanted():
    decision = decide_one(with_equal_values(2, 6, torch.arange(10)))
    assert decision.status is INFEASIBLE
    assert decision.reason == "values 2 and 6 are equal, so that no key can tell them apart"


def test_equal_values_that_nobody_wants_are_no_contradiction():
    decision = decide_one(with_equal_values(2, 6, torch.tensor([0, 1, 3, 4, 5, 7, 8, 9, 0, 1])))
    assert decision.status is FEASIBLE
    assert decision.reason == ""


def test_values_that_are_tiny_are_not_called_equal():
    """Undecided after one step at any scale: only rows that are the same to the last bit contradict each other."""
    for scale in (1.0, 1e-14):
        decision = decide_one(mapped(double(pairs(20, 8)), 1.0, scale), iterations=1)
        assert (decision.status, decision.reason) == (UNKNOWN, "")


def test_a_zero_key_cannot_recall():
    association = pairs(10, 16)
    keys = association.keys.clone()
    keys[4] = 0
    decision = decide_one(Association(keys, association.values, association.targets))
    assert decision.status is INFEASIBLE
    assert decision.margin_lower == 0
    nothing = decide_one(Association(0 * keys, association.values, association.targets))
    assert nothing.status is INFEASIBLE
    assert bool(nothing.W.isfinite().all())


@pytest.mark.parametrize("solve", [decide, maximise_margin])
@pytest.mark.parametrize("field", ["keys", "values"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_refused_by_its_number(field: str, bad: float, solve):
    association = pairs(10, 16)
    rows = {"keys": association.keys.clone(), "values": association.values.clone()}
    rows[field][4, 2] = bad
    broken = Association(**rows, targets=association.targets)
    with pytest.raises(ValueError, match=f"^{field} of an association must be finite, but row 4 is not$"):
        solve(StorageProblem.of(pairs(12, 16), broken))
