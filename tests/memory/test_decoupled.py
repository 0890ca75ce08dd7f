"""Pairs whose keys have rivals of their own: stored like others, read against other rivals."""

import math

import pytest
import torch

from toytf.memory import AssociationStream, StorageProblem, hebbian, maximise_margin
from toytf.memory.decoupled import DecoupledAssociation
from toytf.memory.measures import measure_scores
from toytf.theory import hebbian_scores


@pytest.mark.parametrize("n_answers", [None, 3])
def test_every_key_is_scored_against_its_right_value_and_its_own_rivals(n_answers: int | None) -> None:
    pairs = AssociationStream(0, 5, 7, n_answers=n_answers).decoupled(6)
    W = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    scores, m = pairs.scores(W), len(pairs.values)
    assert scores.shape == (6, m)
    for z, f in enumerate(pairs.targets.tolist()):
        output = W @ pairs.keys[z]
        own = [float(rival @ output) for rival in pairs.rivals[z]]
        assert [*own[:f], float(pairs.values[f] @ output), *own[f:]] == pytest.approx(scores[z].tolist(), rel=1e-5)


def test_its_inequalities_are_those_of_its_margins() -> None:
    pairs = AssociationStream(0, 5, 7).decoupled(9)
    problem, W = StorageProblem.of(pairs), hebbian(pairs)
    assert problem.own_values
    torch.testing.assert_close(problem.margins(problem.outputs(W[None]))[0], pairs.margins(W))
    torch.testing.assert_close(AssociationStream(0, 5, 7, own_rivals=True).problem(9).values, problem.values)


def test_keys_and_right_values_are_those_of_the_original_model() -> None:
    stream = AssociationStream(0, 5, 7)
    own, shared = stream.decoupled(9), stream.prefix(9)
    assert torch.equal(hebbian(own), hebbian(shared))
    assert own.chance == shared.chance
    assert not torch.allclose(own.scores(hebbian(own)), shared.scores(hebbian(own)))


def test_a_callable_memory_is_read_as_a_matrix_is() -> None:
    pairs = AssociationStream(0, 5, 7).decoupled(9)
    W = hebbian(pairs)
    torch.testing.assert_close(pairs.scores(lambda keys: keys @ W.T), pairs.scores(W))


def test_the_hebbian_rivals_spread_less_than_shared_ones() -> None:
    """√(1 + d/p) in place of √(1 + 2d/p): 1.067 and 1.131 at d = 48, p = 345. Variances of draws fluctuate by 3 %, so
    the mean spread of 4 has a standard error of 0.75 %, of which two are allowed."""
    found = []
    for seed in range(4):
        pairs = AssociationStream(seed, 48, 48).decoupled(345)
        measured = {m.quantity.at["measure"]: m.value for m in measure_scores(pairs, hebbian(pairs))}
        found.append(measured["rival_spread"])
    expected = hebbian_scores(345, 48, 48, shared=False).rival_spread
    assert expected == pytest.approx(math.sqrt(1 + 48 / 345))
    assert sum(found) / 4 == pytest.approx(expected, rel=0.015)


def test_the_largest_margin_stores_against_own_rivals() -> None:
    pairs = AssociationStream(0, 12, 12).decoupled(30)  # capacity 40
    decision = maximise_margin(StorageProblem.of(pairs))[0]
    assert float(pairs.recall(decision.W)) == 1
    assert float(pairs.margins(decision.W).min() / decision.W.norm()) == pytest.approx(decision.margin_lower, rel=1e-3)


def test_missing_rivals_and_candidates_are_refused() -> None:
    pairs = AssociationStream(0, 5, 7).decoupled(4)
    with pytest.raises(ValueError, match=r"rivals are \(4, 2\), expected 3 for each of 4 keys"):
        DecoupledAssociation(pairs.keys, pairs.values, pairs.targets, rivals=pairs.rivals[:, 1:])
    with pytest.raises(ValueError, match="has no candidates"):
        DecoupledAssociation(
            pairs.keys, pairs.values, pairs.targets, None, torch.ones(4, 4, dtype=torch.bool), rivals=pairs.rivals
        )


def test_no_pair_and_one_pair_have_no_rivals() -> None:
    for n in (0, 1):
        pairs = AssociationStream(0, 5, 7).decoupled(n)
        assert pairs.rivals.shape == (n, 0, 7)
        assert pairs.scores(torch.ones(7, 5)).shape == (n, n)
