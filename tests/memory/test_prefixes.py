"""All dimensions in one pass: the same answers as products of whole matrices."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from toytf.memory import Association, prefixes
from toytf.memory.prefixes import RandomVectors, Strengths, prefix_errors
from toytf.theory import zipf


def top(N: int, share: float) -> Callable[[int], Tensor]:
    return lambda d: (torch.arange(N) < max(1, int(share * d))).float()[None]


def wrong_inputs(vectors: RandomVectors, targets: Tensor, strengths: Strengths, dimensions: list[int]) -> Tensor:
    """Which input each scheme gets wrong at each dimension: the error if it were the only one."""
    one_by_one = torch.eye(vectors.n_inputs, dtype=torch.float64)
    return prefix_errors(vectors, targets, strengths, one_by_one, dimensions).bool()


def wrong_by_products(vectors: RandomVectors, targets: Tensor, strengths: Strengths, dimensions: list[int]) -> Tensor:
    """The same by W = Σ q u eᵀ and u W e, in float64."""
    E = torch.cat([rows for _, rows in vectors.blocks()]).double()
    U = vectors.values().double()
    found = []
    for d in dimensions:
        keys, values = vectors.prefix(E, d), vectors.prefix(U, d)
        for q in strengths.all_at(d).double():
            W = (q[:, None] * values[targets]).T @ keys
            found.append(~Association(keys, values, targets).recalled(W))
    return torch.stack(found).unflatten(0, (len(dimensions), -1))


@pytest.mark.parametrize("distribution", ["gaussian", "sphere"])
@pytest.mark.parametrize("n_outputs", [2, 5, 40, 300])
def test_answers_are_those_of_whole_matrices(distribution: str, n_outputs: int) -> None:
    """Few answers go through sums over the inputs of each, many through W; near-ties may differ: 1 in 10⁴."""
    N, dimensions = 300, [3, 8, 20, 64]
    vectors = RandomVectors(1, N, n_outputs, 64, distribution)  # type: ignore[arg-type]
    p = torch.tensor(zipf(N, 1.5))
    strengths = Strengths(torch.stack([torch.ones(N), p.float(), p.float() ** 0.3]), top(N, 0.25))
    targets = torch.arange(N) % n_outputs
    found = wrong_inputs(vectors, targets, strengths, dimensions)
    expected = wrong_by_products(vectors, targets, strengths, dimensions)
    assert found.shape == expected.shape == (4, 4, N)
    assert float((found != expected).double().mean()) <= 1e-4
    assert 0.05 < float(found.double().mean()) < 0.95  # it is a memory that gets some wrong


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), N=st.integers(1, 40), M=st.integers(1, 8), d=st.integers(1, 12))
def test_any_shape_agrees_with_whole_matrices(seed: int, N: int, M: int, d: int) -> None:
    vectors, dimensions = RandomVectors(seed, N, M, d), sorted({1, (d + 1) // 2, d})
    strengths = Strengths(torch.rand(2, N, generator=torch.Generator().manual_seed(seed)), top(N, 0.5))
    targets = torch.arange(N) % M
    found = wrong_inputs(vectors, targets, strengths, dimensions)
    expected = wrong_by_products(vectors, targets, strengths, dimensions)
    assert int((found != expected).sum()) <= 1  # a near-tie


def test_vectors_that_are_drawn_again_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they are kept, and how many are worked on at a time, does not matter."""
    N, M, dimensions = 500, 4, [5, 20]
    p, targets = torch.tensor(zipf(N, 2)), torch.arange(N) % M
    strengths = Strengths(p.float()[None], top(N, 0.5))
    monkeypatch.setattr(prefixes, "BLOCK", 64)
    kept = prefix_errors(RandomVectors(0, N, M, 20), targets, strengths, p[None], dimensions)
    monkeypatch.setattr(prefixes, "KEPT", 0)
    assert torch.equal(prefix_errors(RandomVectors(0, N, M, 20), targets, strengths, p[None], dimensions), kept)
    monkeypatch.setattr(prefixes, "SCORED", 8)
    many = RandomVectors(0, N, N, 20)
    own = torch.arange(N)
    few_at_a_time = prefix_errors(many, own, strengths, p[None], dimensions)
    monkeypatch.undo()
    monkeypatch.setattr(prefixes, "BLOCK", 64)
    assert prefix_errors(many, own, strengths, p[None], dimensions) == pytest.approx(few_at_a_time)


def test_an_empty_memory_is_wrong_everywhere_and_a_single_answer_is_right() -> None:
    N, p = 30, torch.tensor(zipf(30, 2))[None]
    empty = Strengths(torch.zeros(1, N), lambda d: torch.zeros(0, N))
    assert prefix_errors(RandomVectors(0, N, 5, 8), torch.arange(N) % 5, empty, p, [4, 8]).tolist() == [
        [[pytest.approx(1)]],
        [[pytest.approx(1)]],
    ]
    one = prefix_errors(RandomVectors(0, N, 1, 8), torch.zeros(N, dtype=torch.long), empty, p, [4, 8])
    assert float(one.sum()) == 0


def test_the_scale_of_strengths_does_not_matter() -> None:
    N, p, targets = 200, torch.tensor(zipf(200, 2)), torch.arange(200) % 5
    errors = [
        prefix_errors(RandomVectors(3, N, 5, 30), targets, Strengths(c * p.float()[None], top(N, 0)), p[None], [10, 30])
        for c in (1.0, 64.0)
    ]
    assert torch.equal(*errors)


@pytest.mark.parametrize("dimensions", [[8, 4], [4, 4, 8], [4]])
def test_dimensions_ascend_to_that_of_the_vectors(dimensions: list[int]) -> None:
    p = torch.tensor(zipf(10, 2))
    with pytest.raises(ValueError, match="must ascend to 8"):
        prefix_errors(
            RandomVectors(0, 10, 2, 8),
            torch.arange(10) % 2,
            Strengths(p.float()[None], top(10, 1)),
            p[None],
            dimensions,
        )
