"""Rounded weights are what they say, and no rounding beats the information bound."""

import math

import pytest
import torch

from toytf import theory
from toytf.memory import AssociationStream, hebbian
from toytf.memory.mlp import MLPMemory
from toytf.memory.rounding import MOST_BITS, recall_by_bits, rounded, rounded_memory
from toytf.randomness import generator


@pytest.mark.parametrize("bits", [1, 2, 5])
def test_weights_of_b_bits_have_2_to_the_b_values_half_a_step_off_at_most(bits: int):
    W = 2 * torch.rand(40, 40, generator=generator(0, "weights")) - 1
    near = rounded(W, bits)
    step = 2 * float(W.abs().max()) / 2**bits
    assert len(near.unique()) == 2**bits
    assert float((near - W).abs().max()) <= step / 2 * (1 + 1e-5)
    torch.testing.assert_close(near.unique().diff(), torch.full((2**bits - 1,), step))


def test_two_values_are_what_one_bit_tells_apart():
    assert rounded(torch.tensor([[4.0, -1.0], [0.5, -4.0]]), 1).tolist() == [[2, -2], [2, -2]]
    with pytest.raises(ValueError, match="bits = 0 leaves one value"):
        rounded(torch.eye(2), 0)


def test_the_scale_of_weights_takes_no_bits():
    """Of either layer: Vᵀ relu(W e) is as large as both together."""
    pairs = AssociationStream(0, 8, 8).prefix(20)
    W, V = torch.randn(2, 30, 8, generator=generator(0, "layers"))
    small, large = (rounded_memory(MLPMemory(W, s * V), 3) for s in (1.0, 64.0))
    assert float(pairs.recall(small)) == float(pairs.recall(large))


@pytest.mark.parametrize("n_answers", [None, 4])
def test_no_rounding_of_a_memory_holds_more_than_its_bits(n_answers: int | None):
    """The bound at the recall that is left, for few pairs and many, in the bits of an 8 × 8 Hebbian matrix."""
    for n in (5, 20, 200):
        pairs = AssociationStream(0, 8, 8, n_answers=n_answers).prefix(n)
        for bits, recall in enumerate(recall_by_bits(pairs, hebbian(pairs)), start=1):
            held = theory.bits_to_store(n, n_answers or n, error=1 - recall, injective=n_answers is None)
            assert held <= 64 * bits


def test_many_bits_are_as_good_as_all():
    pairs = AssociationStream(0, 16, 16).prefix(30)
    W = hebbian(pairs)
    recalls = recall_by_bits(pairs, W)
    assert len(recalls) == MOST_BITS
    assert recalls[-1] == pytest.approx(float(pairs.recall(W)))
    assert recalls[0] < recalls[-1]
    assert all(math.isfinite(recall) for recall in recalls)


def test_only_weights_can_be_rounded():
    with pytest.raises(TypeError, match="only matrices and two-layer memories"):
        rounded_memory(torch.relu, 3)
