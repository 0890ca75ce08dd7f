"""The largest eigenvalue of the Hessian: against autograd, and at the start of the two-token figure."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from toytf import theory
from toytf.memory import Association, Particles, sharpness_of, sharpnesses
from toytf.memory.sharpness import largest_eigenvalue
from toytf.randomness import generator

PROPERTY = settings(max_examples=20)


def normal(seed: int, purpose: str, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, purpose), dtype=torch.float64)


def tokens(seed: int, n: int, m: int, d_in: int, d_out: int) -> Association:
    weights = torch.as_tensor(theory.zipf(n, 1.0))
    return Association(normal(seed, "e", n, d_in), normal(seed, "u", m, d_out), torch.arange(n) % m, weights)


def pair(a: float, p1: float) -> Association:
    keys = torch.tensor([[1, 0], [a, math.sqrt(1 - a**2)]], dtype=torch.float64)
    return Association(
        keys, torch.eye(2, dtype=torch.float64), torch.arange(2), torch.tensor([p1, 1 - p1], dtype=torch.float64)
    )


def by_autograd(association: Association, W: Tensor) -> float:
    """λ_max of the dense Hessian of the weighted cross-entropy."""

    def loss(flat: Tensor) -> Tensor:
        log_p = association.scores(flat.reshape(W.shape)).log_softmax(1)
        assert association.weights is not None
        return -(association.weights * log_p.gather(1, association.targets[:, None])[:, 0]).sum()

    H = torch.autograd.functional.hessian(loss, W.flatten())
    assert isinstance(H, Tensor)
    return float(torch.linalg.eigvalsh(H)[-1])


@PROPERTY
@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(2, 6), st.integers(1, 5), st.integers(1, 4))
def test_it_is_that_of_autograd_at_any_matrix(seed: int, n: int, m: int, d_in: int, d_out: int) -> None:
    association, W = tokens(seed, n, m, d_in, d_out), normal(seed, "W", d_out, d_in)
    assert sharpness_of(association, W) == pytest.approx(by_autograd(association, W), rel=1e-5, abs=1e-12)


def test_many_directions_need_few_products() -> None:
    association = tokens(0, 40, 12, 30, 30)
    W = normal(0, "W", 30, 30) / 30
    few = sharpnesses(Particles.of([association], [W]))
    all_of_them = sharpnesses(Particles.of([association], [W]), iterations=900)
    assert float(few) == pytest.approx(float(all_of_them), rel=1e-8)


@PROPERTY
@given(st.floats(-1, 1), st.floats(0.01, 0.99))
def test_it_is_the_formula_for_two_tokens_at_the_start(a: float, p1: float) -> None:
    assert sharpness_of(pair(a, p1), torch.zeros(2, 2).double()) == pytest.approx(
        theory.pair_sharpness(a, p1), abs=1e-7
    )


def test_the_spike_figure_starts_far_beyond_the_edge_of_stability_and_settles_below() -> None:
    """η λ / 2 at η = 10: 2.45 .07 2.33 .24 2.18 .02 1.09 1.96 by a separate simulation, and 0.47 at step 34."""
    particles, found = Particles.of([pair(0.95, 0.75)]), []
    for _ in range(35):
        found.append(10 * float(sharpnesses(particles)) / 2)
        particles = particles.stepped(torch.tensor([10.0], dtype=torch.float64))
    assert found[0] == pytest.approx(2.453, abs=6e-4)
    assert found[:8] == pytest.approx([2.45, 0.07, 2.33, 0.24, 2.18, 0.02, 1.09, 1.96], abs=6e-3)
    assert found[34] == pytest.approx(0.47, abs=6e-3)


def test_at_the_start_it_is_a_product_of_what_keys_and_values_have() -> None:
    """At W = 0, H = (Σ p e eᵀ) ⊗ Uᵀ (I/M − 11ᵀ/M²) U."""
    association = tokens(3, 7, 4, 5, 6)
    assert association.weights is not None
    E, U, M = association.keys, association.values, 4
    inputs = torch.linalg.eigvalsh(E.T @ torch.diag(association.weights) @ E)[-1]
    spread = torch.eye(M).double() / M - torch.ones(M, M).double() / M**2
    outputs = torch.linalg.eigvalsh(U.T @ spread @ U)[-1]
    assert sharpness_of(association, torch.zeros(6, 5).double()) == pytest.approx(float(inputs * outputs), rel=1e-9)


def test_it_does_not_depend_on_the_labels() -> None:
    association, W = tokens(4, 6, 3, 4, 4), normal(4, "W", 4, 4)
    other = Association(association.keys, association.values, 2 - association.targets, association.weights)
    assert sharpness_of(association, W) == sharpness_of(other, W)


def test_systems_of_very_different_sharpness_are_searched_together() -> None:
    association = tokens(5, 6, 3, 4, 4)
    matrices = [torch.zeros(4, 4).double(), 30 * normal(5, "W", 4, 4), 1e6 * normal(6, "W", 4, 4)]
    found = sharpnesses(Particles.of([association] * 3, matrices))
    assert found.tolist() == pytest.approx([by_autograd(association, W) for W in matrices], rel=1e-5, abs=1e-12)
    assert float(found[2]) == 0  # every answer is certain


def test_an_operator_of_rank_one_uses_its_directions_up() -> None:
    v = normal(0, "v", 2, 8)
    found = largest_eigenvalue(lambda x: v * (v * x).sum(1, keepdim=True), normal(0, "start", 2, 8))
    assert found.tolist() == pytest.approx((v**2).sum(1).tolist())
