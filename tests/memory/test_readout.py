"""The scheme q read back from a matrix, and the exponent of its power law."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from toytf.memory.readout import read_out, storage_exponent


def vectors(n: int, d: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=random, dtype=torch.float64) / d**0.5


@given(st.integers(1, 6), st.integers(1, 6), st.integers(6, 12), st.integers(0, 100))
def test_coefficients_of_independent_vectors_are_read_exactly(N: int, M: int, d: int, seed: int) -> None:
    """W = Uᵀ Cᵀ E for any C; rounding is amplified by the condition number of Gaussian vectors."""
    E, U, C = vectors(N, d, seed), vectors(M, d, seed + 1), vectors(N, M, seed + 2)
    found = read_out(U.T @ C.T @ E, E, U)
    assert found.unique
    assert torch.allclose(found.C, C, atol=1e-8)
    assert found.residual < 1e-9
    targets = torch.arange(N) % M
    assert found.scheme(targets) == pytest.approx(C[torch.arange(N), targets].numpy(), abs=1e-8)


def test_scores_would_give_another_scheme() -> None:
    """The raw score difference is biased by cross-talk, the read-out is not."""
    E, U = vectors(20, 24, 0), vectors(4, 24, 1)
    q = torch.arange(1, 21, dtype=torch.float64) ** -2.0
    targets = torch.arange(20) % 4
    C = torch.zeros(20, 4, dtype=torch.float64)
    C[torch.arange(20), targets] = q
    W = U.T @ C.T @ E
    raw = (E @ W.T @ U.T).gather(1, targets[:, None])[:, 0].numpy()
    p = q.numpy()
    found = storage_exponent(read_out(W, E, U).scheme(targets), p)
    assert found.slope is not None and found.slope.value == pytest.approx(1, abs=1e-6)
    biased = storage_exponent(raw, p)
    assert biased.left_out > 0 or biased.slope is None or abs(biased.slope.value - 1) > 0.1


def test_too_many_vectors_leave_the_coefficients_open() -> None:
    E, U = vectors(9, 4, 0), vectors(2, 4, 1)
    W = U.T @ vectors(9, 2, 2).T @ E
    found = read_out(W, E, U)
    assert not found.unique
    assert found.residual < 1e-9  # some combination gives W, but not only the one that was stored
    assert not read_out(W.T, U, E).unique


def test_what_is_no_combination_is_left_over() -> None:
    """What W makes of other directions than those of the vectors, and in others, is no part of it."""
    E, U = torch.eye(5, dtype=torch.float64)[:2], torch.eye(5, dtype=torch.float64)[:2]
    stored = torch.zeros(5, 5, dtype=torch.float64)
    stored[0, 0], stored[4, 4] = 3.0, 4.0
    found = read_out(stored, E, U)
    assert found.residual == pytest.approx(4 / 5)
    assert torch.allclose(found.C, torch.tensor([[3.0, 0.0], [0.0, 0.0]], dtype=torch.float64))


def test_a_matrix_of_zeros_stores_nothing() -> None:
    found = read_out(torch.zeros(4, 4), torch.eye(4)[:3], torch.eye(4)[:2])
    assert (found.scheme(torch.tensor([0, 1, 0])) == 0).all()
    assert found.residual == 0
    exponent = storage_exponent(found.scheme(torch.tensor([0, 1, 0])), np.array([3, 2, 1]))
    assert exponent.slope is None
    assert exponent.left_out == 1


@given(st.floats(-2, 2), st.floats(0.1, 10))
def test_a_power_law_has_its_exponent_whatever_the_scale(rho: float, scale: float) -> None:
    p = np.array([0.5, 0.25, 0.125, 0.0625])
    found = storage_exponent(scale * p**rho, p)
    assert found.slope is not None and found.slope.value == pytest.approx(rho, abs=1e-9)
    assert found.left_out == 0


def test_inputs_without_a_logarithm_are_left_out_and_counted() -> None:
    """Of four inputs that were seen, one has q < 0; the one that was not seen does not count."""
    found = storage_exponent(np.array([4.0, 2.0, -1.0, 1.0, 0.0]), np.array([4, 2, 3, 1, 0]))
    assert found.slope is not None and found.slope.value == pytest.approx(1)
    assert found.left_out == pytest.approx(1 / 4)


def test_nothing_seen_has_no_exponent() -> None:
    found = storage_exponent(np.zeros(3), np.zeros(3, dtype=np.int64))
    assert (found.slope, found.left_out) == (None, 0)
