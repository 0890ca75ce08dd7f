"""Scores and gradients of memories that learn online: equal to autograd, seed by seed."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from toytf.memory.association import Association
from toytf.memory.online import EPSILON, Batch, Model, OnlineMemory, random_memory
from toytf.memory.online_training import batches

MODELS: tuple[Model, ...] = ("matrix", "learnable", "exponential")


def memory_of(model: Model, *, layer_norm: bool = False, n_seeds: int = 3, N: int = 7, M: int = 4) -> OnlineMemory:
    return random_memory(
        model, range(n_seeds), N, M, 6, start="random", layer_norm=layer_norm, dtype=torch.float64
    )  # fmt: skip


def plain_loss(E: Tensor, U: Tensor, W: Tensor | None, z: Tensor, y: Tensor, w: Tensor, layer_norm: bool) -> Tensor:
    """Σ w(z) · cross-entropy of one seed as one would write it."""
    h = E[z].relu() if W is None else E[z] @ W.T
    if layer_norm:
        h = h / torch.sqrt((h**2).sum(1) + EPSILON)[:, None]
    return (w * torch.nn.functional.cross_entropy(h @ U.T, y, reduction="none")).sum()


def autograd(memory: OnlineMemory, seed: int, z: Tensor, w: Tensor) -> dict[str, Tensor]:
    parts = {"E": memory.E[seed], "U": memory.U[seed]} | ({} if memory.W is None else {"W": memory.W[seed]})
    leaves = {name: part.clone().requires_grad_() for name, part in parts.items()}
    loss = plain_loss(leaves["E"], leaves["U"], leaves.get("W"), z, memory.targets[z], w, memory.layer_norm)
    return dict(zip(leaves, torch.autograd.grad(loss, [*leaves.values()]), strict=True))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_gradients_of_a_batch_are_those_of_autograd(model: Model, layer_norm: bool) -> None:
    memory = memory_of(model, layer_norm=layer_norm)
    inputs = torch.tensor([[0, 0, 3], [6, 1, 2], [5, 5, 5]])
    found = memory.gradients(next(batches(memory, inputs, 3)))
    assert {*found} == {*memory.trained} == ({"W"} if model == "matrix" else {"E", "U"} | ({"W"} & {*memory.trained}))
    for seed, z in enumerate(inputs):
        expected = autograd(memory, seed, z, torch.full((3,), 1 / 3, dtype=torch.float64))
        for name, gradient in found.items():
            scale = expected[name].abs().max()
            assert torch.allclose(gradient[seed], expected[name], atol=1e-12 * float(scale))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_gradients_of_weighted_inputs_are_those_of_autograd(model: Model, layer_norm: bool) -> None:
    memory = memory_of(model, layer_norm=layer_norm)
    w = torch.rand(3, 1, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = memory.gradients(Batch(None, None, memory.every_target, w))
    for seed in range(3):
        expected = autograd(memory, seed, torch.arange(7), w[seed, 0])
        for name, gradient in found.items():
            assert torch.allclose(gradient[seed], expected[name], atol=1e-12)


def test_the_first_gradient_of_a_matrix_of_zeros_is_what_the_paper_says() -> None:
    """∂L/∂W = Σ_z w(z) Σ_k (1/M − 1{k = f(z)}) u_k e_zᵀ."""
    memory = replace(memory_of("matrix"), W=torch.zeros(3, 6, 6, dtype=torch.float64))
    gradient = memory.gradients(Batch(None, None, memory.every_target, 1 / 7))["W"]
    C = 1 / 4 - torch.nn.functional.one_hot(memory.targets, 4).double()
    assert torch.allclose(gradient, memory.U.mT @ C.T @ memory.E / 7)


def test_a_gradient_does_not_vanish_by_rounding() -> None:
    """1 − π = e^−m (M − 1) at a margin of m = 30, where 1 − π computed in float32 would be 0."""
    d = 4
    memory = OnlineMemory(
        "matrix", torch.eye(d)[None, :1], torch.eye(d)[None, :2], torch.zeros(1, d, d), torch.zeros(1, dtype=torch.long)
    )
    W = torch.zeros(1, d, d)
    W[0, 0, 0] = 30.0
    gradient = replace(memory, W=W).gradients(Batch(None, None, memory.every_target, 1.0))["W"]
    assert float(gradient[0, 0, 0]) == pytest.approx(-math.exp(-30), rel=1e-5)
    assert float(gradient[0, 1, 0]) == pytest.approx(math.exp(-30), rel=1e-5)


def test_margins_and_recall_are_those_of_an_association() -> None:
    memory = memory_of("matrix")
    assert memory.W is not None
    for seed in range(3):
        pairs = Association(memory.E[seed], memory.U[seed], memory.targets)
        assert torch.allclose(memory.margins()[seed], pairs.margins(memory.W[seed]))
        assert torch.equal(memory.recalled()[seed], pairs.recalled(memory.W[seed]))


def test_a_tie_is_not_recalled_and_a_single_answer_always_is() -> None:
    tie = replace(memory_of("matrix"), W=torch.zeros(3, 6, 6, dtype=torch.float64))
    assert not tie.recalled().any()
    assert memory_of("matrix", M=1).recalled().all()
    assert (memory_of("matrix", M=1).losses() == 0).all()


def test_losses_are_cross_entropies() -> None:
    memory = memory_of("learnable", layer_norm=True)
    one, z = torch.ones(1, dtype=torch.float64), torch.tensor([2])
    assert memory.W is not None
    expected = plain_loss(memory.E[1], memory.U[1], memory.W[1], z, memory.targets[z], one, True)
    assert float(memory.losses()[1, 2]) == pytest.approx(float(expected))


@pytest.mark.parametrize(("N", "M", "d"), [(3, 2, 6), (9, 2, 6), (3, 8, 6), (9, 8, 6)])
def test_the_coordinates_of_its_own_vectors_change_nothing(N: int, M: int, d: int) -> None:
    memory = random_memory("matrix", [0, 1], N, M, d, start="random", dtype=torch.float64)
    assert memory.W is not None
    small, taken_back = memory.within_spans()
    assert small.W is not None and small.W.shape == (2, min(M, d), min(N, d))
    assert torch.allclose(small.scores(), memory.scores())
    assert torch.allclose(taken_back(small.W), memory.W)
    batch = Batch(None, None, memory.every_target, 1 / N)
    moved = taken_back(small.W - 0.5 * small.gradients(batch)["W"])
    assert torch.allclose(moved, memory.W - 0.5 * memory.gradients(batch)["W"])


def test_a_memory_without_a_matrix_has_no_smaller_one() -> None:
    with pytest.raises(ValueError, match="without a matrix"):
        memory_of("exponential").within_spans()


def test_a_seed_means_the_same_alone_in_company_and_in_another_precision() -> None:
    alone = random_memory("learnable", [7], 5, 3, 4, start="random")
    company = random_memory("learnable", [3, 7], 5, 3, 4, start="random", dtype=torch.float64)
    for name, parameter in alone.trained.items():
        assert torch.equal(parameter[0], company.trained[name][1].float())


def test_vectors_have_length_one_on_the_sphere_and_on_average_otherwise() -> None:
    sphere = random_memory("matrix", [0], 50, 3, 8, sphere=True)
    assert torch.allclose(sphere.E.norm(dim=2), torch.ones(1, 50))
    gaussian = random_memory("matrix", [0], 400, 3, 100)
    # mean of 40,000 squares of variance 2: a standard error of 0.7 %
    assert float(gaussian.E.square().sum(2).mean()) == pytest.approx(1, abs=0.03)
    assert gaussian.targets[:7].tolist() == [0, 1, 2, 0, 1, 2, 0]
