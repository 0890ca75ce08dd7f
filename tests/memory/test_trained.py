"""What Adam on the cross-entropy stores."""

import pytest
import torch
from torch import Tensor

from toytf.memory import AssociationStream, MLPMemory, Trained, train_linear, train_low_rank, train_mlp
from toytf.memory.trained import CHECK_EVERY, low_rank, train_each, two_layers
from toytf.memory.trained import linear as linear_kind
from toytf.randomness import generator

PAIRS = AssociationStream(0, 16, 16).prefix(50)
"""Four fifths of what the best 16 × 16 matrix stores."""


@pytest.fixture(scope="module")
def linear() -> Trained:
    return train_linear(PAIRS, generator(0, "linear"), lr=0.03)


def test_a_trained_matrix_stores_four_fifths_of_the_capacity(linear: Trained):
    # 450 to 740 steps in four draws at this rate.
    assert linear.recall == 1
    assert 0 < linear.steps < 4000
    assert isinstance(linear.memory, Tensor)
    assert float(PAIRS.recall(linear.memory)) == 1


def test_training_cannot_store_more_than_the_best_matrix():
    # 80 pairs are beyond capacity at d = 16, as the solver certifies.
    trained = train_linear(AssociationStream(0, 16, 16).prefix(80), generator(0, "full"), steps=600.0)
    assert trained.recall < 1
    assert trained.steps == 600


def test_a_trained_product_has_its_rank():
    association = AssociationStream(0, 16, 16).prefix(25)
    trained = train_low_rank(association, 4, generator(0, "low rank"))
    assert trained.recall == 1
    assert isinstance(trained.memory, Tensor)
    assert int(torch.linalg.matrix_rank(trained.memory)) == 4
    assert float(association.recall(trained.memory)) == 1


def test_a_trained_mlp_stores_more_than_half_a_fact_per_weight_of_a_layer():
    """d = m = 8: N = 38, where N ln N = 2.2 m d; the best 8 × 8 matrix stores 24. Two of six draws need more steps."""
    association = AssociationStream(0, 8, 8).prefix(38)
    trained = train_mlp(association, 8, generator(0, "mlp"), lr=0.03)
    assert isinstance(trained.memory, MLPMemory)
    assert trained.recall >= 0.99
    assert float(association.recall(trained.memory)) == trained.recall


def test_training_stops_at_the_recall_that_is_asked_for(linear: Trained):
    half = train_linear(PAIRS, generator(0, "linear"), lr=0.03, recall=0.5)
    assert 0.5 <= half.recall < 1
    assert half.steps < linear.steps
    assert half.steps % CHECK_EVERY == 0


@pytest.mark.parametrize("steps", [0, 1, CHECK_EVERY, CHECK_EVERY + 3])
def test_training_stops_after_the_steps_it_is_given(steps: int):
    trained = train_linear(PAIRS, generator(0, "linear"), steps=float(steps))
    assert trained.steps == steps
    assert isinstance(trained.memory, Tensor)
    assert trained.recall == float(PAIRS.recall(trained.memory))


def test_without_a_step_the_memory_is_the_drawn_one():
    drawn = torch.randn(16, 16, generator=generator(0, "linear")) / 4
    assert torch.equal(train_linear(PAIRS, generator(0, "linear"), steps=0.0).memory, drawn)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_scale_of_keys_and_values_does_not_matter(scale: float):
    """Training sees vectors of length 1, so that one learning rate suits all."""
    from toytf.memory import Association

    scaled = Association(scale * PAIRS.keys, scale * PAIRS.values, PAIRS.targets)
    one, other = (train_linear(a, generator(0, "linear"), steps=32.0).memory for a in (PAIRS, scaled))
    # Adam divides by the size of a gradient: rounding of tiny ones grows over 32 steps of .03.
    torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


def test_the_learning_rate_changes_the_result():
    slow, fast = (train_linear(PAIRS, generator(0, "linear"), steps=16.0, lr=lr).memory for lr in (0.001, 0.03))
    assert not torch.allclose(slow, fast)


TRAINERS = {
    "linear": lambda seed: train_linear(PAIRS, generator(seed, "again"), steps=20.0),
    "low_rank": lambda seed: train_low_rank(PAIRS, 3, generator(seed, "again"), steps=20.0),
    "mlp": lambda seed: train_mlp(PAIRS, 12, generator(seed, "again"), steps=20.0),
}


def weights(trained: Trained) -> list[Tensor]:
    memory = trained.memory
    return [memory] if isinstance(memory, Tensor) else [memory.W_in, memory.W_out]


@pytest.mark.parametrize("kind", TRAINERS)
def test_the_same_generator_gives_the_same_memory(kind: str):
    once, again, different = (weights(TRAINERS[kind](seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(once, different, strict=True))


@pytest.mark.parametrize("kind", TRAINERS)
def test_a_trained_memory_carries_no_gradient(kind: str):
    for W in weights(TRAINERS[kind](0)):
        assert not W.requires_grad
        assert W.grad is None
        assert W.grad_fn is None
        assert W.dtype is torch.float32


@pytest.mark.parametrize("kind", TRAINERS)
def test_training_leaves_the_association_and_the_global_generator_alone(kind: str):
    keys, values, state = PAIRS.keys.clone(), PAIRS.values.clone(), torch.get_rng_state()
    TRAINERS[kind](0)
    assert torch.equal(PAIRS.keys, keys)
    assert torch.equal(PAIRS.values, values)
    assert torch.equal(torch.get_rng_state(), state)


KINDS = {"linear": (linear_kind(), 12), "low_rank": (low_rank(3), 12), "mlp": (two_layers(12), 24)}
"""With a number of pairs that takes draws of d = 8 unlike numbers of steps."""


@pytest.mark.parametrize("kind", KINDS)
def test_memories_that_are_trained_together_are_those_of_each_alone(kind: str):
    """Also when they end after unlike numbers of steps."""
    made, n = KINDS[kind]
    pairs = [AssociationStream(seed, 8, 8).prefix(n) for seed in range(4)]
    together = train_each(made, pairs, [generator(seed, "draw") for seed in range(4)], steps=200)
    alone = [train_each(made, [pairs[i]], [generator(i, "draw")], steps=200)[0] for i in range(4)]
    assert [(one.recall, one.steps) for one in together] == [(one.recall, one.steps) for one in alone]
    assert len({one.steps for one in together}) > 1
    for ours, theirs in zip(together, alone, strict=True):
        for a, b in zip(weights(ours), weights(theirs), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_rank_that_no_such_matrix_has_is_refused():
    with pytest.raises(ValueError, match=r"^rank is 17, expected 1 to 16 for a 16 × 16 matrix$"):
        train_low_rank(PAIRS, 17, generator(0, "rank"))
