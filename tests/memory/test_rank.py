"""What a matrix of limited rank is found to store."""

from typing import Any

import pytest
import torch

from tests.memory.problems import double, exact_capacity, mapped, margin_of, pairs
from toytf.memory import (
    Association,
    AssociationStream,
    Decision,
    Status,
    StorageProblem,
    decide,
    decide_rank,
    maximise_margin,
)
from toytf.memory.rank import maximise_margin_rank
from toytf.theory import capacity, maximal_margin


def assert_stores(decision: Decision, association: Association, rank: int) -> None:
    assert decision.status is Status.FEASIBLE
    W = decision.W.double()
    scores = association.keys.double() @ W.T @ association.values.double().T
    right = scores.gather(1, association.targets[:, None])
    rivals = scores.scatter(1, association.targets[:, None], -torch.inf)
    assert bool((right > rivals).all())
    s = torch.linalg.svdvals(W)
    assert int(torch.linalg.matrix_rank(W)) == rank  # W is a product of float64 factors, whatever the keys are
    assert float(s[rank - 1]) > 1e-3 * float(s[0])


@pytest.mark.parametrize("seed", range(3))
def test_a_quarter_of_the_rank_stores_more_than_its_parameters_would(seed: int):
    """d = 32, rank 8: 115 pairs. Derived: p δ(p) = d² ω²(1/4) gives 125; in proportion to the parameters it were 95."""
    association = pairs(115, 32, seed)
    decision = decide_rank(association, 8)
    assert_stores(decision, association, 8)
    assert 0 < decision.margin_lower <= decision.margin_upper


@pytest.mark.parametrize("seed", range(3))
def test_a_quarter_of_the_rank_stores_38_pairs_and_not_56(seed: int):
    """d = 16: p δ(p) = d² ω²(1/4) gives 43 pairs at rank 4, and 62 at full rank, which stores 56.

    Not found is no proof; but the same search finds 12 % less than the capacity, and 30 % more are too many.
    """
    assert 38 < capacity(16, 16, rank=4) < 56 < capacity(16, 16)
    few, many = pairs(38, 16, seed), pairs(56, 16, seed)
    assert_stores(decide_rank(few, 4), few, 4)
    assert decide(StorageProblem.of(many))[0].status is Status.FEASIBLE
    decision = decide_rank(many, 4)
    assert decision.status is Status.UNKNOWN
    assert decision.margin_lower <= 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_rank_8_of_32_does_not_store_150_pairs(seed: int):
    """A full matrix stores 191. Not found is no proof, but 125 are found in every draw and 140 in none."""
    association = pairs(150, 32, seed)
    assert decide(StorageProblem.of(association))[0].status is Status.FEASIBLE
    assert decide_rank(association, 8).status is Status.UNKNOWN


def test_the_capacity_grows_with_the_rank():
    # Derived for d = 16: 30, 43, 57, 62 at rank 2, 4, 8, 16; 70 % of each is far enough below to be found.
    for rank in (2, 4, 8, 16):
        association = pairs(int(capacity(16, 16, rank=rank) * 0.7), 16)
        assert_stores(decide_rank(association, rank), association, rank)


@pytest.mark.parametrize(("d_in", "d_out"), [(24, 8), (8, 24)])
def test_keys_and_values_of_different_dimensions(d_in: int, d_out: int):
    association = AssociationStream(0, d_in, d_out).prefix(20)
    decision = decide_rank(association, 4)
    assert decision.W.shape == (d_out, d_in)
    assert_stores(decision, association, 4)


# Exact statements about small problems


@pytest.mark.parametrize(("d_in", "d_out"), [(5, 5), (4, 7), (7, 4)])
def test_no_rank_stores_more_than_a_full_matrix_by_a_linear_program(d_in: int, d_out: int):
    stream = AssociationStream(0, d_in, d_out)
    p_c = exact_capacity(stream, d_in, 5 * max(d_in, d_out))
    least = min(d_in, d_out)
    for rank in range(1, least + 1):
        for n in (p_c + 1, p_c + 3):
            assert decide_rank(stream.prefix(n), rank).status is not Status.FEASIBLE
    # The full rank stores what a full matrix does, up to pairs so near the capacity that a descent may not find them.
    assert_stores(decide_rank(stream.prefix(p_c - 2), least), stream.prefix(p_c - 2), least)


@pytest.mark.parametrize("seed", range(6))
def test_of_two_answers_rank_one_stores_what_any_matrix_does(seed: int):
    """Only (u_0 − u_1)ᵀ W matters, one row: all keys of one answer must be on one side of a plane through 0.

    In two dimensions the sides change at the angles where a key is orthogonal to the plane's normal: between two of
    them one angle stands for all, so that trying them is exact.
    """
    stream = AssociationStream(seed, 2, 2, n_answers=2)
    for n in (3, 4, 5):
        association = stream.prefix(n)
        signs = 1 - 2 * association.targets.double()
        cuts = (torch.atan2(association.keys[:, 1], association.keys[:, 0]).double() + torch.pi / 2) % torch.pi
        cuts = torch.cat([cuts, cuts + torch.pi]).sort().values
        angles = (cuts + torch.cat([cuts[1:], cuts[:1] + 2 * torch.pi])) / 2
        sides = association.keys.double() @ torch.stack([angles.cos(), angles.sin()])
        storable = bool((sides * signs[:, None] > 0).all(0).any())
        assert (decide_rank(association, 1).status is Status.FEASIBLE) is storable


def test_rank_one_cannot_tell_three_answers_apart_and_rank_two_can():
    """Scores u_yᵀ a bᵀ e are ordered by u_yᵀ a, forwards or backwards: the value in the middle never wins."""
    association = pairs(3, 6)
    assert decide(StorageProblem.of(association))[0].status is Status.FEASIBLE
    assert decide_rank(association, 1).status is Status.UNKNOWN
    assert_stores(decide_rank(association, 2), association, 2)


def test_keys_that_share_values():
    association = AssociationStream(0, 12, 12, n_answers=5).prefix(30)
    assert_stores(decide_rank(association, 4), association, 4)


def test_what_no_matrix_stores_is_infeasible_for_any_rank():
    decision = decide_rank(pairs(100, 16), 8, iterations=50)
    assert decision.status is Status.INFEASIBLE
    assert decision.margin_lower <= 0 < decision.margin_upper < 0.02


def test_a_contradiction_is_named():
    association = pairs(10, 8)
    keys = association.keys.clone()
    keys[7] = keys[3]
    decision = decide_rank(Association(keys, association.values, association.targets), 3, iterations=50)
    assert decision.status is Status.INFEASIBLE
    assert "keys 3 and 7" in decision.reason


@pytest.mark.parametrize("rank", [0, 9, -1])
def test_a_rank_that_no_such_matrix_has_is_refused_in_one_sentence(rank: int):
    association = AssociationStream(0, 12, 8).prefix(5)
    with pytest.raises(ValueError, match=f"^rank is {rank}, expected 1 to 8 for a 8 × 12 matrix$"):
        decide_rank(association, rank)


def test_the_same_question_has_the_same_answer():
    one, other = (decide_rank(pairs(40, 16), 4) for _ in range(2))
    assert torch.equal(one.W, other.W)
    assert one.iterations == other.iterations


@pytest.mark.parametrize("search", [decide_rank, maximise_margin_rank])
def test_the_matrix_that_is_given_has_the_margin_that_is_given(search: Any):
    """In float64, whatever the keys are: rounded to float32 a product of rank 3 has full rank."""
    association = pairs(24, 12)
    for given in (association, double(association)):
        decision = search(given, 3)
        assert decision.W.dtype is torch.float64
        assert_stores(decision, given, 3)
        assert decision.margin_lower == pytest.approx(margin_of(given, decision.W.numpy()), rel=1e-9)


# The largest margin of a rank


@pytest.mark.parametrize(("n", "d", "rank"), [(30, 16, 4), (90, 24, 12)])
def test_the_largest_margin_of_a_rank_is_above_that_of_the_first_matrix_found(n: int, d: int, rank: int):
    association = pairs(n, d)
    first, best = decide_rank(association, rank), maximise_margin_rank(association, rank, iterations=200)
    assert_stores(best, association, rank)
    assert best.margin_lower > first.margin_lower
    assert best.iterations > first.iterations
    if n > 3 * d:  # with fewer pairs the derived margin is too large, for full matrices too
        assert best.margin_lower > 0.7 * maximal_margin(n, d, d, rank=rank)


def test_at_full_rank_it_is_the_largest_margin_of_any_matrix():
    """The descent on whole matrices brackets it to 5 %, and this search is about as exact."""
    association = pairs(22, 10)
    full = maximise_margin(StorageProblem.of(association), iterations=3000)[0]
    best = maximise_margin_rank(association, 10, iterations=200)
    assert best.margin_lower <= full.margin_upper
    assert best.margin_lower == pytest.approx(full.margin_lower, rel=0.1)


@pytest.mark.parametrize("factors", [(100.0, 1.0), (1.0, 0.01)])
def test_the_margin_of_a_rank_does_not_depend_on_scales(factors: tuple[float, float]):
    association = double(pairs(12, 8))
    scaled, plain = (
        maximise_margin_rank(given, 3, iterations=100).margin_lower
        for given in (mapped(association, *factors), association)
    )
    assert scaled == pytest.approx(plain, rel=0.02)


def test_what_no_matrix_of_the_rank_is_found_to_store_has_no_margin():
    many = pairs(56, 16)
    assert maximise_margin_rank(many, 4).status is decide_rank(many, 4).status is Status.UNKNOWN
