"""Errors and losses over all inputs, against sums by hand, recall, and known numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.association import population as module
from tasks.association.population import population
from tests.tasks.association.tasks import make, memory_model, write

RANDOM = {"attention.init": "normal"}


def test_error_and_loss_are_sums_over_all_inputs() -> None:
    task = make(n_inputs=40, alpha=1)
    model = memory_model(task, **RANDOM)
    found = population(model, task)
    logits = model(task.inputs)[:, 0].detach().double()
    error = loss = 0.0
    for z, p in enumerate(task.frequencies):
        right = int(task.targets[z])
        best = max(float(logits[z, y]) for y in range(5) if y != right)
        assert found.margins[z] == pytest.approx(float(logits[z, right]) - best, abs=1e-5)
        error += p * (float(logits[z, right]) <= best)
        loss -= p * float(logits[z].log_softmax(0)[right])
    assert (found.error, found.loss) == pytest.approx((error, loss))


@given(st.integers(1, 60), st.integers(1, 9), st.floats(0, 3), st.integers(0, 3))
def test_the_error_is_what_weighted_recall_leaves(n: int, m: int, alpha: float, seed: int) -> None:
    """Weights of an association are in float32."""
    task = make(n_inputs=n, n_outputs=m, alpha=alpha)
    model = memory_model(task, d=8, seed=seed, **RANDOM)
    stored = task.memories(model)["W_OV1"].association
    recall = float(stored.recall(model.W_OV(0)[0].detach().T, weighted=True))
    assert population(model, task).error == pytest.approx(1 - recall, abs=1e-5)


def test_a_memory_of_nothing_ties_everywhere_and_is_always_wrong() -> None:
    """Not 0.36, the error of the argmax, which is the first output: that of the most frequent input."""
    task = make(n_inputs=100, alpha=2)
    found = population(memory_model(task), task)
    assert found.error == pytest.approx(1.0)
    assert found.loss == pytest.approx(math.log(5))
    assert not found.margins.any() and bool(found.wrong.all())


def test_without_a_rival_nothing_is_wrong() -> None:
    task = make(n_inputs=7, n_outputs=1)
    found = population(memory_model(task), task)
    assert (found.error, found.loss) == (0.0, 0.0)
    assert bool(np.isinf(found.margins).all())


def test_the_head_are_the_most_frequent_wherever_they_are() -> None:
    task = make(answers=[["a", "x", 1], ["b", "y", 5], ["c", "x", 3], ["d", "y", 3]])
    found = population(memory_model(task), task)
    assert found.head(2).tolist() == [False, True, True, False]
    assert found.error_of(found.head(2)) + found.error_of(~found.head(2)) == pytest.approx(found.error)
    assert found.head(99).all()


def test_rare_inputs_count_to_the_last_digit() -> None:
    """Σ p over the last input alone, 6e-13 at N = 1e6, is not lost in a sum of float32."""
    task = make(n_inputs=1_000_000, alpha=2)
    wrong = np.zeros(1_000_000)
    wrong[-1] = -1.0
    found = module.Population(task.frequencies, 0.5 + wrong, wrong, wrong.astype(int))
    assert found.error == pytest.approx(6.0793e-13, rel=1e-4)


def test_inputs_are_asked_some_at_a_time_which_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make(n_inputs=50)
    model = memory_model(task, **RANDOM)
    whole = population(model, task)
    monkeypatch.setattr(module, "LOGITS", 35)
    parts = population(model, task)
    assert np.allclose(parts.margins, whole.margins, atol=1e-5) and parts.error == whole.error


def test_a_rotated_model_makes_the_same_errors() -> None:
    """e → R e, u → S u, W → S W Rᵀ: all scores stay, up to rounding."""
    task = make(n_inputs=60)
    model = memory_model(task, **RANDOM)
    before = population(model, task)
    R, S = (torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(i))).Q for i in range(2))
    with torch.no_grad():
        W = model.W_OV(0)[0].T.clone()
        model.embed.W_E.copy_(model.embed.W_E @ R.T)
        model.unembed.W_U.copy_(S @ model.unembed.W_U)
    write(model, S @ W @ R.T)
    after = population(model, task)
    assert np.allclose(after.margins, before.margins, atol=1e-3)
    assert after.loss == pytest.approx(before.loss, rel=1e-4)


def test_exchanging_equally_frequent_inputs_changes_no_error() -> None:
    task, order = make(n_inputs=30, alpha=0), torch.randperm(30, generator=torch.Generator().manual_seed(0))
    model, other = memory_model(task, **RANDOM), make(n_inputs=30, alpha=0)
    before = population(model, task).error
    other.targets = task.targets[order]
    with torch.no_grad():
        model.embed.W_E.copy_(model.embed.W_E[order])
    assert population(model, other).error == pytest.approx(before)


@pytest.mark.parametrize(("power", "error"), [(0.0, 0.655), (1.0, 0.119), (0.25, 0.0348)])
def test_sums_of_outer_products_have_the_errors_of_the_scaling_laws(power: float, error: float) -> None:
    """W = Σ_z p(z)^ρ u_{f(z)} e_zᵀ, N = 1000, M = 5, α = 2, d = 69: means of a separate simulation over 300 seeds.

    Within three standard errors of the difference. One miss on the most frequent input costs 0.61, so these are large.
    """
    task, n = make(n_inputs=1000, alpha=2), 60
    q = torch.tensor(task.frequencies**power, dtype=torch.float32)
    errors = []
    for seed in range(n):
        model = memory_model(task, d=69, seed=seed, embedding="normal_over_d", unembedding="normal_over_d")
        e, u = model.embed.W_E.detach(), model.unembed.W_U.detach().T
        write(model, u[task.targets].T @ (q[:, None] * e))
        errors.append(population(model, task).error)
    assert abs(np.mean(errors) - error) < 3 * np.std(errors) * math.sqrt(1 / n + 1 / 300)
