"""The limits of parts that are not one matrix with random keys."""

import math

import numpy as np
import pytest
import torch

from toytf.memory import Association, Status, StorageProblem, decide
from toytf.theory import mlp_capacity, selector_capacity


def test_hidden_units_hold_two_bits_per_weight():
    """N ln N = 2.86 m d of trained memories with own values; N = .83 m d with 32 answers (Nichani et al. 2024)."""
    p = mlp_capacity(64, 64, 256)
    assert p * math.log(p) == pytest.approx(2.86 * 64 * 256)
    assert mlp_capacity(64, 64, 256, n_values=32) == pytest.approx(0.83 * 64 * 256, rel=0.01)
    assert mlp_capacity(8, 8, 8, n_values=1) == math.inf


@pytest.mark.parametrize("d", [4, 16, 64])
def test_a_selector_separates_two_vectors_per_dimension(d: int):
    """Cover: 2d in all, if as many are to be above as below."""
    assert selector_capacity(d, d) == pytest.approx(d)


@pytest.mark.parametrize(("d", "n_others"), [(16, 24), (32, 8), (32, 60)])
def test_at_its_capacity_a_selector_costs_all_dimensions(d: int, n_others: int):
    """min_t ∫Dz [p (z + t)₊² + n (z − t)₊²] = d, by a sum over z."""
    p, z = selector_capacity(d, n_others), np.linspace(-9, 9, 20_001)
    Dz = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    right, others = (np.maximum(z + sign * np.linspace(-3, 3, 601)[:, None], 0) ** 2 @ Dz for sign in (1, -1))
    assert min(p * right + n_others * others) == pytest.approx(d, rel=1e-4)


def test_a_selector_of_few_holds_more_in_all_than_cover():
    few, many = selector_capacity(32, 60), selector_capacity(32, 8)
    assert few + 60 > 2 * 32 and many + 8 > 2 * 32  # unequal numbers are easier
    assert selector_capacity(8, 1000) < 1


def test_some_vector_selects_as_many_as_predicted():
    """The certified number of 20 draws at d = 16 against 24 others; t fixed makes the prediction some 1.5 too low."""
    d, n_others, most = 16, 24, 40
    found = 0.0
    for seed in range(20):
        phi = torch.randn(most + n_others, d, generator=torch.Generator().manual_seed(seed))
        stored = next(p for p in range(8, most) if not _selects(phi[: p + 1], phi[most:]))
        found += (stored + 0.5) / 20
    assert 0 < found - selector_capacity(d, n_others) < 3


def _selects(own: torch.Tensor, others: torch.Tensor) -> bool:
    n = len(own)
    may = torch.cat([torch.eye(n, dtype=torch.bool), torch.ones(n, len(others), dtype=torch.bool)], 1)
    asked = Association(torch.ones(n, 1), torch.cat([own, others]), torch.arange(n), candidates=may)
    return decide(StorageProblem.of(asked), iterations=1000)[0].status is Status.FEASIBLE


@pytest.mark.parametrize(
    ("call", "message"), [(lambda: selector_capacity(0, 3), "d = 0|d is 0"), (lambda: mlp_capacity(8, 8, 0), "width")]
)
def test_sizes_below_one_are_refused(call: object, message: str):
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
