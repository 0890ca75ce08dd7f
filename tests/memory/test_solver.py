"""Whether a matrix can store an association: the solver against exact oracles, its own certificates, and the theory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog, nnls

from toytf.memory import (
    Association,
    AssociationStream,
    Decision,
    Status,
    StorageProblem,
    decide,
    hebbian,
    max_margin,
    maximise_margin,
)
from toytf.memory.descent import DescentResult, descend
from toytf.memory.measures import measure_scores
from toytf.memory.search import bisect, run_together
from toytf.memory.stream import RowDistribution
from toytf.randomness import generator
from toytf.theory import maximal_margin

Matrix = NDArray[np.float64]

FEASIBLE, INFEASIBLE, UNKNOWN = Status.FEASIBLE, Status.INFEASIBLE, Status.UNKNOWN
DISTRIBUTIONS: tuple[RowDistribution, ...] = ("sphere", "gaussian")


def pairs(n: int, d: int, seed: int = 0, distribution: RowDistribution = "sphere") -> Association:
    return AssociationStream(seed, d, d, distribution=distribution).prefix(n)


def decide_one(association: Association, **options: float) -> Decision:
    return decide(StorageProblem.of(association), **options)[0]


def score_measures(association: Association, memory: torch.Tensor) -> dict[object, float]:
    """What `measure_scores` finds, by measure."""
    return {found.quantity.at["measure"]: found.value for found in measure_scores(association, memory)}


def decide_prefixes(
    n: int, d: int, seeds: Sequence[int], distribution: RowDistribution = "sphere", own_rivals: bool = False
) -> set[Status]:
    """The statuses that occur among the first n pairs of several streams."""
    streams = [AssociationStream(seed, d, d, distribution=distribution, own_rivals=own_rivals) for seed in seeds]
    return {decision.status for decision in decide(StorageProblem.stack([stream.problem(n) for stream in streams]))}


def double(association: Association) -> Association:
    return Association(
        association.keys.double(), association.values.double(), association.targets, candidates=association.candidates
    )


def mapped(association: Association, A: torch.Tensor | float = 1.0, B: torch.Tensor | float = 1.0) -> Association:
    """The same association with keys e A and values u B; a number scales."""
    keys = association.keys @ A if isinstance(A, torch.Tensor) else association.keys * A
    values = association.values @ B if isinstance(B, torch.Tensor) else association.values * B
    return Association(keys, values, association.targets)


# Oracles that share no code with the solver


def inequalities(association: Association) -> Matrix:
    """One row (u_{f(z)} − u_y) e_zᵀ, flattened, for every key z and every rival y: a gap is its product with W."""
    keys, values = association.keys.double().numpy(), association.values.double().numpy()
    rows = [
        np.outer(values[target] - values[y], keys[z]).ravel()
        for z, target in enumerate(association.targets.tolist())
        for y in range(len(values))
        if y != target and (association.candidates is None or bool(association.candidates[z, y]))
    ]
    return np.array(rows).reshape(len(rows), keys.shape[1] * values.shape[1])


def unit(association: Association) -> float:
    """The product of the root mean squares of the coordinates of keys and values: margins are in its multiples."""
    return math.prod(float(rows.double().square().mean().sqrt()) for rows in (association.keys, association.values))


def margin_of(association: Association, W: Matrix) -> float:
    """min gap / ‖W‖_F, in the units that the solver reports."""
    return float((inequalities(association) @ W.ravel()).min() / np.linalg.norm(W) / unit(association))


def box_optimum(rows: Matrix) -> tuple[Matrix, float]:
    """The W with the largest smallest gap t among those with |W_ij| ≤ 1, and t: a linear program, solved exactly."""
    k, size = rows.shape
    solved = linprog(
        np.r_[np.zeros(size), -1.0],
        A_ub=np.c_[-rows, np.ones(k)],
        b_ub=np.zeros(k),
        bounds=[(-1, 1)] * size + [(None, None)],
        method="highs",
    )
    assert solved.status == 0
    return solved.x[:-1], float(solved.x[-1])


def largest_margin(association: Association) -> float:
    """κ* = max_{‖W‖ ≤ 1} min gap = the distance of 0 from the convex hull of the inequalities; 0 if nothing stores.

    With x ≥ 0 that minimises |Σ x_i a_i|² + c² (1 − Σ x_i)², x / Σ x is the nearest point of the hull, whatever c is.
    """
    rows = inequalities(association) / unit(association)
    c = np.linalg.norm(rows, axis=1).mean()
    x, _ = nnls(np.r_[rows.T, np.full((1, len(rows)), c)], np.r_[np.zeros(rows.shape[1]), c], maxiter=50 * len(rows))
    return float(np.linalg.norm(x @ rows) / x.sum())


def exact_capacity(stream: AssociationStream, low: int, high: int) -> int:
    """The largest n whose first n pairs can be stored, given that low can and high cannot."""
    while high - low > 1:
        n = (low + high) // 2
        _, t = box_optimum(inequalities(stream.prefix(n)))
        low, high = (n, high) if t > 1e-9 else (low, n)
    return low


ORACLE_SIZES = [(6, 0), (6, 1), (6, 2), (8, 0), (8, 1), (8, 3)]


@pytest.mark.parametrize(("d", "seed"), ORACLE_SIZES)
def test_the_solver_finds_the_capacity_of_a_linear_program(d: int, seed: int):
    stream, tolerance = AssociationStream(seed, d, d), 1e-3
    p_c = exact_capacity(stream, d, 5 * d)
    around = range(p_c - 5, p_c + 6)
    decisions = decide(StorageProblem.stack([stream.problem(n) for n in around]), tolerance=tolerance, iterations=4000)
    for n, decision in zip(around, decisions, strict=True):
        if n > p_c:
            assert decision.status is not FEASIBLE
        elif decision.status is not FEASIBLE:
            # INFEASIBLE only where no matrix has a margin above the tolerance. That refers to whitened vectors; at
            # these sizes a margin differs from that of the vectors as given by a factor of up to 2. UNKNOWN only where
            # the margin is so tiny that float32 cannot tell.
            allowed = 2 * tolerance if decision.status is INFEASIBLE else 5 * tolerance
            assert largest_margin(stream.prefix(n)) < allowed
    assert decisions[-1].status is INFEASIBLE


@pytest.mark.parametrize(("d", "seed"), [(6, 1), (8, 0)])
def test_the_upper_bound_is_close_to_the_margin_of_a_linear_program(d: int, seed: int):
    # The linear program maximises the gap in a box, not in a ball, and so loses up to a third. A factor 2 forgotten in
    # the bound would put the ratio below .5 or above 1.
    stream = AssociationStream(seed, d, d)
    association = stream.prefix(exact_capacity(stream, d, 5 * d))
    W, _ = box_optimum(inequalities(association))
    decision = maximise_margin(StorageProblem.of(association), iterations=1000)[0]
    assert 0.6 <= margin_of(association, W) / decision.margin_upper <= 1


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize(("n", "d", "seed"), [(8, 6, 0), (12, 8, 2)])
def test_the_bracket_of_the_largest_margin_contains_it(n: int, d: int, seed: int, distribution: RowDistribution):
    association = pairs(n, d, seed, distribution)
    decision = maximise_margin(StorageProblem.of(association), iterations=600)[0]
    exact = largest_margin(association)
    # The oracle and the re-check are float64; W was found in float32 but any W gives a valid bound.
    assert decision.margin_lower <= exact * (1 + 1e-9)
    assert decision.margin_upper >= exact * (1 - 1e-9)
    # So few vectors are not what the weight of the norm is tuned for: 600 steps leave up to 9 %.
    assert decision.margin_lower >= 0.9 * decision.margin_upper


@dataclass(frozen=True)
class Small:
    """A random association of any shape; keys share values, some values nobody wants, some rivals may not compete."""

    seed: int
    n: int
    m: int
    d_in: int
    d_out: int
    masked: bool
    dtype: torch.dtype

    def drawn(self) -> Association:
        numbers = generator(self.seed, "small")
        keys = torch.randn(self.n, self.d_in, generator=numbers, dtype=self.dtype)
        values = torch.randn(self.m, self.d_out, generator=numbers, dtype=self.dtype)
        targets = torch.randint(self.m, (self.n,), generator=numbers)
        allowed = (torch.rand(self.n, self.m, generator=numbers) < 0.7).scatter(1, targets[:, None], True)
        return Association(keys, values, targets, candidates=allowed if self.masked else None)


SMALL = st.builds(
    Small,
    seed=st.integers(0, 2**31),
    n=st.integers(1, 10),
    m=st.integers(1, 6),
    d_in=st.integers(1, 4),
    d_out=st.integers(1, 4),
    masked=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)


def assert_consistent(decision: Decision, association: Association, tolerance: float) -> None:
    """The bracket contains the largest margin, and the status says no more than is true."""
    if not len(rows := inequalities(association)):
        assert decision.status is FEASIBLE
        assert decision.margin_lower == decision.margin_upper == math.inf
        return
    exact = largest_margin(association)
    rounding = 1e-9 * np.linalg.norm(rows, axis=1).max() / unit(association)
    assert decision.margin_lower <= decision.margin_upper * (1 + 1e-12)
    assert decision.margin_lower <= exact + rounding
    assert decision.margin_upper >= exact - rounding
    if decision.status is FEASIBLE:
        W = decision.W.double().numpy()
        assert (rows @ W.ravel()).min() > 0
        # W is handed out in the dtype of the keys; the margin refers to it up to that rounding.
        assert margin_of(association, W) == pytest.approx(decision.margin_lower, abs=1e-4)
    if decision.status is INFEASIBLE:
        # The tolerance refers to whitened vectors: with so few of them coordinates differ by an order of magnitude.
        assert exact < 10 * tolerance


@settings(max_examples=100)
@given(small=SMALL, iterations=st.sampled_from([1, 5, 400]), whiten=st.booleans())
def test_any_decision_is_consistent_with_the_exact_margin(small: Small, iterations: int, whiten: bool):
    decision = decide(StorageProblem.of(small.drawn()), iterations=iterations, whiten=whiten)[0]
    assert_consistent(decision, small.drawn(), tolerance=0.01)


@settings(max_examples=10)
@given(small=SMALL)
def test_any_margin_bracket_contains_the_exact_margin(small: Small):
    decision = maximise_margin(StorageProblem.of(small.drawn()), iterations=100)[0]
    assert_consistent(decision, small.drawn(), tolerance=0.01)


def test_every_status_occurs():
    assert decide_one(pairs(50, 16)).status is FEASIBLE
    assert decide_one(pairs(80, 16)).status is INFEASIBLE
    assert decide_one(pairs(66, 16), iterations=20).status is UNKNOWN


# What can be stored


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("d", [4, 16, 32])
def test_as_many_pairs_as_dimensions_are_always_stored(d: int, distribution: RowDistribution):
    """Independent keys can be mapped anywhere: at d = 16, 32 and 64 in 700 of 700 draws."""
    for n in sorted({1, 2, d // 2, d - 1, d}):
        assert decide_prefixes(n, d, range(8), distribution) == {FEASIBLE}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize(("n", "status"), [(170, FEASIBLE), (215, INFEASIBLE)])
def test_far_from_capacity_everything_is_decided(n: int, status: Status, distribution: RowDistribution):
    # d = 32: the capacity is 191 on the sphere, 185 for Gaussian rows, and differs by 4 from stream to stream.
    assert decide_prefixes(n, 32, range(5), distribution) == {status}


@pytest.mark.parametrize(("n", "status"), [(50, FEASIBLE), (80, INFEASIBLE)])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_decoupled_model_has_the_same_two_phases(n: int, status: Status, distribution: RowDistribution):
    # d = 16: 64.9 ± 2.8 on the sphere, 61.2 ± 2.8 for Gaussian rows.
    assert decide_prefixes(n, 16, range(5), distribution, own_rivals=True) == {status}


@pytest.mark.parametrize(("n", "d", "distribution"), [(62, 16, "sphere"), (60, 16, "gaussian"), (172, 32, "sphere")])
def test_a_feasible_matrix_recalls_every_pair_in_exact_arithmetic(n: int, d: int, distribution: RowDistribution):
    # Near capacity some streams are full: these n are at least one standard deviation (2.8 at d = 16, 4 at 32) below
    # the mean capacity, so that fewer than two of three feasible ones have a chance of 1 in 20 or less.
    decided = [
        (association, decide_one(association)) for association in (pairs(n, d, seed, distribution) for seed in range(3))
    ]
    feasible = [(association, decision) for association, decision in decided if decision.status is FEASIBLE]
    assert len(feasible) >= 2
    for association, decision in feasible:
        scores = association.keys.double() @ decision.W.double().T @ association.values.double().T
        rivals = scores.masked_fill(torch.eye(n, dtype=torch.bool), -torch.inf).amax(1)
        assert bool((scores.diag() > rivals).all())
        assert float((scores.diag() - rivals).min() / decision.W.double().norm()) / unit(association) == pytest.approx(
            decision.margin_lower, rel=0.01, abs=1e-5
        )


@pytest.mark.parametrize("own_rivals", [False, True])
def test_fewer_pairs_are_not_infeasible_if_more_are_stored(own_rivals: bool):
    # The first matrix that stores the pairs has a margin far below the largest: a tolerance of 0.01 is above most.
    tolerance, range_of_n = 1e-3, range(52, 78, 2)
    for seed in range(2):
        stream = AssociationStream(seed, 16, 16, own_rivals=own_rivals)
        decisions = decide(StorageProblem.stack([stream.problem(n) for n in range_of_n]), tolerance=tolerance)
        stored = [i for i, more in enumerate(decisions) if more.margin_lower >= tolerance]
        assert stored[-1] > 0  # 54 pairs are four standard deviations below the capacity of 65
        assert all(fewer.status is not INFEASIBLE for fewer in decisions[: stored[-1]])
        assert decisions[-1].status is INFEASIBLE  # 76 are four above


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


# Scales, batches and chunks


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


# Edges


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


def with_equal_keys(first: int, second: int, same_target: bool = False) -> Association:
    association = pairs(10, 16)
    keys, targets = association.keys.clone(), association.targets.clone()
    keys[second] = keys[first]
    if same_target:
        targets[second] = targets[first]
    return Association(keys, association.values, targets)


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


# Scores and margins of what is found


def test_the_scores_of_the_optimum_are_narrow_and_those_of_the_hebbian_rule_broad():
    """d = 48 at 94 % of capacity: narrow scores near the cut of the rivals against broad ones.

    Giorlandino, Goldt, Maillard 2026 describe both. Derived: 2.13 ± .24 for the optimum at capacity, lower and broader
    for the first matrix found below it; d/√p ± 1 = 2.58 ± 1 for the Hebbian rule. Eight draws lay within 1.92–2.06
    and .26–.32.
    """
    for seed in range(3):
        association = pairs(345, 48, seed)
        decision = decide_one(association)
        assert decision.status is FEASIBLE
        optimum = score_measures(association, decision.W)
        assert 1.8 <= optimum["correct_mean"] <= 2.15
        assert optimum["correct_spread"] < 0.36
        by_hebbian = score_measures(association, hebbian(association))
        assert 2.45 <= by_hebbian["correct_mean"] <= 2.75
        assert by_hebbian["correct_spread"] > 0.87


@pytest.mark.parametrize(("n", "d"), [(280, 48), (140, 32)])
def test_the_largest_margin_near_capacity_is_the_derived_one(n: int, d: int):
    # δ_κ(p) = d²/p is exact for d → ∞; at these sizes single draws lie within 15 %.
    decision = maximise_margin(StorageProblem.of(pairs(n, d)))[0]
    assert decision.status is FEASIBLE
    assert 0.95 * decision.margin_upper <= decision.margin_lower <= decision.margin_upper
    assert decision.margin_lower == pytest.approx(maximal_margin(n, d, d), rel=0.15)


def test_the_derived_margin_is_too_large_far_below_capacity():
    """It assumes p ≫ d: 15 to 20 % too much at p = 2 d."""
    decision = maximise_margin(StorageProblem.of(pairs(70, 32)), iterations=500)[0]
    assert 0.75 < decision.margin_upper / maximal_margin(70, 32, 32) < 0.9


def test_orthogonal_pairs_have_the_margin_d_over_root_n_minus_one():
    """W = Σ_z (u_z − ū) e_zᵀ has n equal gaps, and the hull of the inequalities is no nearer to 0."""
    n, d = 5, 32
    e, u = (
        math.sqrt(d) * torch.linalg.qr(torch.randn(d, n, generator=generator(0, side), dtype=torch.float64))[0].T
        for side in ("e", "u")
    )
    association = Association(e, u, torch.arange(n))
    decision = maximise_margin(StorageProblem.of(association))[0]
    assert decision.margin_lower <= d / math.sqrt(n - 1) * (1 + 1e-9)
    assert decision.margin_upper >= d / math.sqrt(n - 1) * (1 - 1e-9)
    expected = (u - u.mean(0)).T @ e
    cosine = float((max_margin(association) * expected).sum() / expected.norm())
    assert cosine == pytest.approx(1, abs=0.02)  # margins within 2 % of the best


def test_max_margin_is_of_unit_norm_and_beats_the_first_feasible_matrix():
    association = pairs(60, 24)
    W = max_margin(association, iterations=400)
    assert float(W.norm()) == pytest.approx(1, abs=1e-5)
    first = decide_one(association)
    assert margin_of(association, W.double().numpy()) > 2 * first.margin_lower > 0


TINY_MARGINS = [(6, 5, 17, 200), (8, 3, 26, 200), pytest.param(8, 2, 23, 1500, marks=pytest.mark.slow)]
"""d, seed, the capacity by the linear program, and steps; the largest margins are .0036, .0029 and .0005."""


@pytest.mark.parametrize(("d", "seed", "n", "iterations"), TINY_MARGINS)
def test_storable_pairs_are_stored_even_if_the_margin_is_tiny(d: int, seed: int, n: int, iterations: int):
    association = pairs(n, d, seed)
    exact = largest_margin(association)
    assert 0 < exact < 0.01
    decision = maximise_margin(StorageProblem.of(association), iterations=iterations)[0]
    assert decision.status is FEASIBLE
    # Half of the upper bound in whitened coordinates; at these sizes those differ by a factor of up to 2.
    assert exact / 4 <= decision.margin_lower <= exact * (1 + 1e-9)
    assert decision.margin_upper >= exact * (1 - 1e-9)
    W = max_margin(association, iterations=iterations)
    assert float(association.recall(W)) == 1
    assert margin_of(association, W.double().numpy()) == pytest.approx(decision.margin_lower, rel=0.01)


def test_in_a_batch_only_what_was_missed_is_looked_for_again(monkeypatch: pytest.MonkeyPatch):
    """Easily stored, missed at first, not storable, contradictory: all but the second stay as they were, to the bit."""
    contradictory = pairs(12, 6, 1)
    contradictory.keys[3] = contradictory.keys[7]
    problem = StorageProblem.of(pairs(14, 6, 4), pairs(17, 6, 5), pairs(30, 6, 0), contradictory)
    together = maximise_margin(problem, iterations=200)
    monkeypatch.setattr("toytf.memory.solver._stored_if_any", lambda problem, decisions, iterations: decisions)
    before = maximise_margin(problem, iterations=200)
    assert [decision.status for decision in before] == [FEASIBLE, UNKNOWN, UNKNOWN, INFEASIBLE]
    assert [decision.status for decision in together] == [FEASIBLE, FEASIBLE, UNKNOWN, INFEASIBLE]
    assert before[1].margin_lower < 0 < together[1].margin_lower <= largest_margin(pairs(17, 6, 5))
    assert together[1].W.dtype is torch.float32
    for b in (0, 2, 3):
        assert torch.equal(together[b].W, before[b].W)
        assert (together[b].margin_lower, together[b].margin_upper) == (before[b].margin_lower, before[b].margin_upper)
        assert together[b].iterations == before[b].iterations


@pytest.mark.parametrize("storable", [True, False])
def test_nothing_is_looked_for_again_where_it_is_stored_or_contradictory(
    storable: bool, monkeypatch: pytest.MonkeyPatch
):
    descents: list[StorageProblem] = []

    def counted(problem: StorageProblem, **options: Any) -> DescentResult:
        descents.append(problem)
        return descend(problem, **options)

    monkeypatch.setattr("toytf.memory.solver.descend", counted)
    decision = maximise_margin(StorageProblem.of(pairs(10, 16) if storable else with_equal_keys(3, 7)), iterations=50)
    assert decision[0].status is (FEASIBLE if storable else INFEASIBLE)
    assert len(descents) == 1


# Capacity


def capacities(
    distribution: RowDistribution, seeds: Sequence[int], *, own_rivals: bool = False, iterations: int = 250
) -> list[float]:
    """The capacity of each stream: the middle between what is stored and what is not, or the p that is left open."""
    streams = {
        seed: AssociationStream(seed, 16, 16, distribution=distribution, own_rivals=own_rivals) for seed in seeds
    }

    def ask(questions: dict[int, int]) -> dict[int, Status]:
        problem = StorageProblem.stack([streams[seed].problem(n) for seed, n in questions.items()])
        decisions = decide(problem, iterations=iterations)
        return {seed: decision.status for seed, decision in zip(questions, decisions, strict=True)}

    found = run_together({seed: bisect(65.0, 0.01) for seed in seeds}, ask)
    return [found[seed].estimate for seed in seeds]


def test_the_capacity_at_d_16_is_the_measured_one():
    """p_c = 65.4 on the sphere, 63.1 for Gaussian rows, 64.9 decoupled on the sphere; sd over streams 2.8.

    Means over 20 streams have a standard error of .6, their difference .9: windows of three of those and more.
    With 250 steps instead of 400 more streams are left open, which lowers a mean by .2. The derived value is 61.6.
    """
    sphere = np.mean(capacities("sphere", range(20)))
    assert 63.4 <= sphere <= 67.4
    assert 61 <= np.mean(capacities("gaussian", range(20))) <= 65.2
    assert abs(sphere - np.mean(capacities("sphere", range(20), own_rivals=True))) < 3.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("distribution", "own_rivals", "expected"),
    [("sphere", False, 65.4), ("gaussian", False, 63.1), ("sphere", True, 64.9), ("gaussian", True, 61.2)],
)
def test_the_four_capacities_at_d_16(distribution: RowDistribution, own_rivals: bool, expected: float):
    # 100 streams: standard error .28, and .2 to .3 in the expected value itself.
    found = capacities(distribution, range(100), own_rivals=own_rivals, iterations=400)
    assert np.mean(found) == pytest.approx(expected, abs=1)


def test_values_that_are_tiny_are_not_called_equal():
    """Undecided after one step at any scale: only rows that are the same to the last bit contradict each other."""
    pairs = AssociationStream(0, 8, 8).prefix(20)
    for scale in (1.0, 1e-14):
        tiny = Association(pairs.keys.double(), scale * pairs.values.double(), pairs.targets)
        decision = decide(StorageProblem.of(tiny), iterations=1)[0]
        assert (decision.status, decision.reason) == (Status.UNKNOWN, "")
