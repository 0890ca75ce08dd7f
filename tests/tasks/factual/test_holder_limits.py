"""How many facts the values of tokens can hold, by certificates on random vectors against the predicted limits."""

import math
from dataclasses import replace

import pytest
import torch

from tasks.factual.holders import set_limits
from toytf.memory import Association, Status, StorageProblem, decide, settle
from toytf.memory.limits import matrix_limits
from toytf.randomness import generator
from toytf.theory import selector_capacity, statistical_dimension


def facts(S: int, R: int, D: int, d: int, seed: int) -> Association:
    """S subjects have an answer among D under each of R relations: s → a*(s, r) among A_r."""
    random = generator(seed, "facts")
    phi, u = torch.randn(S, d, generator=random), torch.randn(R * D, d, generator=random)
    s, r = torch.cartesian_prod(torch.arange(S), torch.arange(R)).unbind(1)
    targets = D * r + torch.randint(D, (S * R,), generator=random)
    return Association(phi[s], u, targets, candidates=r[:, None] == torch.arange(R * D) // D)


def of_subject(together: Association, s: int, R: int) -> Association:
    own = slice(s * R, (s + 1) * R)
    assert together.candidates is not None
    return replace(
        together, keys=together.keys[own], targets=together.targets[own], candidates=together.candidates[own]
    )


def sets(n_own: int, n_others: int, d: int, seed: int) -> Association:
    """One relation with answers of its own, and others."""
    u = torch.randn(n_own + n_others, d, generator=generator(seed, "sets"))
    own = torch.eye(n_own, dtype=torch.bool)
    candidates = torch.cat([own, torch.ones(n_own, n_others, dtype=torch.bool)], 1)
    key = torch.ones(n_own, d) / d**0.5
    return Association(key, u, torch.arange(n_own), candidates=candidates)


def stored(*associations: Association) -> float:
    """The fraction of problems that some matrix stores; none is left undecided."""
    problems = [StorageProblem.of(association) for association in associations]
    decided = zip(problems, decide(StorageProblem.stack(problems), iterations=3000), strict=True)
    found = [(settle(one, known) if known.status is Status.UNKNOWN else known).status for one, known in decided]
    assert Status.UNKNOWN not in found
    return sum(status is Status.FEASIBLE for status in found) / len(found)


def halfway(sizes: list[int], fractions: list[float]) -> float:
    """Where the fraction stored is 1/2, from its sum over sizes: Σ (1 if all are stored, 0 if none) counts them."""
    step = sizes[1] - sizes[0]
    assert fractions[0] >= 0.9
    assert fractions[-1] <= 0.1
    return sizes[0] - step / 2 + step * sum(fractions)


def test_each_subject_holds_as_many_facts_as_dimensions_allow() -> None:
    """p δ(D) = S d for S ≤ d: 14.7 facts of 4 answers at d = 16, 40 draws; standard error .3, tolerance 10 %.

    Keys of S ≤ d subjects are independent, so that every subject has a vector of its own to find: S problems.
    """
    d, D, sizes = 16, 4, [*range(6, 26, 2)]
    limit = 16 / statistical_dimension(D).value
    assert matrix_limits(facts(8, 10, D, d, 0)).at_values == pytest.approx(8 * limit)  # type: ignore[union-attr]
    measured = halfway(sizes, [stored(*(facts(1, R, D, d, seed) for seed in range(40))) for R in sizes])
    assert measured == pytest.approx(limit, rel=0.1)


def test_a_matrix_stores_the_facts_of_few_subjects_if_it_stores_those_of_each() -> None:
    """So that with S = 8 at d = 16 all fit up to some 11 relations only: the least of 8 numbers around 14.7."""
    R, outcomes = 11, set()
    for seed in range(10):
        together = facts(8, R, 4, 16, seed)
        alone = stored(*(of_subject(together, s, R) for s in range(8)))
        assert stored(together) == float(alone == 1)
        outcomes.add(alone == 1)
    assert outcomes == {True, False}


def test_many_subjects_share_the_dimensions_of_the_matrix() -> None:
    """p δ(D) = d² for S > d: 29.5 subjects with 8 facts of 4 answers at d = 16; 10 draws have the standard error .5."""
    d, D, R, sizes = 16, 4, 8, [*range(20, 42, 2)]
    limit = d * d / (R * statistical_dimension(D).value)
    assert matrix_limits(facts(30, R, D, d, 0)).at_values == pytest.approx(R * limit)  # type: ignore[union-attr]
    measured = halfway(sizes, [stored(*(facts(S, R, D, d, seed) for seed in range(10))) for S in sizes])
    assert measured == pytest.approx(limit, rel=0.1)


def test_answers_of_a_relation_that_do_not_compete_are_a_selector() -> None:
    """F(p, n) = d: 18.7 answers above 60 others at d = 32; p δ(n + 1) = d, where each has rivals of its own, gives 7.7.

    20 draws have the standard error .5, and a threshold that may move adds about 1 to the prediction: within 15 %.
    """
    sizes = [*range(8, 40, 3)]
    limits, of_any = set_limits(sets(8, 60, 32, 0), None), matrix_limits(sets(8, 60, 32, 0))
    assert limits is not None
    assert of_any is not None
    measured = halfway(sizes, [stored(*(sets(p, 60, 32, seed) for seed in range(20))) for p in sizes])
    assert measured == pytest.approx(limits.at_values, rel=0.15)
    assert of_any.at_values < measured / 2
    twice = Association(
        torch.eye(2).repeat_interleave(8, 0), torch.randn(76, 32, generator=generator(0, "values")), torch.arange(16),
        candidates=torch.cat([torch.eye(16, dtype=torch.bool), torch.ones(16, 60, dtype=torch.bool)], 1),
    )  # fmt: skip
    assert set_limits(twice, None).at_values == pytest.approx(2 * limits.at_values)  # type: ignore[union-attr]


def test_hardly_any_others_are_no_limit() -> None:
    """e^{d/2n} would be 10³²⁵."""
    assert selector_capacity(1500, 1) == math.inf
    assert selector_capacity(64, 2) < math.inf
