"""What an Association says about any matrix, and what the Hebbian rule stores."""

import math
from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from toytf.memory import Association, hebbian
from toytf.randomness import generator

# A 3-key, 2-value example small enough to work by hand: W e_z is column z of W.
KEYS = torch.eye(3)
VALUES = torch.eye(2)
W = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 1.0]])
"""Key 0 answers value 0 by 2, key 1 answers value 1 by 3, key 2 ties."""


def by_hand(**changes: object) -> Association:
    parts: dict[str, object] = {"keys": KEYS, "values": VALUES, "targets": torch.tensor([0, 1, 0])}
    return Association(**(parts | changes))


def random_association(seed: int, n: int = 12, m: int = 9, d_in: int = 6, d_out: int = 5) -> Association:
    draw = generator(seed, "association")
    return Association(
        torch.randn(n, d_in, generator=draw, dtype=torch.float64),
        torch.randn(m, d_out, generator=draw, dtype=torch.float64),
        torch.randint(m, (n,), generator=draw),
        weights=torch.rand(n, generator=draw, dtype=torch.float64),
    )


def random_matrix(seed: int, d_out: int = 5, d_in: int = 6) -> torch.Tensor:
    return torch.randn(d_out, d_in, generator=generator(seed, "W"), dtype=torch.float64)


def rotation(seed: int, d: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(d, d, generator=generator(seed, "rotation", d), dtype=torch.float64))[0]


def on_sphere(n: int, d: int, seed: int, purpose: str) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(n, d, generator=generator(seed, purpose)), dim=1)


def injective(n: int, d: int, seed: int) -> Association:
    """n pairs z → z of independent unit vectors."""
    return Association(on_sphere(n, d, seed, "e"), on_sphere(n, d, seed, "u"), torch.arange(n))


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Users run without the shape checks of the tests, and should get the project's own sentence."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


# What it measures, by hand


def test_scores_are_u_W_e():
    assert torch.equal(by_hand().scores(W), torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]]))


def test_scores_equal_the_double_loop():
    association, W = random_association(0), random_matrix(0)
    expected = [[float(u @ (W @ e)) for u in association.values] for e in association.keys]
    torch.testing.assert_close(association.scores(W), torch.tensor(expected, dtype=torch.float64))


def test_a_function_is_read_like_the_matrix_it_computes():
    association, W = random_association(1), random_matrix(1)
    torch.testing.assert_close(association.scores(lambda x: x @ W.T), association.scores(W))


def test_margins_are_right_minus_best_rival():
    assert by_hand().margins(W).tolist() == [2.0, 3.0, 0.0]
    assert by_hand(targets=torch.tensor([1, 1, 0])).margins(W).tolist() == [-2.0, 3.0, 0.0]


def test_ties_are_not_recalled():
    assert by_hand().recalled(W).tolist() == [True, True, False]
    assert by_hand().recall(torch.zeros(2, 3)) == 0


def test_recall_is_the_fraction_of_pairs():
    assert float(by_hand().recall(W)) == pytest.approx(2 / 3)


def test_weighted_recall_is_the_fraction_of_occurrences():
    # Keys 0 and 1 are recalled: (1 + 2) / (1 + 2 + 5).
    weighted = by_hand(weights=torch.tensor([1.0, 2.0, 5.0]))
    assert float(weighted.recall(W, weighted=True)) == pytest.approx(3 / 8)
    assert float(weighted.recall(W)) == pytest.approx(2 / 3)


def test_the_scale_of_the_weights_does_not_matter():
    weights = torch.tensor([1.0, 2.0, 5.0])
    once, thrice = (by_hand(weights=c * weights).recall(W, weighted=True) for c in (1, 3))
    assert float(once) == pytest.approx(float(thrice))


def test_weighted_recall_without_weights_is_refused():
    with pytest.raises(ValueError, match="weights"):
        by_hand().recall(W, weighted=True)


def test_only_candidates_compete():
    # Key 0 has target 1, which loses to value 0 unless value 0 may not compete.
    alone = torch.tensor([[False, True], [True, True], [True, True]])
    targets = torch.tensor([1, 1, 0])
    assert by_hand(targets=targets).recalled(W).tolist() == [False, True, False]
    restricted = by_hand(targets=targets, candidates=alone)
    assert restricted.recalled(W).tolist() == [True, True, False]
    assert restricted.scores(W)[0].tolist() == [-math.inf, 0.0]


def test_chance_is_one_over_the_number_of_candidates():
    assert by_hand().chance == 1 / 2
    assert random_association(0, m=9).chance == pytest.approx(1 / 9)
    # One, two and two candidates: (1 + 1/2 + 1/2) / 3.
    candidates = torch.tensor([[True, False], [True, True], [True, True]])
    assert by_hand(candidates=candidates).chance == pytest.approx(2 / 3)


def test_chance_is_what_random_matrices_recall():
    # Fresh keys, values and W for each of 400 draws make the values exchangeable, so the expectation is exactly 1/m;
    # the pairs of one draw are correlated, so the standard error is that of the 400 means.
    recalls = torch.stack([random_association(seed).recall(random_matrix(seed)) for seed in range(400)])
    assert abs(float(recalls.mean()) - random_association(0).chance) < 4 * float(recalls.std()) / 20


def test_failures_name_the_pairs_worst_first():
    wrong = by_hand(targets=torch.tensor([1, 0, 0]), key_names=("a", "b", "c"), value_names=("x", "y"))
    # Margins −2, −3, 0; the tie of c is answered by the first of the tied values.
    assert wrong.failures(W) == ["b → y, should be x", "a → x, should be y", "c → x, should be x"]
    assert wrong.failures(W, limit=1) == ["b → y, should be x"]


def test_failures_number_what_has_no_name():
    assert by_hand(targets=torch.tensor([0, 0, 0])).failures(W)[0] == "1 → 1, should be 0"


def test_nothing_fails_in_a_perfect_memory():
    association = by_hand(targets=torch.tensor([0, 1, 1]))
    assert association.failures(W + torch.tensor([[0.0, 0, 0], [0, 0, 1]])) == []


def test_a_single_value_has_no_rival_and_is_always_recalled():
    single = Association(KEYS, VALUES[:1], torch.zeros(3, dtype=torch.long))
    assert single.chance == 1
    assert single.margins(W).tolist() == [math.inf] * 3
    assert float(single.recall(W)) == 1


@pytest.mark.parametrize(
    ("field", "value", "got", "expected"),
    [
        ("targets", torch.tensor([0, 1]), 2, 3),
        ("weights", torch.ones(4), 4, 3),
        ("key_names", ("a", "b"), 2, 3),
        ("value_names", ("x", "y", "z"), 3, 2),
    ],
)
def test_wrong_lengths_say_expected_and_got(field: str, value: object, got: int, expected: int, unchecked_shapes: None):
    with pytest.raises(ValueError, match=rf"{field} has {got} entries, expected {expected}"):
        by_hand(**{field: value})


# Invariants

SEEDS = st.integers(0, 2**31)
PROPERTY = settings(max_examples=25, deadline=None, derandomize=True)


@PROPERTY
@given(seed=SEEDS, exponent=st.floats(-6, 6))
def test_recall_does_not_depend_on_the_scale_of_W(seed: int, exponent: float):
    association, W = random_association(seed), random_matrix(seed)
    assert torch.equal(association.recalled(10**exponent * W), association.recalled(W))


@PROPERTY
@given(seed=SEEDS)
def test_margins_do_not_depend_on_a_joint_rotation(seed: int):
    association, W = random_association(seed), random_matrix(seed)
    R_in, R_out = rotation(seed, 6), rotation(seed, 5)
    rotated = Association(association.keys @ R_in.T, association.values @ R_out.T, association.targets)
    torch.testing.assert_close(rotated.margins(R_out @ W @ R_in.T), association.margins(W))
    assert torch.equal(rotated.recalled(R_out @ W @ R_in.T), association.recalled(W))


@PROPERTY
@given(seed=SEEDS)
def test_the_order_of_pairs_does_not_matter(seed: int):
    a, W = random_association(seed), random_matrix(seed)
    order = torch.randperm(len(a.keys), generator=generator(seed, "order"))
    shuffled = Association(a.keys[order], a.values, a.targets[order], a.weights[order])
    torch.testing.assert_close(shuffled.margins(W), a.margins(W)[order])
    torch.testing.assert_close(shuffled.recall(W, weighted=True), a.recall(W, weighted=True))


@PROPERTY
@given(seed=SEEDS)
def test_the_order_of_values_does_not_matter(seed: int):
    a, W = random_association(seed), random_matrix(seed)
    order = torch.randperm(len(a.values), generator=generator(seed, "order"))
    relabelled = Association(a.keys, a.values[order], order.argsort()[a.targets])
    torch.testing.assert_close(relabelled.margins(W), a.margins(W))


@PROPERTY
@given(seed=SEEDS)
def test_scores_are_linear_in_W(seed: int):
    a, V, W = random_association(seed), random_matrix(seed), random_matrix(seed + 1)
    torch.testing.assert_close(a.scores(2 * V - W), 2 * a.scores(V) - a.scores(W))


# The Hebbian rule


def test_hebbian_is_the_sum_of_outer_products():
    a = random_association(3)
    expected = sum(torch.outer(a.values[y], e) for e, y in zip(a.keys, a.targets.tolist(), strict=True))
    torch.testing.assert_close(hebbian(a), expected)


@PROPERTY
@given(seed=SEEDS)
def test_hebbian_is_exact_on_orthonormal_keys(seed: int):
    """W e_z = u_{f(z)} when e_zᵀ e_z' = δ; unit values then give every pair the score 1 and beat every other value."""
    keys = rotation(seed, 8)[:6]
    values = torch.nn.functional.normalize(random_matrix(seed, 10, 5), dim=1)
    targets = torch.randint(10, (6,), generator=generator(seed, "targets"))
    association = Association(keys, values, targets)
    W = hebbian(association)
    torch.testing.assert_close(keys @ W.T, values[targets])
    assert float(association.recall(W)) == 1


def capacity(d: int) -> float:
    """Injective pairs that the Hebbian rule recalls without an error: d² / (8 ln d²)."""
    return d**2 / (8 * math.log(d**2))


def expected_hebbian_recall(n: int, d: int) -> float:
    """E[Φ((1 + s x) / r)^(n−1)]: the right score is 1 + s x, the n−1 wrong ones have spread r, x normal.

    s² = (n−1)/d² from the other pairs; r² = (n−2)/d² + 2/d, where 2/d are u_y·u_{f(z)} and e_z·e_{f⁻¹(y)}.
    """
    s, r = math.sqrt((n - 1) / d**2), math.sqrt((n - 2) / d**2 + 2 / d)
    return integrate.quad(lambda x: stats.norm.pdf(x) * stats.norm.cdf((1 + s * x) / r) ** (n - 1), -8, 8)[0]


def test_hebbian_recall_falls_past_its_capacity():
    d = 128  # capacity 211
    for seed in range(5):
        # At a quarter of the capacity a pair fails with probability n (1 − Φ(1/√(s² + r²))) < 1e-11.
        below = injective(int(capacity(d) / 4), d, seed)
        assert float(below.recall(hebbian(below))) == 1
        # At four times the capacity the Gaussian prediction is .76, with a standard error of .015 over 844 pairs.
        above = injective(int(4 * capacity(d)), d, seed)
        assert float(above.recall(hebbian(above))) < 0.9


@pytest.mark.parametrize("load", [1, 2, 4, 8])
def test_hebbian_recall_is_the_gaussian_prediction(load: int):
    d = 128
    n = int(load * capacity(d))
    recalls = torch.stack([a.recall(hebbian(a)) for a in (injective(n, d, seed) for seed in range(4))])
    # Standard error at most √(.25 / 4n) = .009 where recall is near one half. The n scores of a key are taken as
    # independent though they live in d dimensions, an effect of order 1/√d = .09 of the part lost: .06 in all.
    assert float(recalls.mean()) == pytest.approx(expected_hebbian_recall(n, d), abs=0.06)
