"""How many pairs fit, what the rules make of the same vectors, and which pairs are lost."""

import math
from dataclasses import replace

import pytest
import torch

from toytf.memory import Association, AssociationStream, hebbian
from toytf.memory.limits import best_matrices, different_keys, matrix_limits
from toytf.memory.measures import measure_lost
from toytf.theory import capacity, statistical_dimension


def pairs(n: int, d: int, seed: int = 0) -> Association:
    return AssociationStream(seed, d, d).prefix(n)


def lost(association: Association, W: torch.Tensor) -> dict[str, float]:
    return {str(one.quantity.at["measure"]): float(one.value or 0) for one in measure_lost(association, W)}


def test_both_limits_agree_at_capacity():
    """With p_c pairs and as many values both are p_c, 181.8 at d = 32."""
    limits = matrix_limits(pairs(182, 32))
    assert limits is not None
    assert limits.own_values == pytest.approx(181.8, rel=0.015)
    assert limits.at_values == pytest.approx(limits.own_values, rel=0.01)


def test_pairs_with_own_values_bring_more_values_and_pairs_that_share_them_do_not():
    """d = 128, 65 values: p δ(p) = d² at p = 1,813, δ = 9.04; p δ(65) = 64 d at p = 1,942, δ = 4.22."""
    association = pairs(65, 128)
    twice = Association(torch.randn(130, 128), association.values, association.targets.repeat(2))
    for stored, expected in ((association, 128**2 / 9.04), (twice, 128 * 64 / 4.22)):
        limits = matrix_limits(stored)
        assert limits is not None
        assert limits.of(stored) == pytest.approx(expected, rel=0.01)


def test_a_limited_rank_keeps_its_energy():
    """ω²(1/2) = .894."""
    full, half = (matrix_limits(pairs(100, 32), rank) for rank in (None, 16))
    assert full is not None and half is not None
    assert half.at_values / full.at_values == pytest.approx(0.894, abs=0.001)


def test_facts_of_one_subject_share_its_key():
    """R facts with D answers each fit into one vector of d numbers if R δ(D) = d; S subjects hold S times as many."""
    S, R, D, d = 5, 6, 4, 24
    facts = torch.cartesian_prod(torch.arange(S), torch.arange(R))
    sets = torch.arange(R * D).view(R, D)
    candidates = torch.zeros(S * R, R * D, dtype=torch.bool).scatter(1, sets[facts[:, 1]], True)
    keys, values = torch.randn(S, d), torch.randn(R * D, d)
    stored = Association(keys[facts[:, 0]], values, sets[facts[:, 1], 0], candidates=candidates)
    limits = matrix_limits(stored)
    assert different_keys(stored) == S
    assert limits is not None
    assert limits.at_values == pytest.approx(S * min(d, R * D - 1) / statistical_dimension(D).value, rel=0.02)


def test_nothing_competes_with_a_single_value():
    assert matrix_limits(Association(torch.eye(3), torch.ones(1, 2), torch.zeros(3, dtype=torch.long))) is None


@pytest.mark.parametrize("rank", [None, 8])
def test_below_capacity_the_best_matrix_recalls_all_and_the_rules_fewer(rank: int | None):
    """d = 32: the Hebbian rule recalls all of 33 in half of the draws, least squares of 68, the best matrix of 190.

    At rank 8 the limit is 125.
    """
    association = pairs(100, 32)
    recalled = {name: int(association.recalled(W).sum()) for name, W in best_matrices(association, rank).items()}
    assert recalled["hebbian"] < recalled["least_squares"] < recalled["max_margin"] == 100
    for W in best_matrices(association, rank).values():
        assert int(torch.linalg.matrix_rank(W.double(), rtol=1e-4)) <= (rank or 32)


def test_of_more_pairs_than_fit_about_as_many_as_fit_are_recalled():
    """150 pairs at d = 16: 48 fit if they are any, 256 / δ(150). Of the easiest more do, but far from all."""
    association = pairs(150, 16)
    limits = matrix_limits(association)
    assert limits is not None
    recalled = {name: int(association.recalled(W).sum()) for name, W in best_matrices(association).items()}
    assert max(recalled["hebbian"], recalled["max_margin"]) < recalled["easiest"]
    assert limits.at_values < recalled["easiest"] < 2 * limits.at_values


def test_no_rule_exceeds_the_rank_even_of_more_pairs_than_fit():
    for W in best_matrices(pairs(90, 16), 4).values():
        assert isinstance(W, torch.Tensor)
        assert int(torch.linalg.matrix_rank(W.double(), rtol=1e-4)) <= 4


def test_some_pairs_keep_their_rivals_weights_and_names():
    all_pairs = replace(pairs(6, 4), weights=torch.arange(6.0), key_names=tuple("abcdef"))
    some = all_pairs.some(torch.tensor([4, 1]))
    assert (some.key_names, some.weights.tolist(), len(some.values)) == (("e", "b"), [4.0, 1.0], 6)  # type: ignore
    assert some.targets.tolist() == [4, 1]


def test_any_matrix_that_stores_will_do_where_the_margin_does_not_matter():
    association = pairs(100, 32)
    some, best = (best_matrices(association, quick=quick)["max_margin"] for quick in (True, False))
    assert bool(association.recalled(some).all())
    margins = [float(association.margins(W).min() / W.norm()) for W in (some, best)]
    assert 0 < margins[0] < margins[1]


def test_a_large_memory_gets_fewer_steps():
    """Else the end of a training on thousands of facts would take minutes."""
    from toytf.memory.limits import ITERATIONS, _iterations

    assert _iterations(pairs(60, 128)) == ITERATIONS
    large = Association(torch.ones(5000, 128), torch.ones(600, 128), torch.zeros(5000, dtype=torch.long))
    assert 10 <= _iterations(large) < 40


# Which pairs are lost


def test_the_rare_pairs_are_lost_if_only_the_frequent_ones_are_stored():
    association = replace(pairs(40, 64), weights=torch.arange(40.0))
    frequent = Association(association.keys[20:], association.values, association.targets[20:])
    assert lost(association, hebbian(frequent))["rarer"] == 1
    rare = Association(association.keys[:20], association.values, association.targets[:20])
    assert lost(association, hebbian(rare))["rarer"] == 0


def test_keys_with_a_twin_of_another_answer_are_crowded():
    """Five of 40 keys at d = 256 have a twin at a cosine of .96. Not stored, they recall the answer of the twin."""
    association = pairs(40, 256)
    keys = association.keys.clone()
    keys[:5] = keys[5:10] + 0.3 * keys[:5]
    stored = replace(association, keys=keys)
    W = hebbian(Association(keys[5:], stored.values, stored.targets[5:]))
    assert not bool(stored.recalled(W)[:5].any()) and bool(stored.recalled(W)[5:].all())
    assert lost(stored, W)["crowded"] > 0.9  # their twins are as crowded, and recalled: 30/35 + (5/35)/2 = .93


def test_nothing_is_said_where_nothing_or_all_is_lost():
    association = pairs(10, 64)
    assert lost(association, hebbian(association)) == {}
    assert lost(association, torch.zeros(64, 64)) == {}


def test_pairs_of_equal_weight_have_no_rarer_ones():
    association = replace(pairs(200, 16), weights=torch.ones(200))
    assert lost(association, hebbian(association)).keys() == {"crowded"}


def test_the_limit_of_a_shape_is_that_of_the_theory():
    limits = matrix_limits(Association(torch.randn(9, 12), torch.randn(9, 20), torch.arange(9)))
    assert limits is not None
    assert limits.own_values == capacity(12, 20)
    assert math.isfinite(limits.at_values)
