"""The certificates of the solver, feasible or not, against exact oracles on few pairs."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.problems import (
    DISTRIBUTIONS,
    FEASIBLE,
    INFEASIBLE,
    UNKNOWN,
    box_optimum,
    exact_capacity,
    inequalities,
    largest_margin,
    margin_of,
    pairs,
    unit,
)
from toytf.memory import Association, AssociationStream, Decision, StorageProblem, decide, maximise_margin
from toytf.memory.stream import RowDistribution
from toytf.randomness import generator

ORACLE_SIZES = [
    *((d, d, None, seed) for d, seed in ((6, 0), (6, 1), (6, 2), (8, 0), (8, 1), (8, 3))),
    *((d_in, d_out, None, seed) for d_in, d_out in ((5, 9), (9, 5)) for seed in (0, 1)),
    *((7, 6, n_answers, seed) for n_answers in (3, 5) for seed in (0, 1)),
]
"""d_in, d_out, the number of answers (None: as many as pairs), and the seed."""


@pytest.mark.parametrize(("d_in", "d_out", "n_answers", "seed"), ORACLE_SIZES)
def test_the_solver_finds_the_capacity_of_a_linear_program(d_in: int, d_out: int, n_answers: int | None, seed: int):
    stream, tolerance = AssociationStream(seed, d_in, d_out, n_answers=n_answers), 1e-3
    p_c = exact_capacity(stream, d_in, 5 * max(d_in, d_out))
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


@pytest.mark.parametrize(("n_answers", "n"), [(2, 16), (3, 19), (4, 22)])
def test_a_few_shared_answers_are_decided_as_by_a_linear_program(n_answers: int, n: int):
    """Near capacity at d = 8, where n δ(V) = d (V − 1): about half of 64 streams are stored, and none is left open.

    An answer may differ from that of the linear program only where the margin is below the tolerance.
    """
    d, tolerance = 8, 1e-3
    streams = [AssociationStream(seed, d, d, n_answers=n_answers) for seed in range(64)]
    problem = StorageProblem.stack([stream.problem(n) for stream in streams])
    storable = 0
    for stream, decision in zip(streams, decide(problem, tolerance=tolerance, iterations=4000), strict=True):
        _, t = box_optimum(inequalities(stream.prefix(n)))
        storable += t > 1e-9
        if t <= 1e-9:
            assert decision.status is INFEASIBLE
        elif decision.status is not FEASIBLE:
            assert largest_margin(stream.prefix(n)) < 2 * tolerance  # in whitened coordinates up to twice as large
    # Two answers: exactly half on average (Cover), with a standard error of 4 over 64 streams. The others: capacities
    # vary by some pairs, and those of this size are above the formula by up to 8 %.
    assert storable == pytest.approx(32, abs=12)


def test_only_a_descent_that_took_all_its_steps_leaves_a_question_open():
    """Rounding in float32 hides a bound that is just above the tolerance: 5 of these 64 descents end too early."""
    streams = [AssociationStream(seed, 8, 8) for seed in range(64)]
    problem = StorageProblem.stack([stream.problem(24) for stream in streams])
    decisions = decide(problem, tolerance=1e-3, iterations=1000)
    assert all(decision.iterations >= 1000 for decision in decisions if decision.status is UNKNOWN)
    assert sum(decision.status is INFEASIBLE for decision in decisions) > 16  # the mean capacity is 23.7 ± 1.5


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


# Associations of any shape


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
