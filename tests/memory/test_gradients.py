"""One gradient step is an associative memory: the two lemmas of Bietti et al. 2023, against autograd."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.constructions import hebbian
from toytf.memory.gradients import gradient_step, noisy_gradient_step
from toytf.randomness import generator

SEEDS = st.integers(0, 2**31)
PROPERTY = settings(max_examples=15)


def normal(seed: int, purpose: str, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, purpose), dtype=torch.float64)


def random_association(seed: int, n: int = 20, m: int = 15, d_in: int = 7, d_out: int = 5) -> Association:
    """Weighted keys, and a last value that no key has."""
    return Association(
        normal(seed, "e", n, d_in),
        normal(seed, "u", m, d_out),
        torch.randint(m - 1, (n,), generator=generator(seed, "targets")),
        weights=torch.rand(n, generator=generator(seed, "weights"), dtype=torch.float64) + 0.1,
    )


def random_conditional(seed: int, n: int = 20, m: int = 15) -> Tensor:
    return normal(seed, "conditional", n, m).softmax(1)


def one_hot(association: Association) -> Tensor:
    return torch.nn.functional.one_hot(association.targets, len(association.values)).to(association.keys)


def autograd(association: Association, W: Tensor, conditional: Tensor) -> Tensor:
    """∇L of L(W) = −Σ_z p(z) Σ_y p(y|z) log p̂_W(y|z)."""
    W = W.clone().requires_grad_()
    log_p = association.scores(W).log_softmax(1)
    n = len(association.keys)
    weights = torch.full((n,), 1 / n).to(W) if association.weights is None else association.weights
    entropies = -torch.where(conditional > 0, conditional * log_p, 0).sum(1)
    loss = (weights * entropies).sum() / weights.sum()
    (gradient,) = torch.autograd.grad(loss, W)
    return gradient


def assert_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


# Lemma 1


@PROPERTY
@given(seed=SEEDS)
def test_the_gradient_of_any_conditional_is_that_of_autograd(seed: int):
    a, W, conditional = random_association(seed), normal(seed, "W", 5, 7), random_conditional(seed)
    assert_equal(gradient_step(a, W, lr=0.3, conditional=conditional), W - 0.3 * autograd(a, W, conditional))


@PROPERTY
@given(seed=SEEDS)
def test_targets_are_certain_without_a_conditional(seed: int):
    a, W = random_association(seed), normal(seed, "W", 5, 7)
    assert_equal(gradient_step(a, W), W - autograd(a, W, one_hot(a)))


def test_keys_are_equally_frequent_without_weights():
    a, W, conditional = random_association(0), normal(0, "W", 5, 7), random_conditional(0)
    unweighted = Association(a.keys, a.values, a.targets)
    assert_equal(gradient_step(unweighted, W, conditional=conditional), W - autograd(unweighted, W, conditional))
    uniform = Association(a.keys, a.values, a.targets, weights=torch.full((20,), 3.0, dtype=torch.float64))
    assert_equal(
        gradient_step(unweighted, W, conditional=conditional), gradient_step(uniform, W, conditional=conditional)
    )


def test_values_that_may_not_compete_have_no_probability():
    a, W = random_association(1), normal(1, "W", 5, 7)
    candidates = torch.rand(20, 15, generator=generator(1, "candidates")) < 0.5
    restricted = Association(a.keys, a.values, a.targets, a.weights, candidates | one_hot(a).bool())
    found = gradient_step(restricted, W)
    assert_equal(found, W - autograd(restricted, W, one_hot(a)))
    assert not torch.allclose(found, gradient_step(a, W))


def test_a_step_without_a_start_is_a_step_from_zero():
    a = random_association(2)
    zero = torch.zeros(5, 7, dtype=torch.float64)
    assert torch.equal(gradient_step(a), gradient_step(a, zero))
    assert torch.equal(noisy_gradient_step(a), noisy_gradient_step(a, zero))


def test_a_step_leaves_its_start_alone():
    a, W = random_association(3), normal(3, "W", 5, 7)
    before = W.clone()
    gradient_step(a, W)
    noisy_gradient_step(a, W)
    assert torch.equal(W, before)


def test_nothing_is_learnt_where_the_conditional_is_the_belief():
    a, W = random_association(4), normal(4, "W", 5, 7)
    assert_equal(gradient_step(a, W, lr=100.0, conditional=a.scores(W).softmax(1)), W)


@PROPERTY
@given(seed=SEEDS)
def test_the_first_step_is_hebbian_minus_the_mean_value(seed: int):
    """N W_1 / η = Σ_z (u_{f(z)} − ū) e_zᵀ from W = 0 with uniform keys."""
    a = random_association(seed)
    a = Association(a.keys, a.values, a.targets)
    expected = hebbian(a) - torch.outer(a.values.mean(0), a.keys.sum(0))
    assert_equal(20 * gradient_step(a), expected)


def test_the_first_step_scores_one_hot_minus_uniform_if_orthonormal():
    """u_yᵀ W_1 e_z = (η/N) (1{f(z) = y} − 1/N), exactly."""
    N = 16
    a = Association(torch.eye(N), torch.eye(N), torch.randperm(N, generator=generator(0)))
    expected = 3.0 / N * (one_hot(a) - 1 / N)
    torch.testing.assert_close(a.scores(gradient_step(a, lr=3.0)), expected)


def test_the_first_step_scores_nearly_the_same_if_random():
    N, d = 64, 1024
    e, u = (normal(0, name, N, d) / math.sqrt(d) for name in "eu")
    a = Association(e, u, torch.randperm(N, generator=generator(0)))
    W = gradient_step(a, lr=5.0)
    errors = N / 5.0 * a.scores(W) - (one_hot(a) - 1 / N)
    # Overlaps of variance 1/d of the keys and of the values, and N / d² from all pairs together: off the diagonal
    # √(2/d + N/d²) = .045; on it |e|² |u|² fluctuates by √(4/d) = .0625.
    assert float(errors.std()) == pytest.approx(0.045, rel=0.1)
    assert float(errors.abs().max()) < 0.35
    assert float(a.recall(W)) == 1


# Lemma 2


def test_the_gradient_by_class_means_is_that_of_autograd_on_500_inputs():
    a = random_association(0, n=500)
    for W in (torch.zeros(5, 7, dtype=torch.float64), normal(0, "W", 5, 7)):
        assert_equal(noisy_gradient_step(a, W, lr=0.7), W - 0.7 * autograd(a, W, one_hot(a)))


@PROPERTY
@given(seed=SEEDS)
def test_both_lemmas_give_one_gradient(seed: int):
    a, W = random_association(seed), normal(seed, "W", 5, 7)
    assert_equal(noisy_gradient_step(a, W), gradient_step(a, W))


def test_a_class_without_inputs_is_unlearnt_along_its_mean_belief():
    a, W = random_association(5), normal(5, "W", 5, 7)
    belief, p = a.scores(W).softmax(1), a.weights / a.weights.sum()
    means = {}
    for k in range(15):
        p_k = float(p[a.targets == k].sum())
        claimed = ((p * belief[:, k])[:, None] * a.keys).sum(0)
        if p_k == 0:
            means[k] = claimed
        else:
            mu = (p[:, None] * a.keys)[a.targets == k].sum(0) / p_k
            means[k] = p_k * (claimed / p_k - mu)
    assert not bool((a.targets == 14).any())
    expected = W - sum(torch.outer(a.values[k], mean) for k, mean in means.items())
    assert_equal(noisy_gradient_step(a, W), expected)


@pytest.mark.parametrize(("d", "diag_std", "off_std"), [(128, 0.22, 0.17), (512, 0.11, 0.08), (2048, 0.05, 0.04)])
def test_noise_that_does_not_depend_on_the_class_cancels(d: int, diag_std: float, off_std: float):
    """x = e_y + p_t: u_kᵀ W_1 x ≈ (η/N) (1{y = k} − 1/N), with errors of order 1/√d."""
    N, T = 64, 32
    e, u, p = (
        torch.randn(n, d, generator=generator(0, name)) / math.sqrt(d) for n, name in ((N, "e"), (N, "u"), (T, "p"))
    )
    x = (e[:, None] + p).reshape(N * T, d)
    a = Association(x, u, torch.arange(N).repeat_interleave(T))
    W = noisy_gradient_step(a, lr=2.0)
    scores, right = N / 2.0 * a.scores(W), one_hot(a).bool()
    # The 64 right scores are those of 64 pairs (e_y, u_y), so their mean has standard error diag_std / 8 and their
    # spread an error of diag_std / √128; the wrong ones are many.
    assert float(scores[right].mean()) == pytest.approx(0.99, abs=0.01 + 3 * diag_std / 8)
    assert float(scores[right].std()) == pytest.approx(diag_std, rel=0.25)
    assert float(scores[~right].mean()) == pytest.approx(-1 / N, abs=0.004)
    assert float(scores[~right].std()) == pytest.approx(off_std, rel=0.1)
    assert float(a.recall(W)) >= 0.99
