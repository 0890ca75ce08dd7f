"""What each one-shot rule writes into a matrix, and how much of it can be read back."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.constructions import bi_whitened, hebbian, low_rank, pseudo_inverse, ridge
from toytf.randomness import generator

Rule = Callable[[Association], Tensor]

RULES: dict[str, Rule] = {
    "hebbian": hebbian,
    "pseudo_inverse": pseudo_inverse,
    "ridge": ridge,
    "bi_whitened": bi_whitened,
    "low_rank": lambda association: low_rank(association, 4, generator(0, "low rank")),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)

SEEDS = st.integers(0, 2**31)
PROPERTY = settings(max_examples=15)


def on_sphere(n: int, d: int, seed: int, purpose: str) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(n, d, generator=generator(seed, purpose)), dim=1)


def injective(n: int, d: int, seed: int) -> Association:
    """n pairs z → z of independent unit vectors."""
    return Association(on_sphere(n, d, seed, "e"), on_sphere(n, d, seed, "u"), torch.arange(n))


def modulo(n: int, m: int, d: int, seed: int) -> Association:
    """n pairs z → z mod m of independent unit vectors."""
    return Association(on_sphere(n, d, seed, "e"), on_sphere(m, d, seed, "u"), torch.arange(n) % m)


def random_association(seed: int, n: int = 12, m: int = 9, d_in: int = 6, d_out: int = 5) -> Association:
    """Several keys for one value, and values that no key has."""
    draw = generator(seed, "association")
    keys = torch.randn(n, d_in, generator=draw, dtype=torch.float64)
    values = torch.randn(m, d_out, generator=draw, dtype=torch.float64)
    return Association(keys, values, torch.randint(m - 1, (n,), generator=draw))


def rotation(seed: int, d: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, generator=generator(seed, "rotation", d), dtype=torch.float64))[0]


def mean_recall(rule: Rule, n: int, d: int, seeds: int = 4) -> float:
    associations = [injective(n, d, seed) for seed in range(seeds)]
    return sum(float(a.recall(rule(a))) for a in associations) / seeds


# What each rule is


@pytest.mark.parametrize("n", [4, 6, 12])
def test_pseudo_inverse_is_the_smallest_least_squares_solution(n: int):
    a = random_association(0, n=n)
    expected = torch.linalg.lstsq(a.keys, a.values[a.targets], driver="gelsd").solution.T
    torch.testing.assert_close(pseudo_inverse(a), expected)


@pytest.mark.parametrize("n", [4, 12])
def test_ridge_is_the_normal_equation(n: int):
    a = random_association(1, n=n)
    X, gram = a.keys, a.keys.T @ a.keys
    penalty = 0.1 * torch.trace(gram) / 6 * torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(ridge(a, 0.1), a.values[a.targets].T @ X @ torch.linalg.inv(gram + penalty))


@PROPERTY
@given(seed=SEEDS)
def test_ridge_goes_from_pseudo_inverse_to_hebbian(seed: int):
    a = random_association(seed)
    torch.testing.assert_close(ridge(a, 1e-12), pseudo_inverse(a), rtol=1e-6, atol=1e-6)
    # W λ → hebbian, with λ = strength · tr(XᵀX) / d_in.
    penalty = 1e9 * float(a.keys.square().sum()) / 6
    torch.testing.assert_close(penalty * ridge(a, 1e9), hebbian(a), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("n", "m"), [(12, 9), (4, 9), (12, 3), (4, 3)])
def test_bi_whitened_is_least_squares_to_one_hot_scores(n: int, m: int):
    a = random_association(2, n=n, m=m)
    # u_yᵀ W e_z = (u_y ⊗ e_z) · vec W: one linear equation for every key and value.
    system = torch.einsum("zi,yo->zyoi", a.keys, a.values).reshape(n * m, 30)
    one_hot = torch.nn.functional.one_hot(a.targets, m).double().reshape(-1, 1)
    expected = torch.linalg.lstsq(system, one_hot, driver="gelsd").solution.reshape(5, 6)
    torch.testing.assert_close(bi_whitened(a), expected)


def test_bi_whitened_is_hebbian_between_whitened_keys_and_values():
    a = random_association(3)
    expected = torch.linalg.inv(a.values.T @ a.values) @ hebbian(a) @ torch.linalg.inv(a.keys.T @ a.keys)
    torch.testing.assert_close(bi_whitened(a), expected)


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_low_rank_has_that_rank(rank: int):
    assert int(torch.linalg.matrix_rank(low_rank(random_association(4), rank, generator(0)))) == rank


def test_low_rank_is_hebbian_on_average():
    # E[W_1ᵀ W_1] = I; its entries have variance at most 2/rank, so a mean of 500 has standard error .028 at rank 5.
    a = Association(torch.eye(6), torch.eye(5), torch.arange(6) % 5)
    draw = generator(0, "low rank")
    mean = sum(low_rank(a, 5, draw) for _ in range(500)) / 500
    torch.testing.assert_close(mean, hebbian(a), rtol=0, atol=5 * 0.028)


@pytest.mark.parametrize("rank", [0, 40])
def test_a_rank_that_does_not_fit_is_refused(rank: int):
    with pytest.raises(ValueError, match=rf"^rank is {rank}, expected 1 to 32 for a 32 × 32 matrix$"):
        low_rank(injective(8, 32, 0), rank, generator(0))


@pytest.mark.parametrize("strength", [0.0, -1.0, float("nan")])
def test_a_ridge_that_is_not_positive_is_refused(strength: float):
    with pytest.raises(ValueError, match=rf"ridge strength = {strength:g} .*above 0"):
        ridge(injective(8, 32, 0), strength)


@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_rule_keeps_the_dtype_of_the_keys(rule: Rule, dtype: torch.dtype):
    a = random_association(5)
    W = rule(Association(a.keys.to(dtype), a.values.to(dtype), a.targets))
    assert (W.dtype, W.shape) == (dtype, (5, 6))


# Invariants


@every_rule
@PROPERTY
@given(seed=SEEDS, exponent=st.integers(-20, 20))
def test_recall_does_not_depend_on_the_scale_of_the_keys(rule: Rule, seed: int, exponent: int):
    # Powers of two are exact, so no near-tie is decided by rounding.
    a = random_association(seed)
    scaled = Association(2.0**exponent * a.keys, a.values, a.targets)
    assert torch.equal(scaled.recalled(rule(scaled)), a.recalled(rule(a)))


@every_rule
@PROPERTY
@given(seed=SEEDS)
def test_a_rotation_of_the_keys_rotates_the_matrix(rule: Rule, seed: int):
    a, R = random_association(seed), rotation(seed, 6)
    torch.testing.assert_close(rule(Association(a.keys @ R.T, a.values, a.targets)), rule(a) @ R.T)


@pytest.mark.parametrize("name", ["hebbian", "pseudo_inverse", "ridge", "bi_whitened"])
@PROPERTY
@given(seed=SEEDS)
def test_a_rotation_of_the_values_rotates_the_matrix(name: str, seed: int):
    # Not low_rank: its random directions do not turn with the values.
    a, R, rule = random_association(seed), rotation(seed, 5), RULES[name]
    torch.testing.assert_close(rule(Association(a.keys, a.values @ R.T, a.targets)), R @ rule(a))


@every_rule
@PROPERTY
@given(seed=SEEDS)
def test_the_order_of_the_pairs_does_not_matter(rule: Rule, seed: int):
    a = random_association(seed)
    order = torch.randperm(len(a.keys), generator=generator(seed, "order"))
    torch.testing.assert_close(rule(Association(a.keys[order], a.values, a.targets[order])), rule(a))


@PROPERTY
@given(seed=SEEDS)
def test_bi_whitened_scores_do_not_depend_on_linear_maps(seed: int):
    a, A, B = random_association(seed), rotation(seed, 6), rotation(seed, 5)
    A, B = A * torch.linspace(0.5, 2, 6), B * torch.linspace(3, 0.1, 5)
    mapped = Association(a.keys @ A.T, a.values @ B.T, a.targets)
    torch.testing.assert_close(mapped.scores(bi_whitened(mapped)), a.scores(bi_whitened(a)))


# How much each rule stores


@pytest.mark.parametrize("scale", [1.0, 8.0])
@pytest.mark.parametrize("n", [1, 16, 48, 64])
def test_pseudo_inverse_stores_any_n_up_to_d_exactly(n: int, scale: float):
    d = 64
    for seed in range(3):
        a = injective(n, d, seed)
        a = Association(scale * a.keys, scale * a.values, a.targets)
        W = pseudo_inverse(a)
        # At n = d the smallest singular value of the keys is about 1/d of the largest: float32 loses that factor.
        torch.testing.assert_close(a.keys @ W.T, a.values, rtol=0, atol=1e-4 * scale)
        assert float(a.recall(W)) == 1


def test_keys_that_differ_by_rounding_are_one_key():
    a = injective(8, 16, 0)
    twice = Association(torch.cat([a.keys, a.keys * (1 + 1e-7)]), a.values, torch.arange(16) % 8)
    torch.testing.assert_close(pseudo_inverse(twice), pseudo_inverse(a), rtol=0, atol=1e-4)


def test_hebbian_stores_80_of_80_but_not_300_pairs_at_d_64():
    # Over many draws 1.0 at 80, and .63 … .70 at 300, where one draw has a standard error of .03.
    assert mean_recall(hebbian, 80, 64, seeds=1) >= 0.98
    assert 0.55 <= mean_recall(hebbian, 300, 64, seeds=1) <= 0.78


@pytest.mark.parametrize(("d", "n"), [(64, 60), (128, 120)])
def test_hebbian_loses_pairs_of_two_values_where_it_stores_injective_ones(d: int, n: int):
    # Every other key adds ± e_z·e_z' to the difference of the two scores: noise of variance n/d rather than n/d²,
    # against a signal of 1. Φ(√(d/n)) = .85, with a standard error of .05 or .03 for one draw.
    for seed in range(3):
        two, many = modulo(n, 2, d, seed), injective(n, d, seed)
        assert float(many.recall(hebbian(many))) == 1
        assert 0.7 < float(two.recall(hebbian(two))) < 0.95


@pytest.mark.parametrize(("d", "n"), [(64, 12), (128, 25)])
def test_hebbian_stores_a_fifth_of_d_pairs_of_two_values(d: int, n: int):
    # The largest n with 99% recall; a pair fails with probability Φ(−√(d/n)) = .01, one of 12 or 25 is .08 or .04.
    recalls = [float(a.recall(hebbian(a))) for a in (modulo(n, 2, d, seed) for seed in range(16))]
    assert sum(recalls) / 16 >= 0.97


def test_whitening_stores_what_hebbian_does_not_at_d_32():
    # All-recalled in half of the draws: hebbian 33 pairs, ridge 59, bi-whitened 68 (p log p / d² = .112, .235, .279).
    n, d = 60, 32
    stored = {name: mean_recall(RULES[name], n, d, seeds=8) for name in ("hebbian", "ridge", "bi_whitened")}
    assert stored["hebbian"] < 0.92
    assert stored["ridge"] > 0.97
    assert stored["bi_whitened"] > 0.99
    assert stored["hebbian"] < stored["ridge"] < stored["bi_whitened"]


def test_low_rank_needs_a_rank_of_log_n_and_stores_rank_times_d():
    # d = 128: 99% recall up to 94 pairs at rank 64, 32 at rank 32, 5 at rank 16.
    def recall(rank: int, n: int) -> float:
        return mean_recall(lambda a: low_rank(a, rank, generator(0, "low rank")), n, 128)

    assert recall(64, 60) >= 0.98
    assert recall(32, 32) >= 0.97
    assert recall(16, 5) >= 0.97
    assert recall(16, 60) < 0.9
    assert recall(4, 60) < 0.4
