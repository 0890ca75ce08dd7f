"""The initial distributions: norms, variances, orthonormality, and what a dimension has no room for."""

import math

import pytest
import torch

from toytf.errors import UserError
from toytf.models.distributions import draw_vectors, draw_weights, sinusoidal
from toytf.randomness import generator

N, D = 200, 256
ENTRIES = N * D
"""Standard error of a variance estimate over ENTRIES normal entries: √(2/ENTRIES) = .6 % of it."""


def vectors(distribution: str, n: int = N, d: int = D, seed: int = 0) -> torch.Tensor:
    return draw_vectors(distribution, n, d, generator(seed, distribution), what="model.embedding")


def weights(distribution: str, shape: tuple[int, int, int], fan_in: int, seed: int = 0) -> torch.Tensor:
    return draw_weights(distribution, shape, fan_in, generator(seed, distribution))


@pytest.mark.parametrize(
    ("distribution", "variance"), [("normal", 1), ("normal_over_d", 1 / D), ("uniform_over_d", 1 / (3 * D))]
)
def test_entries_have_mean_zero_and_the_variance_of_their_distribution(distribution: str, variance: float):
    x = vectors(distribution)
    assert float(x.var()) == pytest.approx(variance, rel=5 * math.sqrt(2 / ENTRIES))
    assert float(x.mean()) == pytest.approx(0, abs=5 * math.sqrt(variance / ENTRIES))


@pytest.mark.parametrize(("distribution", "norm"), [("normal", D), ("normal_over_d", 1), ("uniform_over_d", 1 / 3)])
def test_squared_norms_are_d_times_the_variance(distribution: str, norm: float):
    # Over 200 vectors of 256 entries the mean of |x|² has the relative spread √(2/ENTRIES) of its entries' squares.
    assert float(vectors(distribution).square().sum(1).mean()) == pytest.approx(norm, rel=5 * math.sqrt(2 / ENTRIES))


def test_uniform_entries_stay_within_one_over_root_d():
    x = vectors("uniform_over_d")
    assert float(x.abs().max()) <= 1 / math.sqrt(D)
    # The largest of ENTRIES uniform numbers is within 10 / ENTRIES of the end but for a chance of e^-10.
    assert float(x.abs().max()) > (1 - 10 / ENTRIES) / math.sqrt(D)


@pytest.mark.parametrize("distribution", ["sphere", "orthonormal", "one_hot"])
def test_unit_vectors_have_norm_one(distribution: str):
    torch.testing.assert_close(vectors(distribution).norm(dim=1), torch.ones(N), rtol=0, atol=1e-5)


def test_overlaps_on_the_sphere_have_variance_one_over_d():
    x = vectors("sphere")
    overlaps = (x @ x.T)[torch.ones(N, N).triu(1).bool()]
    # 19 900 pairwise overlaps, uncorrelated though not independent: standard error √(2/19900) = 1 %.
    assert float(overlaps.var()) == pytest.approx(1 / D, rel=0.05)
    assert float(overlaps.mean()) == pytest.approx(0, abs=5 / math.sqrt(D * len(overlaps)))


@pytest.mark.parametrize("distribution", ["orthonormal", "one_hot"])
def test_orthonormal_vectors_have_the_identity_as_overlaps(distribution: str):
    x = vectors(distribution)
    torch.testing.assert_close(x @ x.T, torch.eye(N), rtol=0, atol=1e-5)


def test_orthonormal_vectors_have_no_preferred_direction():
    # A first entry of a uniform unit vector has mean 0 and variance 1/d; without fixing the signs of the QR factor the
    # diagonal would be all of one sign. 400 draws: standard error of the mean √(1/(8·400)) = .018.
    firsts = torch.stack([vectors("orthonormal", 8, 8, seed)[0, 0] for seed in range(400)])
    assert float(firsts.mean()) == pytest.approx(0, abs=4 * 0.018)
    assert float(firsts.var()) == pytest.approx(1 / 8, rel=4 * math.sqrt(2 / 400))


def test_one_hot_vectors_are_the_axes_from_the_first_free_one():
    x = draw_vectors("one_hot", 3, 7, generator(0), what="model.position", first_axis=4)
    assert torch.equal(x, torch.eye(7)[4:])


@pytest.mark.parametrize("distribution", ["one_hot", "orthonormal"])
def test_too_small_a_dimension_is_the_users_error(distribution: str):
    assert vectors(distribution, 5, 5).shape == (5, 5)
    with pytest.raises(UserError, match=rf'model\.embedding = "{distribution}" needs d_model ≥ 6, got 5'):
        vectors(distribution, 6, 5)


def test_one_hot_positions_need_room_beside_the_tokens():
    with pytest.raises(UserError, match=r'model\.position = "one_hot" needs d_model ≥ 7, got 6'):
        draw_vectors("one_hot", 3, 6, generator(0), what="model.position", first_axis=4)


# Weights: d is the length of the vectors a matrix reads


@pytest.mark.parametrize(
    ("distribution", "variance"),
    [
        ("normal", 1),
        ("normal_over_d", 1 / 64),
        ("normal_over_out", 1 / 160),
        ("uniform_over_d", 1 / (3 * 64)),
        ("zeros", 0),
    ],
)
def test_weights_have_the_variance_of_their_distribution(distribution: str, variance: float):
    W = weights(distribution, (2, 64, 160), 64)
    assert W.shape == (2, 64, 160)
    assert float(W.var()) == pytest.approx(variance, rel=5 * math.sqrt(2 / W.numel()))


def test_normal_over_out_weights_keep_the_norm_on_average():
    """E |x W|² = |x|² d_out Var W = |x|²."""
    x = torch.nn.functional.normalize(vectors("normal", 100, 64), dim=1)
    W = weights("normal_over_out", (2, 64, 160), 64)
    # 200 vectors x W of 160 normal entries, as independent as the x are orthogonal; the spread of W is a lower bound.
    assert float((x @ W).square().sum(-1).mean()) == pytest.approx(1, rel=5 * math.sqrt(2 / W.numel()))


def test_uniform_weights_keep_a_third_of_the_squared_norm():
    # |W x|² / |x|² = d_out Var W = d_out / (3 d_in) (Bietti et al. 2023: |W_OV e|² ≈ d/9 after two of them).
    x = vectors("normal", 500, 64)
    W_V, W_O = weights("uniform_over_d", (1, 64, 64), 64)[0], weights("uniform_over_d", (1, 64, 64), 64, seed=1)[0]
    ratio = float((x @ W_V @ W_O).square().sum() / x.square().sum())
    # |W_V W_O|² = d/9 with relative spread about 2/d · √2 = 4 %.
    assert ratio == pytest.approx(1 / 9, rel=0.2)


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 16, 5), (3, 5, 16)])
def test_orthonormal_weights_keep_lengths_as_far_as_shapes_allow(shape: tuple[int, int, int]):
    heads, d_in, d_out = shape
    W = weights("orthonormal", shape, d_in)
    gram = W @ W.mT if d_in <= d_out else W.mT @ W
    torch.testing.assert_close(gram, torch.eye(min(d_in, d_out)).expand(heads, -1, -1), rtol=0, atol=1e-5)


def test_heads_are_drawn_separately():
    for distribution in ("normal", "uniform_over_d", "orthonormal"):
        W = weights(distribution, (2, 8, 8), 8)
        assert not torch.equal(W[0], W[1])


def test_the_same_generator_gives_the_same_bits():
    for distribution in ("normal", "normal_over_d", "uniform_over_d", "sphere", "orthonormal", "one_hot"):
        assert torch.equal(vectors(distribution, 5, 8), vectors(distribution, 5, 8))


@pytest.mark.parametrize("d", [8, 7])
def test_sinusoidal_positions_have_norm_root_half_d(d: int):
    """sin² + cos² = 1 for each of the ⌊d/2⌋ rates; an odd d keeps one more sine."""
    p = sinusoidal(50, d)
    assert p.shape == (50, d)
    torch.testing.assert_close(p[:, : d // 2 * 2].square().sum(1), torch.full((50,), float(d // 2)))
    assert p[3, 0] == pytest.approx(math.sin(3))
    assert p[3, 3] == pytest.approx(math.cos(3 * 10_000 ** (-2 / d)))


def test_overlaps_of_sinusoidal_positions_depend_on_the_distance_only():
    p = sinusoidal(20, 16).double()
    gram = p @ p.T
    for lag in range(1, 20):
        diagonal = gram.diagonal(lag)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
