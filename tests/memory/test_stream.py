"""A stream of random pairs is the same however it is asked."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toytf.memory import Association, AssociationStream, StorageProblem
from toytf.memory.stream import BLOCK, RowDistribution, grid


def assert_equal(one: Association, other: Association) -> None:
    assert torch.equal(one.keys, other.keys)
    assert torch.equal(one.values, other.values)
    assert torch.equal(one.targets, other.targets)


@pytest.mark.parametrize("distribution", ["sphere", "gaussian"])
@pytest.mark.parametrize("d", [1, 3, 16])
def test_the_first_pairs_do_not_depend_on_how_many_follow(distribution: RowDistribution, d: int):
    # n · d is often no multiple of 16, where torch.randn(n, d) is no prefix of a longer draw.
    longest = AssociationStream(0, d, d, distribution=distribution).prefix(2 * BLOCK + 5)
    for n in (0, 1, 7, BLOCK - 1, BLOCK, BLOCK + 1):
        fresh = AssociationStream(0, d, d, distribution=distribution).prefix(n)
        assert torch.equal(fresh.keys, longest.keys[:n])
        assert torch.equal(fresh.values, longest.values[:n])
        assert fresh.targets.tolist() == list(range(n))


@settings(max_examples=25)
@given(asked=st.lists(st.integers(0, 2 * BLOCK), min_size=1, max_size=5), own_rivals=st.booleans())
def test_what_was_asked_before_does_not_matter(asked: list[int], own_rivals: bool):
    used = AssociationStream(3, 4, 5, own_rivals=own_rivals)
    for n in asked:
        assert_equal(used.prefix(n), AssociationStream(3, 4, 5).prefix(n))


def test_an_answer_is_not_changed_by_later_questions():
    stream = AssociationStream(0, 4, 4)
    early = stream.prefix(10)
    before = early.keys.clone()
    stream.prefix(3 * BLOCK)
    assert torch.equal(early.keys, before)


def test_seeds_purposes_keys_and_values_are_independent():
    """A correlation of 16 · 200 normal entries has a standard error of 1/√3200 = .018; five of those are allowed."""
    draws = [
        rows.flatten()
        for seed, purpose in ((0, ""), (1, ""), (0, "draw 1"), (0, "draw 2"))
        for association in [AssociationStream(seed, 16, 16, distribution="gaussian", purpose=purpose).prefix(200)]
        for rows in (association.keys, association.values)
    ]
    correlations = torch.corrcoef(torch.stack(draws)) - torch.eye(len(draws))
    assert float(correlations.abs().max()) < 0.09


def test_blocks_of_one_stream_differ():
    keys = AssociationStream(0, 16, 16).prefix(2 * BLOCK).keys
    assert not torch.equal(keys[:BLOCK], keys[BLOCK:])
    assert len(keys.unique(dim=0)) == 2 * BLOCK


def test_vectors_on_the_sphere_have_norm_root_d():
    association = AssociationStream(0, 12, 20, distribution="sphere").prefix(300)
    torch.testing.assert_close(association.keys.norm(dim=1), torch.full((300,), math.sqrt(12)))
    torch.testing.assert_close(association.values.norm(dim=1), torch.full((300,), math.sqrt(20)))


def test_gaussian_rows_have_unit_variance_and_unequal_norms():
    keys = AssociationStream(0, 16, 16, distribution="gaussian").prefix(400).keys
    assert float(keys.square().mean()) == pytest.approx(1, abs=5 * math.sqrt(2 / 6400))
    # |e|²/d has variance 2/d.
    assert float((keys.square().sum(1) / 16).var()) == pytest.approx(2 / 16, rel=0.4)


def test_keys_and_values_may_have_different_dimensions():
    association = AssociationStream(0, 5, 7).prefix(11)
    assert association.keys.shape == (11, 5)
    assert association.values.shape == (11, 7)


def test_answers_are_taken_in_turn():
    stream = AssociationStream(0, 4, 4, n_answers=3)
    assert stream.prefix(8).targets.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert stream.prefix(8).values.shape == (3, 4)
    # All answers compete from the first key on, so that a longer prefix only adds keys.
    assert torch.equal(stream.prefix(2).values, stream.prefix(8).values)


def own_values(stream: AssociationStream, n: int) -> torch.Tensor:
    values: torch.Tensor = stream.problem(n).values
    return values[0]


def test_own_rivals_come_after_the_right_value():
    stream = AssociationStream(0, 5, 7, own_rivals=True)
    association, problem = stream.prefix(6), stream.problem(6)
    assert problem.own_values
    assert problem.values.shape == (1, 6, 6, 7)
    assert problem.targets.tolist() == [[0] * 6]
    assert torch.equal(problem.values[0, :, 0], association.values)
    assert torch.equal(problem.keys[0], association.keys)
    assert torch.equal(problem.right[0], association.values)


def test_own_rivals_belong_to_a_key_whatever_the_number_of_pairs():
    """A longer prefix only adds rivals and keys: whether it can be stored still changes once."""
    longer = own_values(AssociationStream(0, 5, 7, own_rivals=True), 30)
    shorter = own_values(AssociationStream(0, 5, 7, own_rivals=True), 12)
    assert torch.equal(shorter, longer[:12, :12])


def test_own_rivals_are_all_different_and_on_the_sphere():
    values = own_values(AssociationStream(0, 5, 7, own_rivals=True), 20).flatten(0, 1)
    assert len(values.unique(dim=0)) == 400
    torch.testing.assert_close(values.norm(dim=1), torch.full((400,), math.sqrt(7)))


def test_every_key_has_as_many_own_rivals_with_few_answers():
    stream = AssociationStream(0, 4, 4, n_answers=3, own_rivals=True)
    problem = stream.problem(5)
    assert problem.values.shape == (1, 5, 3, 4)
    assert torch.equal(problem.right[0], stream.prefix(5).values[stream.prefix(5).targets])


def test_a_shared_problem_is_that_of_its_prefix():
    stream = AssociationStream(0, 4, 4)
    one, other = stream.problem(9), StorageProblem.of(stream.prefix(9))
    assert torch.equal(one.keys, other.keys)
    assert torch.equal(one.values, other.values)
    assert one.rivals is None


# --- keys of two inputs


def test_the_first_squares_of_pairs_of_inputs_are_whole_grids():
    order = [tuple(pair) for pair in grid(100).tolist()]
    assert order[:9] == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1), (0, 2), (1, 2), (2, 2)]
    for k in range(1, 11):
        assert set(order[: k * k]) == {(x, y) for x in range(k) for y in range(k)}


@pytest.mark.parametrize("n_answers", [None, 5])
def test_the_first_pairs_of_inputs_do_not_depend_on_how_many_follow(n_answers: int | None):
    longest = AssociationStream(0, 3, 4, inputs=2, n_answers=n_answers).prefix(2 * BLOCK + 5)
    for n in (0, 1, 7, 16, BLOCK, BLOCK + 1):
        fresh = AssociationStream(0, 3, 4, inputs=2, n_answers=n_answers).prefix(n)
        assert torch.equal(fresh.keys, longest.keys[:n])
        assert torch.equal(fresh.targets, longest.targets[:n])
        assert torch.equal(fresh.values, longest.values[: len(fresh.values)])


def test_a_key_of_two_inputs_is_their_sum():
    """e_{1,1} = e_{1,0} + e_{0,1} − e_{0,0}, and |e|² is d on average, with a standard error of √(2/64) d/d."""
    keys = AssociationStream(0, 64, 64, inputs=2).prefix(64).keys
    torch.testing.assert_close(keys[3], keys[1] + keys[2] - keys[0])
    assert float(keys.square().sum(1).mean()) == pytest.approx(64, rel=0.1)


def test_the_answers_of_two_inputs_are_drawn():
    """640 draws of 5 answers: a count of 128 with a standard deviation of 10; four of them are allowed."""
    targets = AssociationStream(0, 3, 3, inputs=2, n_answers=5).prefix(640).targets
    assert (targets.bincount(minlength=5) - 128).abs().max() < 40
    assert targets.tolist() != [z % 5 for z in range(640)]
