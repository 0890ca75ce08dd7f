"""Attention in blocks is attention: the same values and gradients as on full squares."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from toytf.models.causal import BLOCK, stream_attention, table_attention
from toytf.randomness import generator

B, N, D, M = 3, 7, 5, 4
LENGTHS = (1, 5, BLOCK, BLOCK + 1, 2 * BLOCK + 7)


def draw(*shape: int, name: str = "x") -> Tensor:
    return torch.randn(shape, generator=generator(0, name, *shape), dtype=torch.float64).requires_grad_()


def assert_same(attention: Callable[[], Tensor], inputs: list[Tensor], elsewhere: Callable[[], None]) -> None:
    """In blocks first, then as on other devices."""
    found = attention()
    weights = draw(*found.shape, name="weights").detach()
    gradients = torch.autograd.grad((found * weights).sum(), inputs)
    elsewhere()
    expected = attention()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for one, other in zip(gradients, torch.autograd.grad((expected * weights).sum(), inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("T", LENGTHS)
def test_attention_by_tables_is_the_same_in_blocks(T: int, skips: bool, elsewhere: Callable[[], None]) -> None:
    tokens = torch.randint(N, (B, T), generator=generator(0, "tokens"))
    scores = draw(N, N), draw(N, T), draw(T, N), draw(T, T)
    values, skip = draw(B, T, M), draw(B, T, M, name="skip") if skips else None
    inputs = [*scores, values, *([] if skip is None else [skip])]
    assert_same(lambda: table_attention(tokens, scores, values, skip), inputs, elsewhere)


@pytest.mark.parametrize("asked", [None, 3, 100], ids=["everywhere", "few", "many"])
@pytest.mark.parametrize("T", LENGTHS)
def test_attention_of_the_stream_is_the_same_in_blocks(
    T: int, asked: int | None, elsewhere: Callable[[], None]
) -> None:
    n = T if asked is None else asked
    where = None if asked is None else torch.randint(T, (B, n), generator=generator(0, "asked"))  # in any order
    query, key, values, skip = draw(B, n, D), draw(B, T, D), draw(B, T, M), draw(B, n, M, name="skip")
    inputs = [query, key, values, skip]
    assert_same(lambda: stream_attention(query, key, values, skip, where), inputs, elsewhere)


def test_no_query_meets_a_later_key() -> None:
    T = BLOCK + 3
    key, values = draw(B, T, D), draw(B, T, M)
    found = stream_attention(draw(B, T, D, name="query"), key, values, None)
    for position in (0, BLOCK - 1, BLOCK):
        (of_values,) = torch.autograd.grad(found[:, position].sum(), values, retain_graph=True)
        assert of_values[:, position].abs().min() > 0
        assert not of_values[:, position + 1 :].any()


def test_scores_of_any_size_give_numbers() -> None:
    """One-hot attention: exact zeros beside keys that are left out."""
    query, key, values = 1e4 * draw(B, 9, D), draw(B, 9, D, name="key"), draw(B, 9, M)
    found = stream_attention(query, key, values, None)
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.sum(), [key, values]))
