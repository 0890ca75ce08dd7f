"""Dual vectors see their own vector and nothing beside it, as far as there are dimensions."""

import pytest
import torch
from torch import Tensor

from toytf.memory import Association, bi_whitened
from toytf.memory.duals import RIDGE, dual_matrix, dual_vectors
from toytf.randomness import generator


def vectors(n: int, d: int, purpose: str = "x") -> Tensor:
    return torch.randn(n, d, generator=generator(0, purpose), dtype=torch.float64) / d**0.5


def test_duals_see_their_own_vector_and_nothing_beside_it() -> None:
    # 30 of 64 dimensions: the smallest |x|² that counts is (1 − √(30/64))² = .1, and the ridge takes 1e-3 / .1 of it.
    X, beside = vectors(10, 64), vectors(20, 64, "beside")
    duals = dual_vectors(X, beside)
    assert float((duals @ X.T - torch.eye(10)).abs().max()) < 0.02
    assert float((duals @ beside.T).abs().max()) < 0.02
    # Without them in mind, what is beside is seen at random, at 1/√d or more.
    assert float((dual_vectors(X) @ beside.T).square().mean().sqrt()) > 1 / 64**0.5


def test_of_too_many_vectors_long_ones_are_kept_out_more_strictly() -> None:
    """60 short and 60 long ones in 64 dimensions: not all can be kept out. Per length², long ones weigh nine times."""
    X, long, short = vectors(4, 64), 3 * vectors(60, 64, "long"), vectors(60, 64, "short")
    duals = dual_vectors(X, torch.cat([long, short]))
    assert float((duals @ long.T / 3).square().mean()) < float((duals @ short.T).square().mean()) / 3
    own = torch.diagonal(duals @ X.T)
    assert bool(((own > 0) & (own < 0.9)).all())


def test_with_nothing_beside_it_is_the_matrix_of_one_hot_scores() -> None:
    stored = Association(vectors(12, 40, "keys"), vectors(8, 30, "values"), torch.arange(12) % 8)
    W, best = dual_matrix(stored), bi_whitened(stored)
    assert float((W - best).norm() / best.norm()) < 20 * RIDGE
    torch.testing.assert_close(stored.scores(W), stored.scores(best), rtol=0, atol=0.02)


def test_a_key_in_a_sum_is_read_where_the_hebbian_rule_fails() -> None:
    """Keys a third as long as three vectors beside them: Hebbian signal to noise √(d/27) = 1.1 at d = 32."""
    keys, values, beside = vectors(5, 32, "keys") / 3, vectors(5, 32, "values"), vectors(20, 32, "beside")
    stored = Association(keys, values, torch.arange(5))
    at = torch.randint(20, (200, 3), generator=generator(0, "at"))
    z = torch.arange(200) % 5
    streams = keys[z] + beside[at].sum(1)

    def accuracy(W: Tensor) -> float:
        return float((streams @ W.T @ values.T).argmax(1).eq(z).double().mean())

    assert accuracy(dual_matrix(stored, beside)) == 1
    assert accuracy(values.T @ keys) < 0.8


def test_vectors_that_are_no_numbers_are_refused() -> None:
    keys = vectors(3, 4)
    keys[1, 2] = torch.nan
    with pytest.raises(ValueError, match="row 1"):
        dual_matrix(Association(keys, keys, torch.arange(3)))
