"""One pass over a stream: all seeds at once, each optimiser as it is defined, and nothing that waits for the device."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from toytf.memory.online import Model, OnlineMemory, random_memory
from toytf.memory.online_training import Descent, Trained, batches, population, spaced_steps, stream, train
from toytf.memory.readout import read_out, storage_exponent
from toytf.optimizers import orthogonalised
from toytf.theory import zipf

SEEDS, N, M, D = (0, 1, 2), 8, 3, 5
RULES: tuple[Any, ...] = ("sgd", "normalised", "adam", "muon")
P = zipf(N, 1.5)


def memory_of(model: Model = "matrix", seeds: tuple[int, ...] = SEEDS, **options: Any) -> OnlineMemory:
    return random_memory(model, seeds, N, M, D, **{"start": "random", "dtype": torch.float64, **options})


def trained(
    memory: OnlineMemory, descent: Descent, batch: int = 4, n: int = 24, seeds: tuple[int, ...] = SEEDS
) -> Trained:
    return train(memory, descent, batches(memory, stream(seeds, P, n), batch), [-(-n // batch)])


def matrix_of(memory: OnlineMemory) -> Tensor:
    assert memory.W is not None
    return memory.W


WAYS = [
    (rule, model)
    for rule in RULES
    for model in ("matrix", "learnable", "exponential")
    if (rule, model) != ("muon", "exponential")  # there is no matrix
]


@pytest.mark.parametrize(("rule", "model"), WAYS)
@pytest.mark.parametrize("layer_norm", [False, True])
def test_all_seeds_at_once_are_each_seed_alone(rule: Any, model: Model, layer_norm: bool) -> None:
    descent = Descent(rule, 0.5, betas=(0.9, 0.99), momentum=0.5)
    together = trained(memory_of(model, layer_norm=layer_norm), descent)
    for i, seed in enumerate(SEEDS):
        alone = trained(memory_of(model, (seed,), layer_norm=layer_norm), descent, seeds=(seed,))
        for name, parameter in alone.memory.trained.items():
            assert torch.allclose(together.memory.trained[name][i], parameter[0], atol=1e-9)
        assert (together.looks[-1].recalled[i] == alone.looks[-1].recalled[0]).all()


def test_sgd_is_a_loop_with_autograd() -> None:
    memory = memory_of()
    inputs = stream(SEEDS, P, 20)
    found = train(memory, Descent("sgd", 2.0), batches(memory, inputs, 6), [4])
    for seed in range(3):
        W = matrix_of(memory)[seed].clone().requires_grad_()
        for z in torch.split(inputs[seed], 6):  # the last batch has two
            scores = memory.E[seed][z] @ W.T @ memory.U[seed].T
            loss = torch.nn.functional.cross_entropy(scores, memory.targets[z])
            (gradient,) = torch.autograd.grad(loss, W)
            W = (W - 2.0 * gradient).detach().requires_grad_()
        assert torch.allclose(matrix_of(found.memory)[seed], W, atol=1e-10)


@pytest.mark.parametrize("rule", RULES)
def test_a_counted_batch_is_a_plain_one(rule: Any) -> None:
    """More than N inputs are counted; the same in a memory of more inputs, which never come, is not."""
    wide = random_memory("matrix", SEEDS, 64, M, D, start="random", dtype=torch.float64)
    narrow = replace(wide, E=wide.E[:, :N].contiguous(), targets=wide.targets[:N])
    inputs = stream(SEEDS, P, 60)
    counted, plain = (
        train(one, Descent(rule, 0.5), batches(one, inputs, 20), [3]).memory for one in (narrow, wide)
    )  # fmt: skip
    assert next(batches(narrow, inputs, 20)).rows is None
    assert next(batches(wide, inputs, 20)).rows is not None
    assert torch.allclose(matrix_of(counted), matrix_of(plain), atol=1e-9)


@pytest.mark.parametrize("model", ["learnable", "exponential"])
def test_a_counted_batch_trains_vectors_as_a_plain_one_does(model: Model) -> None:
    wide = random_memory(model, SEEDS, 64, M, D, start="random", dtype=torch.float64)
    narrow = replace(wide, E=wide.E[:, :N].contiguous(), targets=wide.targets[:N])
    inputs = stream(SEEDS, P, 60)
    counted, plain = (train(one, Descent("sgd", 0.5), batches(one, inputs, 20), [3]).memory for one in (narrow, wide))
    assert torch.allclose(counted.E, plain.E[:, :N], atol=1e-12)
    assert torch.allclose(counted.U, plain.U, atol=1e-12)


def first_step(rule: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Gradient and step of W at a batch of four."""
    memory = memory_of()
    batch = next(batches(memory, stream(SEEDS, P, 4), 4))
    moved = trained(memory, Descent(rule, 0.3, **options), 4, 4).memory
    return memory.gradients(batch)["W"], matrix_of(moved) - matrix_of(memory)


def test_adam_without_memory_goes_by_signs() -> None:
    """lr/d for every entry, up to ε = 1e-8 beside the gradient."""
    gradient, step = first_step("adam")
    large = gradient.abs() > 1e-5
    assert torch.allclose(step[large], -0.3 / D * gradient[large].sign(), rtol=2e-3)


def test_a_normalised_step_has_the_length_of_the_learning_rate() -> None:
    gradient, step = first_step("normalised")
    assert torch.allclose(step.flatten(1).norm(dim=1), torch.full((3,), 0.3, dtype=torch.float64))
    assert torch.allclose(step, -0.3 * gradient / gradient.flatten(1).norm(dim=1)[:, None, None])


def test_a_step_of_muon_is_the_orthogonalised_gradient() -> None:
    gradient, step = first_step("muon", momentum=0.9)
    assert torch.allclose(step, -0.3 * orthogonalised(gradient), atol=1e-9)


def test_steps_in_other_coordinates_have_the_same_length_where_answers_are_more_than_inputs() -> None:
    """W is 9 × 2 in the coordinates of its vectors; a step of Muon is still one of a square matrix."""
    memory = random_memory("matrix", [0], 2, 9, 12, dtype=torch.float64)
    batch = next(population(memory, zipf(2, 1.0), 1))
    moved = train(memory, Descent("muon", 1.0), population(memory, zipf(2, 1.0), 1), [1]).memory
    assert torch.allclose(matrix_of(moved), -orthogonalised(memory.gradients(batch)["W"]), atol=1e-9)


def test_later_steps_are_smaller_if_they_should_be() -> None:
    """A tenth of the rate from step 3 on: two trainings one after the other, with the moments kept."""
    for rule in RULES:
        memory, inputs = memory_of(), stream(SEEDS, P, 16)
        options = {"betas": (0.9, 0.99), "momentum": 0.9}
        late = Descent(rule, 0.5, late_from=2, late_factor=0.1, **options)  # type: ignore[arg-type]
        whole = train(memory, late, batches(memory, inputs, 4), [2, 4])
        early = train(memory, Descent(rule, 0.5, **options), batches(memory, inputs[:, :8], 4), [2])  # type: ignore[arg-type]
        assert (whole.looks[0].losses == early.looks[0].losses).all()
        far, near = (
            (
                matrix_of(train(memory, of, batches(memory, inputs[:, :12], 4), [3]).memory) - matrix_of(early.memory)
            ).norm()
            for of in (Descent(rule, 0.5, **options), late)  # type: ignore[arg-type]
        )
        assert float(near) == pytest.approx(0.1 * float(far), rel=1e-6)


def test_one_step_from_zero_stores_by_counts() -> None:
    """q(z) = lr c(z)/B (1 − 1/M) exactly, so ρ = 1 against counts, whatever the learning rate; rows of C sum to 0."""
    for lr in (1.0, 1000.0):
        memory = random_memory("matrix", SEEDS, N, M, 20, dtype=torch.float64)
        inputs = stream(SEEDS, P, 200)
        W = matrix_of(train(memory, Descent("sgd", lr), batches(memory, inputs, 200), [1]).memory)
        for seed in range(3):
            counts = np.bincount(inputs[seed].numpy(), minlength=N)
            read = read_out(W[seed], memory.E[seed], memory.U[seed])
            q = read.scheme(memory.targets)
            assert q == pytest.approx(lr * counts / 200 * (1 - 1 / M), rel=1e-9, abs=1e-9 * lr)
            found = storage_exponent(q, counts)
            assert found.slope is not None and found.slope.value == pytest.approx(1, abs=1e-9)
            assert float(read.C.sum(1).abs().max()) < 1e-9 * lr


def test_the_population_is_the_limit_of_a_large_batch() -> None:
    """Relative counts of 10⁶ draws are within a few standard errors of p: 5e-4 at most."""
    memory = memory_of()
    large = train(memory, Descent("sgd", 1.0), batches(memory, stream(SEEDS, P, 10**6), 10**6), [1])
    whole = train(memory, Descent("sgd", 1.0), population(memory, P, 1), [1])
    difference = matrix_of(large.memory) - matrix_of(whole.memory)
    assert float(difference.norm()) < 5e-3 * float((matrix_of(whole.memory) - matrix_of(memory)).norm())


def test_inputs_come_by_their_frequency_and_fewer_are_the_first_of_more() -> None:
    inputs = stream([3, 4], zipf(4, 1.0), 20_000)
    assert torch.equal(stream([4], zipf(4, 1.0), 50), inputs[1:, :50])
    shares = np.bincount(inputs[0].numpy(), minlength=4) / 20_000
    assert shares == pytest.approx(zipf(4, 1.0), abs=4 * 0.5 / 20_000**0.5)  # four standard errors
    assert not torch.equal(inputs[0], inputs[1])


def test_the_memory_that_is_given_stays_as_it_is() -> None:
    for model, rule in (("matrix", "sgd"), ("matrix", "adam"), ("learnable", "adam")):
        memory = memory_of(model)  # type: ignore[arg-type]
        before = {name: parameter.clone() for name, parameter in memory.trained.items()}
        trained(memory, Descent(rule, 1.0))  # type: ignore[arg-type]
        assert all(torch.equal(memory.trained[name], parameter) for name, parameter in before.items())


def test_no_samples_leave_the_memory_as_it_was() -> None:
    memory = memory_of()
    found = train(memory, Descent("sgd", 1.0), batches(memory, stream(SEEDS, P, 0), 4), [0])
    assert torch.allclose(matrix_of(found.memory), matrix_of(memory))
    assert [look.step for look in found.looks] == [0]


@pytest.mark.parametrize("rule", RULES)
def test_one_answer_teaches_nothing(rule: Any) -> None:
    memory = random_memory("matrix", [0], 4, 1, 3, start="random")
    found = train(memory, Descent(rule, 1.0), batches(memory, stream([0], zipf(4, 1.0), 8), 1), [8])
    assert torch.allclose(matrix_of(found.memory), matrix_of(memory), atol=1e-6)
    assert found.looks[-1].recalled.all()


@pytest.mark.parametrize("rule", RULES)
def test_one_input_is_learned_at_once(rule: Any) -> None:
    memory = random_memory("matrix", [0], 1, 3, 16)
    found = train(memory, Descent(rule, 1.0), batches(memory, stream([0], zipf(1, 1.0), 1), 1), [0, 1])
    assert not found.looks[0].recalled.any()
    assert found.looks[1].recalled.all()


def test_a_tiny_gradient_is_scaled_as_a_large_one_is() -> None:
    """At a margin of 60 the gradient is 1e-26, whose square is 0 in float32."""
    d = 4
    W = torch.zeros(1, d, d)
    W[0, 0, 0] = 60.0
    memory = OnlineMemory("matrix", torch.eye(d)[None, :1], torch.eye(d)[None, :2], W, torch.zeros(1, dtype=torch.long))
    moved = train(memory, Descent("normalised", 1.0), population(memory, np.ones(1), 1), [1]).memory
    assert float((matrix_of(moved) - W).norm()) == pytest.approx(1, abs=1e-5)


def test_looks_are_evenly_spaced_in_the_logarithm() -> None:
    assert spaced_steps(100, 3) == [1, 10, 100]
    assert spaced_steps(100, 1) == [100]
    assert spaced_steps(1, 5) == [1]
    assert spaced_steps(3, 50) == [1, 2, 3]


class HostWaits(TorchDispatchMode):
    """Notes operations whose result the host must wait for."""

    OPS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in self.OPS:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("batch", [4, 20])
def test_no_step_waits_for_the_device(rule: Any, batch: int) -> None:
    memory, inputs = memory_of("learnable", layer_norm=True), stream(SEEDS, P, 60)
    with HostWaits() as waits:
        train(memory, Descent(rule, 0.5), batches(memory, inputs, batch), [])
    assert waits.seen == []
